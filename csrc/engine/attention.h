// Attention in a step: normalize and rotate q and k, write k and v to the KV cache, then let each row attend to its sequence.
//
// Keys are stored in tiles of eight positions, so that a vector lane is a position; values in rows, so that a lane is an element of the
// head. Each score and each output is summed in a fixed order: a prefill is bit-identical to single steps.
#pragma once
#include <algorithm>
#include <cmath>

#include "engine/engine.h"
#include "engine/norms.h"
#include "engine/pack.h"
#include "simd/wide.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

template <class Element>
inline Floats load_elements(const Element* p) {
    if constexpr (sizeof(Element) == 2)
        return load_half(p);
    else
        return load(p);
}

template <class Element>
inline void store_elements(Element* p, Floats x) {
    if constexpr (sizeof(Element) == 2)
        store_half(p, x);
    else
        store(p, x);
}

template <class Element, class Op>
inline Element* cache_block(const Cache& cache, const Op& op, int sequence, long position, int kv_head) {
    const int block = cache.tables[sequence][position / BLOCK_POSITIONS];
    return (Element*)cache.blocks[block] + cache.offset[op.layer] + (long)kv_head * 2 * BLOCK_POSITIONS * op.head_dim;
}

// One head of q or k: norm, RoPE, projection to the unit sphere.
inline void transform_head(const HeadTransform& transform, const Norm& norm, const float* scale, long dim, const float* cosines, float* x) {
    norm_row(norm, x, dim, x);
    const long pairs = transform.pairs();
    const float *c = cosines, *s = cosines + pairs;
    for_each_vector(pairs, [&](long i, int n) {
        Floats a = load(x + i, n), b = load(x + pairs + i, n), cosine = load(c + i, n), sine = load(s + i, n);
        store(x + i, a * cosine - b * sine, n);
        store(x + pairs + i, b * cosine + a * sine, n);
    });
    if (transform.unit) unit_row(scale, x, dim);
}

template <class Element, class Op>
inline void write_key_value(const Cache& cache, const Op& op, int sequence, long position, int kv_head, const float* key, const float* value) {
    Element* keys = cache_block<Element>(cache, op, sequence, position, kv_head);
    Element* values = keys + BLOCK_POSITIONS * op.head_dim;
    const long at = position % BLOCK_POSITIONS, tile = at / TILE * op.head_dim * TILE, lane = at % TILE;
    for_each_vector(op.head_dim, [&](long d, int n) {
        Element k[LANES], v[LANES];
        store_elements(k, load(key + d, n)), store_elements(v, load(value + d, n));
        for (int i = 0; i < n; i++) keys[tile + (d + i) * TILE + lane] = k[i];
        std::memcpy(values + at * op.head_dim + d, v, n * sizeof(Element));
    });
}

// Transforms one head of k and writes it to the cache together with v, which follows k after `value_offset` elements.
template <class Element, class Op>
inline void store_head(const Cache& cache, const Op& op, int sequence, long position, int kv_head, const float* cosines, float* key, long value_offset) {
    const HeadTransform& transform = op.transform;
    const float* scale = transform.key_scale ? transform.key_scale + kv_head * op.head_dim : nullptr;
    transform_head(transform, transform.key_norm, scale, op.head_dim, cosines, key);
    write_key_value<Element>(cache, op, sequence, position, kv_head, key, key + value_offset);
}

// The keys that a query attends to: positions first … end − 1.
struct KeyRange {
    long first, end;
};
inline KeyRange visible_keys(const Attend& op, long position, long length) {
    long first = op.window ? std::max(0L, position - op.window + 1) : 0;
    long end = op.causal ? position + 1 : op.window ? std::min(length, position + op.window) : length;
    return {first, end};
}

