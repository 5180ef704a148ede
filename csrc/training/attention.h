// softmax(q kᵀ · scale) v and its gradient, a block of queries at a time, only over keys that some query of the block may see.
//
//     P = exp(S − lse)    D = Σ o ∘ do    dS = P ∘ (do vᵀ − D)    dv += Pᵀ do    dq = dS k · scale    dk += dSᵀ q · scale
#pragma once
#include <algorithm>
#include <vector>

#include "simd/small_matmul.h"
#include "threads.h"
#include "training/kernels.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

constexpr long BLOCK = 48;  // queries; a multiple of the tile's six rows

// The length of a row in memory: whole cache lines, an odd number of them, so that a column is spread over all of the cache.
inline long row_length(long n) { return rounded(n, 16) | 16; }

// Memory that a thread keeps, on the border of a cache line.
inline float* scratch(size_t count) {
    static thread_local std::vector<float> kept;
    if (kept.size() < count + 16) kept.resize(count + 16);
    return (float*)(((uintptr_t)kept.data() + 63) & ~(uintptr_t)63);
}

inline void copy_rows(Heads from, long b, long h, long rows, long dim, float* to, long wide, float scale = 1.0f) {
    for (long t = 0; t < rows; t++) {
        const float* x = from.at(b, h, t);
        by_eight(dim, [&](long i, int many) { store(to + t * wide + i, load(x + i, many) * all(scale), many); });
        for (long i = dim; i < wide; i++) to[t * wide + i] = 0.0f;
    }
}
// to[i, t] = from[t, i], eight by eight; what stands beyond the rows is 0.
inline void transposed(const float* from, long rows, long wide, float* to, long long_row) {
    for (long t = 0; t + LANES <= long_row; t += LANES)
        for (long i = 0; i < wide; i += LANES) {
            Floats in[LANES], out[LANES];
            for (int r = 0; r < LANES; r++) in[r] = t + r < rows ? load(from + (t + r) * wide + i) : zero();
            transpose(in, out);
            for (int c = 0; c < LANES; c++) store(to + (i + c) * long_row + t, out[c]);
        }
}

// Which keys a block of queries sees, in whole vectors of 16.
struct Span {
    long from, to, start, many;
};
inline Span span_of(const Attending& a, const int32_t* first, const int32_t* end, long i0, long i1) {
    long from = first ? *std::min_element(first + i0, first + i1) : 0, to = end ? *std::max_element(end + i0, end + i1) : a.keys;
    from = std::max(0L, from), to = std::max(from, std::min(to, a.keys));
    long start = from / 16 * 16;
    return {from, to, start, rounded(to - start, 16)};
}

// The numbers from … to − 1 of a row, in whole vectors: what else is in these may be written, and is made 0 afterwards.
template <class Body>
inline void in_vectors(long from, long to, Body body) {
    for (long i = from / WIDE * WIDE; i < to; i += WIDE) body(i);
}
inline void only(float* row, long many, long from, long to) {
    std::fill(row, row + std::min(from, many), 0.0f);
    std::fill(row + std::max(from, to), row + many, 0.0f);
}

// Scores → weights, in place; the rest of the row is 0. A query that sees nothing has weights of 0 and lse = +∞.
inline float soften(float* row, long many, long from, long to) {
    float top = -INFINITY;
    if (from < to) {
        std::fill(row + from / WIDE * WIDE, row + from, -INFINITY);
        std::fill(row + to, row + rounded(to, WIDE), -INFINITY);
        Wide tops = spread(-INFINITY);
        in_vectors(from, to, [&](long i) { tops = max(tops, load_wide(row + i)); });
        top = largest(tops);
    }
    if (!(top > -INFINITY)) {
        std::memset(row, 0, many * sizeof(float));
        return INFINITY;
    }
    Wide total = spread(0.0f);
    in_vectors(from, to, [&](long i) {
        const Wide e = exponential(load_wide(row + i) - spread(top));  // e⁻⁸⁷ outside: nothing beside the 1 of the largest
        total = total + e;
        store(row + i, e);
    });
    const float z = sum(total);
    in_vectors(from, to, [&](long i) { store(row + i, load_wide(row + i) * spread(1.0f / z)); });
    only(row, many, from, to);
    return top + std::log(z);
}

inline void attention(const Attending& a, Heads q, Heads k, Heads v, Heads o, float* lse) {
    const long wide = row_length(a.dim), keys = row_length(a.keys), columns = rounded(a.dim, 16), group = a.heads / a.kv_heads;
    share(a.batch * a.kv_heads, [&](long piece) {
        const long b = piece / a.kv_heads, shared = piece % a.kv_heads;
        float* values = scratch(2 * keys * wide + BLOCK * (2 * wide + keys) + keys * wide);
        float *across = values + keys * wide, *plain = across + keys * wide, *queries = plain + keys * wide;
        float *out = queries + BLOCK * wide, *scores = out + BLOCK * wide;
        const int32_t *first = a.first_of(b), *end = a.end_of(b);
        copy_rows(v, b, shared, a.keys, a.dim, values, wide);
        std::memset(values + a.keys * wide, 0, (keys - a.keys) * wide * sizeof(float));
        copy_rows(k, b, shared, a.keys, a.dim, plain, wide);
        transposed(plain, a.keys, wide, across, keys);
        for (long h = shared * group; h < (shared + 1) * group; h++)
            for (long i0 = 0; i0 < a.queries; i0 += BLOCK) {
                const long i1 = std::min(i0 + BLOCK, a.queries), rows = i1 - i0;
                const Span seen = span_of(a, first, end, i0, i1);
                Heads from = q;
                from.data += i0 * q.time;
                copy_rows(from, b, h, rows, a.dim, queries, wide, a.scale);
                product(rows, seen.many, a.dim, {queries, wide}, across + seen.start, keys, scores, keys, false);
                for (long i = 0; i < rows; i++) {
                    long low = first ? std::max<long>(first[i0 + i], 0) : 0, high = end ? std::min<long>(end[i0 + i], a.keys) : a.keys;
                    lse[(b * a.heads + h) * a.queries + i0 + i] = soften(scores + i * keys, seen.many, low - seen.start, high - seen.start);
                }
                product(rows, columns, seen.many, {scores, keys}, values + seen.start * wide, wide, out, wide, false);
                for (long i = 0; i < rows; i++)
                    by_eight(a.dim, [&](long d, int n) { store(o.at(b, h, i0 + i) + d, load(out + i * wide + d, n), n); });
            }
    });
}

