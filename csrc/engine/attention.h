// Attention of a step: q and k are normed and turned, k and v go into the cache, then each row looks at what its sequence has there.
//
// Keys lie in tiles of eight positions, so that a lane is a position; values in rows, so that a lane is a number of the head. Each score
// and each output is one chain of sums in one order, whoever is computed beside it: a chunk gives what single steps give, bit for bit.
#pragma once
#include <algorithm>
#include <cmath>

#include "engine/engine.h"
#include "engine/norms.h"
#include "engine/pack.h"
#include "simd/wide.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

template <class Number>
inline Floats numbers(const Number* p) {
    if constexpr (sizeof(Number) == 2)
        return load_half(p);
    else
        return load(p);
}

template <class Number>
inline void put_numbers(Number* p, Floats x) {
    if constexpr (sizeof(Number) == 2)
        store_half(p, x);
    else
        store(p, x);
}

template <class Number>
inline Number* place(const Cache& cache, const Operation& op, int sequence, long position, int kv_head) {
    const int block = cache.tables[sequence][position / BLOCK_POSITIONS];
    return (Number*)cache.blocks[block] + cache.offset[op.layer] + (long)kv_head * 2 * BLOCK_POSITIONS * op.dim;
}

// One head of q or k: norm, rotation, sphere.
inline void prepare_head(const HeadWork& work, const Norm& norm, const float* scale, long dim, const float* cosines, float* x) {
    norm_row(norm, x, dim, x);
    const long pairs = work.pairs;
    const float *c = cosines, *s = cosines + pairs;
    by_eight(pairs, [&](long i, int n) {
        Floats a = load(x + i, n), b = load(x + pairs + i, n), cosine = load(c + i, n), sine = load(s + i, n);
        store(x + i, a * cosine - b * sine, n);
        store(x + pairs + i, b * cosine + a * sine, n);
    });
    if (work.unit) norm_row({NormKind::unit, 0, scale, nullptr}, x, dim, x);
}

template <class Number>
inline void remember(const Cache& cache, const Operation& op, int sequence, long position, int kv_head, const float* key, const float* value) {
    Number* keys = place<Number>(cache, op, sequence, position, kv_head);
    Number* values = keys + BLOCK_POSITIONS * op.dim;
    const long at = position % BLOCK_POSITIONS, tile = at / TILE * op.dim * TILE, lane = at % TILE;
    by_eight(op.dim, [&](long d, int n) {
        Number k[LANES], v[LANES];
        put_numbers(k, load(key + d, n)), put_numbers(v, load(value + d, n));
        for (int i = 0; i < n; i++) keys[tile + (d + i) * TILE + lane] = k[i];
        std::memcpy(values + at * op.dim + d, v, n * sizeof(Number));
    });
}

// A key as it is looked at, and its value, `apart` numbers further on, go into the cache.
template <class Number>
inline void keep_head(const Cache& cache, const Operation& op, int sequence, long position, int kv_head, const float* cosines, float* key, long apart) {
    prepare_head(op.work, op.work.key, op.work.key_scale ? op.work.key_scale + kv_head * op.dim : nullptr, op.dim, cosines, key);
    remember<Number>(cache, op, sequence, position, kv_head, key, key + apart);
}

// What a query sees: positions first … end − 1.
struct Sight {
    long first, end;
};
inline Sight sight_of(const Operation& op, long position, long length) {
    long first = op.window ? std::max(0L, position - op.window + 1) : 0;
    long end = op.causal ? position + 1 : op.window ? std::min(length, position + op.window) : length;
    return {first, end};
}

// Scores of MANY queries against a pair of tiles of keys.
template <int MANY, class Number>
inline void score(const Number* keys, long dim, const float* const* queries, float* const* scores, long at) {
    Floats sums[MANY][2];
    for (int q = 0; q < MANY; q++) sums[q][0] = sums[q][1] = zero();
    for (long d = 0; d < dim; d++) {
        Floats k0 = numbers(keys + d * TILE), k1 = numbers(keys + (dim + d) * TILE);
        for (int q = 0; q < MANY; q++) {
            Floats a = all(queries[q][d]);
            sums[q][0] = fma(a, k0, sums[q][0]), sums[q][1] = fma(a, k1, sums[q][1]);
        }
    }
    for (int q = 0; q < MANY; q++) store(scores[q] + at, sums[q][0]), store(scores[q] + at + TILE, sums[q][1]);
}

// out += weights · values, for the 32 positions of a block; VECTORS of eight numbers of the head
template <int MANY, int VECTORS, class Number>
inline void gather_some(const Number* values, long dim, const float* const* weights, long at, float* const* outs, long d, int n) {
    Floats sums[MANY][VECTORS];
    for (int q = 0; q < MANY; q++)
        for (int v = 0; v < VECTORS; v++) sums[q][v] = load(outs[q] + d + v * LANES, n);
    for (long p = 0; p < BLOCK_POSITIONS; p++) {
        Floats value[VECTORS];
        if (n == LANES) {
            for (int v = 0; v < VECTORS; v++) value[v] = numbers(values + p * dim + d + v * LANES);
        } else {
            Number rest[LANES] = {};
            std::copy_n(values + p * dim + d, n, rest);
            value[0] = numbers(rest);
        }
        for (int q = 0; q < MANY; q++) {
            Floats weight = all(weights[q][at + p]);
            for (int v = 0; v < VECTORS; v++) sums[q][v] = fma(weight, value[v], sums[q][v]);
        }
    }
    for (int q = 0; q < MANY; q++)
        for (int v = 0; v < VECTORS; v++) store(outs[q] + d + v * LANES, sums[q][v], n);
}