// Scores of QUERIES queries against a pair of tiles of keys.
template <int QUERIES, class Element>
inline void score(const Element* keys, long dim, const float* const* queries, float* const* scores, long at) {
    Floats sums[QUERIES][2];
    for (int q = 0; q < QUERIES; q++) sums[q][0] = sums[q][1] = zero();
    for (long d = 0; d < dim; d++) {
        Floats k0 = load_elements(keys + d * TILE), k1 = load_elements(keys + (dim + d) * TILE);
        for (int q = 0; q < QUERIES; q++) {
            Floats a = broadcast(queries[q][d]);
            sums[q][0] = fma(a, k0, sums[q][0]), sums[q][1] = fma(a, k1, sums[q][1]);
        }
    }
    for (int q = 0; q < QUERIES; q++) store(scores[q] + at, sums[q][0]), store(scores[q] + at + TILE, sums[q][1]);
}

// out += weights · values over the 32 positions of a block, for VECTORS vectors of the head
template <int QUERIES, int VECTORS, class Element>
inline void add_weighted_values_tile(const Element* values, long dim, const float* const* weights, long at, float* const* outs, long d, int n) {
    Floats sums[QUERIES][VECTORS];
    for (int q = 0; q < QUERIES; q++)
        for (int v = 0; v < VECTORS; v++) sums[q][v] = load(outs[q] + d + v * LANES, n);
    for (long p = 0; p < BLOCK_POSITIONS; p++) {
        Floats value[VECTORS];
        if (n == LANES) {
            for (int v = 0; v < VECTORS; v++) value[v] = load_elements(values + p * dim + d + v * LANES);
        } else {
            Element rest[LANES] = {};
            std::copy_n(values + p * dim + d, n, rest);
            value[0] = load_elements(rest);
        }
        for (int q = 0; q < QUERIES; q++) {
            Floats weight = broadcast(weights[q][at + p]);
            for (int v = 0; v < VECTORS; v++) sums[q][v] = fma(weight, value[v], sums[q][v]);
        }
    }
    for (int q = 0; q < QUERIES; q++)
        for (int v = 0; v < VECTORS; v++) store(outs[q] + d + v * LANES, sums[q][v], n);
}

template <int QUERIES, class Element>
inline void add_weighted_values(const Element* values, long dim, const float* const* weights, long at, float* const* outs) {
    long d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) add_weighted_values_tile<QUERIES, 2>(values, dim, weights, at, outs, d, LANES);
    for (; d < dim; d += LANES) add_weighted_values_tile<QUERIES, 1>(values, dim, weights, at, outs, d, dim - d < LANES ? (int)(dim - d) : LANES);
}

// Scores of one query → weights; 0 for masked keys.
inline void softmax_scores(const Attend& op, float* row, long start, long padded, KeyRange visible, long position, int head) {
    const float* bias = op.distance_bias ? op.distance_bias + (long)head * (2 * op.max_distance + 1) + op.max_distance : nullptr;
    Floats tops = broadcast(op.sinks ? op.sinks[head] : -INFINITY);
    const Floats scale = broadcast(op.scale);
    const bool unmodified = op.softcap <= 0 && !bias;
    auto masked = [&](long i) {  // eight positions from start + i
        float v[LANES];
        store(v, load(row + i) * scale);
        for (int j = 0; j < LANES; j++) {
            const long at = start + i + j;
            if (op.softcap > 0) v[j] = op.softcap * std::tanh(v[j] / op.softcap);
            if (bias) v[j] += bias[std::min(op.max_distance, std::max(-op.max_distance, at - position))];
            if (at < visible.first || at >= visible.end) v[j] = -INFINITY;
        }
        return load(v);
    };
    for (long i = 0; i < padded; i += LANES) {
        const Floats s = unmodified && start + i >= visible.first && start + i + LANES <= visible.end ? load(row + i) * scale : masked(i);
        store(row + i, s);
        tops = max(tops, s);
    }
    const float top = horizontal_max(tops);
    Floats total = zero();
    for (long i = 0; i < padded; i += LANES) {
        Floats s = load(row + i), e = select_less(broadcast(-3e38f), s, exponential(s - broadcast(top)), zero());
        total = total + e;
        store(row + i, e);
    }
    float normalizer = sum(total);
    if (op.sinks) normalizer += std::exp(op.sinks[head] - top);
    const float inverse = normalizer > 0 ? 1.0f / normalizer : 0.0f;
    for (long i = 0; i < padded; i += LANES) store(row + i, load(row + i) * broadcast(inverse));
}