inline void attention_back(const Attending& a, Heads q, Heads k, Heads v, Heads o, const float* lse, Heads slope, Heads dq, Heads dk, Heads dv) {
    const long wide = row_length(a.dim), keys = row_length(a.keys), columns = rounded(a.dim, 16), group = a.heads / a.kv_heads, whole = keys * wide;
    share(a.batch * a.kv_heads, [&](long piece) {
        const long b = piece / a.kv_heads, shared = piece % a.kv_heads;
        float* plain = scratch(6 * whole + BLOCK * (4 * wide + 2 * keys));
        float *across = plain + whole, *values = across + whole, *values_across = values + whole;
        float *key_slope = values_across + whole, *value_slope = key_slope + whole, *queries = value_slope + whole;
        float *down = queries + BLOCK * wide, *query_slope = down + BLOCK * wide, *out = query_slope + BLOCK * wide;
        float *weights = out + BLOCK * wide, *slopes = weights + BLOCK * keys;
        const int32_t *first = a.first_of(b), *end = a.end_of(b);
        copy_rows(k, b, shared, a.keys, a.dim, plain, wide);
        std::memset(plain + a.keys * wide, 0, (keys - a.keys) * wide * sizeof(float));
        copy_rows(v, b, shared, a.keys, a.dim, values, wide);
        transposed(plain, a.keys, wide, across, keys);
        transposed(values, a.keys, wide, values_across, keys);
        std::memset(key_slope, 0, 2 * whole * sizeof(float));
        for (long h = shared * group; h < (shared + 1) * group; h++)
            for (long i0 = 0; i0 < a.queries; i0 += BLOCK) {
                const long i1 = std::min(i0 + BLOCK, a.queries), rows = i1 - i0;
                const Span seen = span_of(a, first, end, i0, i1);
                auto moved = [&](Heads x) { return x.data += i0 * x.time, x; };
                copy_rows(moved(q), b, h, rows, a.dim, queries, wide, a.scale);
                copy_rows(moved(slope), b, h, rows, a.dim, down, wide);
                copy_rows(moved(o), b, h, rows, a.dim, out, wide);
                product(rows, seen.many, a.dim, {queries, wide}, across + seen.start, keys, weights, keys, false);
                product(rows, seen.many, a.dim, {down, wide}, values_across + seen.start, keys, slopes, keys, false);
                for (long i = 0; i < rows; i++) {
                    const long low = (first ? std::max<long>(first[i0 + i], 0) : 0) - seen.start;
                    const long high = (end ? std::min<long>(end[i0 + i], a.keys) : a.keys) - seen.start;
                    const float log_sum = lse[(b * a.heads + h) * a.queries + i0 + i];
                    Floats dot = zero();
                    for (long d = 0; d < columns; d += LANES) dot = fma(load(out + i * wide + d), load(down + i * wide + d), dot);
                    const float mean = sum(dot);
                    float *p = weights + i * keys, *s = slopes + i * keys;
                    if (log_sum < INFINITY)
                        in_vectors(low, high, [&](long j) {
                            const Wide e = exponential(load_wide(p + j) - spread(log_sum));
                            store(p + j, e);
                            store(s + j, e * (load_wide(s + j) - spread(mean)));
                        });
                    const bool sees = log_sum < INFINITY && low < high;
                    only(p, seen.many, sees ? low : seen.many, high), only(s, seen.many, sees ? low : seen.many, high);
                }
                product(seen.many, columns, rows, {weights, 1, keys}, down, wide, value_slope + seen.start * wide, wide, true);
                product(seen.many, columns, rows, {slopes, 1, keys}, queries, wide, key_slope + seen.start * wide, wide, true);
                product(rows, columns, seen.many, {slopes, keys}, plain + seen.start * wide, wide, query_slope, wide, false);
                for (long i = 0; i < rows; i++)
                    by_eight(a.dim, [&](long d, int n) { store(dq.at(b, h, i0 + i) + d, load(query_slope + i * wide + d, n) * all(a.scale), n); });
            }
        for (long t = 0; t < a.keys; t++)
            by_eight(a.dim, [&](long d, int n) {
                store(dk.at(b, shared, t) + d, load(key_slope + t * wide + d, n), n);
                store(dv.at(b, shared, t) + d, load(value_slope + t * wide + d, n), n);
            });
    });
}

}  // namespace SIGHTLINE_ISA
