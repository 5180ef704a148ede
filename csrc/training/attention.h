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
        for_each_vector(dim, [&](long i, int many) { store(to + t * wide + i, load(x + i, many) * broadcast(scale), many); });
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
inline Span span_of(const AttentionShape& a, const int32_t* first, const int32_t* end, long i0, long i1) {
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
inline void zero_outside(float* row, long many, long from, long to) {
    std::fill(row, row + std::min(from, many), 0.0f);
    std::fill(row + std::max(from, to), row + many, 0.0f);
}

// Scores → weights, in place; the rest of the row is 0. A query that sees nothing has weights of 0 and lse = +∞.
inline float softmax_row(float* row, long many, long from, long to) {
    float top = -INFINITY;
    if (from < to) {
        std::fill(row + from / WIDE * WIDE, row + from, -INFINITY);
        std::fill(row + to, row + rounded(to, WIDE), -INFINITY);
        Wide tops = broadcast_wide(-INFINITY);
        in_vectors(from, to, [&](long i) { tops = max(tops, load_wide(row + i)); });
        top = horizontal_max(tops);
    }
    if (!(top > -INFINITY)) {
        std::memset(row, 0, many * sizeof(float));
        return INFINITY;
    }
    Wide total = broadcast_wide(0.0f);
    in_vectors(from, to, [&](long i) {
        const Wide e = exponential(load_wide(row + i) - broadcast_wide(top));  // e⁻⁸⁷ outside: nothing beside the 1 of the largest
        total = total + e;
        store(row + i, e);
    });
    const float z = sum(total);
    in_vectors(from, to, [&](long i) { store(row + i, load_wide(row + i) * broadcast_wide(1.0f / z)); });
    zero_outside(row, many, from, to);
    return top + std::log(z);
}

inline void attention(const AttentionShape& a, Heads q, Heads k, Heads v, Heads o, float* lse) {
    const long wide = row_length(a.dim), keys = row_length(a.keys), columns = rounded(a.dim, 16), group = a.heads / a.kv_heads;
    parallel_for(a.batch * a.kv_heads, [&](long task) {
        const long b = task / a.kv_heads, kv_head = task % a.kv_heads;
        float* values = scratch(2 * keys * wide + BLOCK * (2 * wide + keys) + keys * wide);
        float *keys_transposed = values + keys * wide, *key_rows = keys_transposed + keys * wide, *queries = key_rows + keys * wide;
        float *out = queries + BLOCK * wide, *scores = out + BLOCK * wide;
        const int32_t *first = a.first_of(b), *end = a.end_of(b);
        copy_rows(v, b, kv_head, a.keys, a.dim, values, wide);
        std::memset(values + a.keys * wide, 0, (keys - a.keys) * wide * sizeof(float));
        copy_rows(k, b, kv_head, a.keys, a.dim, key_rows, wide);
        transposed(key_rows, a.keys, wide, keys_transposed, keys);
        for (long h = kv_head * group; h < (kv_head + 1) * group; h++)
            for (long i0 = 0; i0 < a.queries; i0 += BLOCK) {
                const long i1 = std::min(i0 + BLOCK, a.queries), rows = i1 - i0;
                const Span span = span_of(a, first, end, i0, i1);
                Heads from = q;
                from.data += i0 * q.time;
                copy_rows(from, b, h, rows, a.dim, queries, wide, a.scale);
                product(rows, span.many, a.dim, {queries, wide}, keys_transposed + span.start, keys, scores, keys, false);
                for (long i = 0; i < rows; i++) {
                    long low = first ? std::max<long>(first[i0 + i], 0) : 0, high = end ? std::min<long>(end[i0 + i], a.keys) : a.keys;
                    lse[(b * a.heads + h) * a.queries + i0 + i] = softmax_row(scores + i * keys, span.many, low - span.start, high - span.start);
                }
                product(rows, columns, span.many, {scores, keys}, values + span.start * wide, wide, out, wide, false);
                for (long i = 0; i < rows; i++)
                    for_each_vector(a.dim, [&](long d, int n) { store(o.at(b, h, i0 + i) + d, load(out + i * wide + d, n), n); });
            }
    });
}

inline void attention_backward(const AttentionShape& a, Heads q, Heads k, Heads v, Heads o, const float* lse, Heads gradient, Heads dq, Heads dk, Heads dv) {
    const long wide = row_length(a.dim), keys = row_length(a.keys), columns = rounded(a.dim, 16), group = a.heads / a.kv_heads, whole = keys * wide;
    parallel_for(a.batch * a.kv_heads, [&](long task) {
        const long b = task / a.kv_heads, kv_head = task % a.kv_heads;
        float* key_rows = scratch(6 * whole + BLOCK * (4 * wide + 2 * keys));
        float *keys_transposed = key_rows + whole, *values = keys_transposed + whole, *values_transposed = values + whole;
        float *key_gradient = values_transposed + whole, *value_gradient = key_gradient + whole, *queries = value_gradient + whole;
        float *out_gradient = queries + BLOCK * wide, *query_gradient = out_gradient + BLOCK * wide, *out = query_gradient + BLOCK * wide;
        float *weights = out + BLOCK * wide, *score_gradients = weights + BLOCK * keys;
        const int32_t *first = a.first_of(b), *end = a.end_of(b);
        copy_rows(k, b, kv_head, a.keys, a.dim, key_rows, wide);
        std::memset(key_rows + a.keys * wide, 0, (keys - a.keys) * wide * sizeof(float));
        copy_rows(v, b, kv_head, a.keys, a.dim, values, wide);
        transposed(key_rows, a.keys, wide, keys_transposed, keys);
        transposed(values, a.keys, wide, values_transposed, keys);
        std::memset(key_gradient, 0, 2 * whole * sizeof(float));
        for (long h = kv_head * group; h < (kv_head + 1) * group; h++)
            for (long i0 = 0; i0 < a.queries; i0 += BLOCK) {
                const long i1 = std::min(i0 + BLOCK, a.queries), rows = i1 - i0;
                const Span span = span_of(a, first, end, i0, i1);
                auto moved = [&](Heads x) { return x.data += i0 * x.time, x; };
                copy_rows(moved(q), b, h, rows, a.dim, queries, wide, a.scale);
                copy_rows(moved(gradient), b, h, rows, a.dim, out_gradient, wide);
                copy_rows(moved(o), b, h, rows, a.dim, out, wide);
                product(rows, span.many, a.dim, {queries, wide}, keys_transposed + span.start, keys, weights, keys, false);
                product(rows, span.many, a.dim, {out_gradient, wide}, values_transposed + span.start, keys, score_gradients, keys, false);
                for (long i = 0; i < rows; i++) {
                    const long low = (first ? std::max<long>(first[i0 + i], 0) : 0) - span.start;
                    const long high = (end ? std::min<long>(end[i0 + i], a.keys) : a.keys) - span.start;
                    const float log_sum = lse[(b * a.heads + h) * a.queries + i0 + i];
                    Floats dot = zero();
                    for (long d = 0; d < columns; d += LANES) dot = fma(load(out + i * wide + d), load(out_gradient + i * wide + d), dot);
                    const float mean = sum(dot);
                    float *p = weights + i * keys, *s = score_gradients + i * keys;
                    if (log_sum < INFINITY)
                        in_vectors(low, high, [&](long j) {
                            const Wide e = exponential(load_wide(p + j) - broadcast_wide(log_sum));
                            store(p + j, e);
                            store(s + j, e * (load_wide(s + j) - broadcast_wide(mean)));
                        });
                    const bool sees = log_sum < INFINITY && low < high;
                    zero_outside(p, span.many, sees ? low : span.many, high), zero_outside(s, span.many, sees ? low : span.many, high);
                }
                product(span.many, columns, rows, {weights, 1, keys}, out_gradient, wide, value_gradient + span.start * wide, wide, true);
                product(span.many, columns, rows, {score_gradients, 1, keys}, queries, wide, key_gradient + span.start * wide, wide, true);
                product(rows, columns, span.many, {score_gradients, keys}, key_rows + span.start * wide, wide, query_gradient, wide, false);
                for (long i = 0; i < rows; i++)
                    for_each_vector(a.dim, [&](long d, int n) { store(dq.at(b, h, i0 + i) + d, load(query_gradient + i * wide + d, n) * broadcast(a.scale), n); });
            }
        for (long t = 0; t < a.keys; t++)
            for_each_vector(a.dim, [&](long d, int n) {
                store(dk.at(b, kv_head, t) + d, load(key_gradient + t * wide + d, n), n);
                store(dv.at(b, kv_head, t) + d, load(value_gradient + t * wide + d, n), n);
            });
    });
}

}  // namespace SIGHTLINE_ISA