template <int MANY, class Number>
inline void gather(const Number* values, long dim, const float* const* weights, long at, float* const* outs) {
    long d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) gather_some<MANY, 2>(values, dim, weights, at, outs, d, LANES);
    for (; d < dim; d += LANES) gather_some<MANY, 1>(values, dim, weights, at, outs, d, dim - d < LANES ? (int)(dim - d) : LANES);
}

// Scores of one query → weights; 0 outside of what it sees.
inline void weigh(const Operation& op, float* row, long start, long padded, Sight seen, long position, int head) {
    const float* bias = op.distance_bias ? op.distance_bias + (long)head * (2 * op.reach + 1) + op.reach : nullptr;
    Floats tops = all(op.sinks ? op.sinks[head] : -INFINITY);
    const Floats scale = all(op.score_scale);
    const bool plain = op.score_cap <= 0 && !bias;
    auto masked = [&](long i) {  // eight positions from start + i
        float v[LANES];
        store(v, load(row + i) * scale);
        for (int j = 0; j < LANES; j++) {
            const long at = start + i + j;
            if (op.score_cap > 0) v[j] = op.score_cap * std::tanh(v[j] / op.score_cap);
            if (bias) v[j] += bias[std::min(op.reach, std::max(-op.reach, at - position))];
            if (at < seen.first || at >= seen.end) v[j] = -INFINITY;
        }
        return load(v);
    };
    for (long i = 0; i < padded; i += LANES) {
        const Floats s = plain && start + i >= seen.first && start + i + LANES <= seen.end ? load(row + i) * scale : masked(i);
        store(row + i, s);
        tops = max(tops, s);
    }
    const float top = largest(tops);
    Floats total = zero();
    for (long i = 0; i < padded; i += LANES) {
        Floats s = load(row + i), e = below(all(-3e38f), s, exponential(s - all(top)), zero());
        total = total + e;
        store(row + i, e);
    }
    float whole = sum(total);
    if (op.sinks) whole += std::exp(op.sinks[head] - top);
    const float inverse = whole > 0 ? 1.0f / whole : 0.0f;
    for (long i = 0; i < padded; i += LANES) store(row + i, load(row + i) * all(inverse));
}

constexpr int TOGETHER = 6;  // queries that share what is read of the cache

// Rows `rows` of one sequence (positions ascending) and all queries of one kv head.
template <class Number>
inline void look(const Cache& cache, const Operation& op, int sequence, int kv_head, const int32_t* positions, long row, long many,
                 const float* in, long in_width, float* out, long out_width, std::vector<float>& own) {
    const long group = op.heads / op.kv_heads, length = cache.lengths[sequence], count = many * group;
    const Sight low = sight_of(op, positions[row], length), high = sight_of(op, positions[row + many - 1], length);
    const long start = low.first / BLOCK_POSITIONS * BLOCK_POSITIONS;
    const long padded = (std::max(low.end, high.end) - start + BLOCK_POSITIONS - 1) / BLOCK_POSITIONS * BLOCK_POSITIONS;
    if ((long)own.size() < TOGETHER * padded) own.resize(TOGETHER * padded);
    const float* queries[TOGETHER];
    float *scores[TOGETHER], *outs[TOGETHER];
    for (long q0 = 0; q0 < count; q0 += TOGETHER) {
        const int here = (int)std::min<long>(TOGETHER, count - q0);
        for (int q = 0; q < here; q++) {
            const long r = row + (q0 + q) / group, head = kv_head * group + (q0 + q) % group;
            queries[q] = in + r * in_width + head * op.dim;
            outs[q] = out + r * out_width + head * op.dim;
            scores[q] = own.data() + q * padded;
        }
        auto each = [&](auto body) {
            int q = 0;
            for (; q + 6 <= here; q += 6) body(Count<6>(), q);
            for (; q + 3 <= here; q += 3) body(Count<3>(), q);
            for (; q < here; q++) body(Count<1>(), q);
        };
        // A single row has little to do with what it reads, and blocks lie apart: bytes of the fourth block from here are asked for, and of
        // the one behind it a number is read, because asking is in vain where the page is not known yet.
        auto ask = [&](long at, long from, long end) {
            at += 4 * BLOCK_POSITIONS;
            if (many > 1 || at >= padded) return;
            auto there = [&](long at) { return (const uint8_t*)(place<Number>(cache, op, sequence, start + at, kv_head) + from); };
            for (long n = 0; n < (end - from) * (long)sizeof(Number); n += 64) prefetch_far(there(at) + n);
            if (at + BLOCK_POSITIONS < padded) (void)*(const volatile uint8_t*)there(at + BLOCK_POSITIONS);
        };
        const long half = BLOCK_POSITIONS * op.dim;
        for (long at = 0; at < padded; at += BLOCK_POSITIONS) {
            const Number* keys = place<Number>(cache, op, sequence, start + at, kv_head);
            for (long tile = 0; tile < BLOCK_POSITIONS; tile += 2 * TILE) {
                ask(at, tile * op.dim, (tile + 2 * TILE) * op.dim);
                each([&](auto n, int q) { score<n>(keys + tile * op.dim, op.dim, queries + q, scores + q, at + tile); });
            }
        }
        for (int q = 0; q < here; q++) {
            const long r = row + (q0 + q) / group;
            weigh(op, scores[q], start, padded, sight_of(op, positions[r], length), positions[r], (int)(kv_head * group + (q0 + q) % group));
            std::fill_n(outs[q], op.dim, 0.0f);
        }
        for (long at = 0; at < padded; at += BLOCK_POSITIONS) {
            const Number* values = place<Number>(cache, op, sequence, start + at, kv_head) + half;
            ask(at, half, 2 * half);
            each([&](auto n, int q) { gather<n>(values, op.dim, scores + q, at, outs + q); });
        }
    }
}

}  // namespace SIGHTLINE_ISA