constexpr int QUERIES_AT_ONCE = 6;  // queries that share one pass over the cache

// All queries of one kv head in `rows` rows of one sequence, with ascending positions.
template <class Element>
inline void attend_rows(const Cache& cache, const Attend& op, int sequence, int kv_head, const int32_t* positions, long row, long rows,
                 const float* in, long in_width, float* out, long out_width, std::vector<float>& scratch) {
    const long group = op.heads / op.kv_heads, length = cache.lengths[sequence], query_count = rows * group;
    const KeyRange low = visible_keys(op, positions[row], length), high = visible_keys(op, positions[row + rows - 1], length);
    const long start = low.first / BLOCK_POSITIONS * BLOCK_POSITIONS;
    const long padded = (std::max(low.end, high.end) - start + BLOCK_POSITIONS - 1) / BLOCK_POSITIONS * BLOCK_POSITIONS;
    if ((long)scratch.size() < QUERIES_AT_ONCE * padded) scratch.resize(QUERIES_AT_ONCE * padded);
    const float* queries[QUERIES_AT_ONCE];
    float *scores[QUERIES_AT_ONCE], *outs[QUERIES_AT_ONCE];
    for (long q0 = 0; q0 < query_count; q0 += QUERIES_AT_ONCE) {
        const int query_block = (int)std::min<long>(QUERIES_AT_ONCE, query_count - q0);
        for (int q = 0; q < query_block; q++) {
            const long r = row + (q0 + q) / group, head = kv_head * group + (q0 + q) % group;
            queries[q] = in + r * in_width + head * op.head_dim;
            outs[q] = out + r * out_width + head * op.head_dim;
            scores[q] = scratch.data() + q * padded;
        }
        auto for_each_query = [&](auto body) {
            int q = 0;
            for (; q + 6 <= query_block; q += 6) body(Count<6>(), q);
            for (; q + 3 <= query_block; q += 3) body(Count<3>(), q);
            for (; q < query_block; q++) body(Count<1>(), q);
        };
        // Decoding a single row is memory-bound, and blocks are scattered: prefetch the block four ahead, and touch the one after it,
        // because a prefetch is dropped if its page is not in the TLB.
        auto prefetch_block = [&](long at, long from, long end) {
            at += 4 * BLOCK_POSITIONS;
            if (rows > 1 || at >= padded) return;
            auto address = [&](long at) { return (const uint8_t*)(cache_block<Element>(cache, op, sequence, start + at, kv_head) + from); };
            for (long n = 0; n < (end - from) * (long)sizeof(Element); n += 64) prefetch_far(address(at) + n);
            if (at + BLOCK_POSITIONS < padded) (void)*(const volatile uint8_t*)address(at + BLOCK_POSITIONS);
        };
        const long half = BLOCK_POSITIONS * op.head_dim;
        for (long at = 0; at < padded; at += BLOCK_POSITIONS) {
            const Element* keys = cache_block<Element>(cache, op, sequence, start + at, kv_head);
            for (long tile = 0; tile < BLOCK_POSITIONS; tile += 2 * TILE) {
                prefetch_block(at, tile * op.head_dim, (tile + 2 * TILE) * op.head_dim);
                for_each_query([&](auto n, int q) { score<n>(keys + tile * op.head_dim, op.head_dim, queries + q, scores + q, at + tile); });
            }
        }
        for (int q = 0; q < query_block; q++) {
            const long r = row + (q0 + q) / group;
            softmax_scores(op, scores[q], start, padded, visible_keys(op, positions[r], length), positions[r], (int)(kv_head * group + (q0 + q) % group));
            std::fill_n(outs[q], op.head_dim, 0.0f);
        }
        for (long at = 0; at < padded; at += BLOCK_POSITIONS) {
            const Element* values = cache_block<Element>(cache, op, sequence, start + at, kv_head) + half;
            prefetch_block(at, half, 2 * half);
            for_each_query([&](auto n, int q) { add_weighted_values<n>(values, op.head_dim, scores + q, at, outs + q); });
        }
    }
}

}  // namespace SIGHTLINE_ISA
