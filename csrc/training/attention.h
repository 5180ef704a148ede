// softmax(q kᵀ · scale) v and its gradient, one block of queries at a time, over the keys that any query of the block attends to.
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

constexpr long BLOCK = 48;  // queries per block; a multiple of the six rows of a tile

// Row stride in floats: an odd number of cache lines, so that a column maps to different cache sets.
inline long row_length(long n) { return round_up(n, 16) | 16; }

// Per-thread scratch memory, aligned to a cache line.
inline float* scratch(size_t count) {
    static thread_local std::vector<float> memory;
    if (memory.size() < count + 16) memory.resize(count + 16);
    return (float*)(((uintptr_t)memory.data() + 63) & ~(uintptr_t)63);
}

inline void copy_rows(Heads from, long b, long h, long rows, long dim, float* to, long stride, float scale = 1.0f) {
    for (long t = 0; t < rows; t++) {
        const float* x = from.at(b, h, t);
        for_each_vector(dim, [&](long i, int n) { store(to + t * stride + i, load(x + i, n) * broadcast(scale), n); });
        for (long i = dim; i < stride; i++) to[t * stride + i] = 0.0f;
    }
}
// to[i, t] = from[t, i], in 8 × 8 tiles; columns past `rows` are set to 0.
inline void transpose_rows(const float* from, long rows, long stride, float* to, long to_stride) {
    for (long t = 0; t + LANES <= to_stride; t += LANES)
        for (long i = 0; i < stride; i += LANES) {
            Floats in[LANES], out[LANES];
            for (int r = 0; r < LANES; r++) in[r] = t + r < rows ? load(from + (t + r) * stride + i) : zero();
            transpose(in, out);
            for (int c = 0; c < LANES; c++) store(to + (i + c) * to_stride + t, out[c]);
        }
}

// The keys from … to − 1 that a block of queries attends to; start and count cover them in multiples of 16.
struct Span {
    long from, to, start, count;
};
inline Span span_of(const AttentionShape& a, const int32_t* first, const int32_t* end, long i0, long i1) {
    long from = first ? *std::min_element(first + i0, first + i1) : 0, to = end ? *std::max_element(end + i0, end + i1) : a.keys;
    from = std::max(0L, from), to = std::max(from, std::min(to, a.keys));
    long start = from / 16 * 16;
    return {from, to, start, round_up(to - start, 16)};
}

// Elements from … to − 1 of a row, in full vectors. Other elements of those vectors may be overwritten; the caller zeroes them.
template <class Body>
inline void for_each_wide(long from, long to, Body body) {
    for (long i = from / WIDE * WIDE; i < to; i += WIDE) body(i);
}
inline void zero_outside(float* row, long count, long from, long to) {
    std::fill(row, row + std::min(from, count), 0.0f);
    std::fill(row + std::max(from, to), row + count, 0.0f);
}

// Scores → weights, in place; masked positions are 0. A fully masked query has weights of 0 and lse = +∞.
inline float softmax_row(float* row, long count, long from, long to) {
    float top = -INFINITY;
    if (from < to) {
        std::fill(row + from / WIDE * WIDE, row + from, -INFINITY);
        std::fill(row + to, row + round_up(to, WIDE), -INFINITY);
        Wide tops = broadcast_wide(-INFINITY);
        for_each_wide(from, to, [&](long i) { tops = max(tops, load_wide(row + i)); });
        top = horizontal_max(tops);
    }
    if (!(top > -INFINITY)) {
        std::memset(row, 0, count * sizeof(float));
        return INFINITY;
    }
    Wide total = broadcast_wide(0.0f);
    for_each_wide(from, to, [&](long i) {
        const Wide e = exponential(load_wide(row + i) - broadcast_wide(top));  // e⁻⁸⁷ where masked: lost in rounding next to the largest, 1
        total = total + e;
        store(row + i, e);
    });
    const float z = sum(total);
    for_each_wide(from, to, [&](long i) { store(row + i, load_wide(row + i) * broadcast_wide(1.0f / z)); });
    zero_outside(row, count, from, to);
    return top + std::log(z);
}

inline void attention(const AttentionShape& a, Heads q, Heads k, Heads v, Heads o, float* lse) {
    const long stride = row_length(a.dim), keys = row_length(a.keys), columns = round_up(a.dim, 16), group = a.heads / a.kv_heads;
    parallel_for(a.batch * a.kv_heads, [&](long task) {
        const long b = task / a.kv_heads, kv_head = task % a.kv_heads;
        float* values = scratch(2 * keys * stride + BLOCK * (2 * stride + keys) + keys * stride);
        float *keys_transposed = values + keys * stride, *key_rows = keys_transposed + keys * stride, *queries = key_rows + keys * stride;
        float *out = queries + BLOCK * stride, *scores = out + BLOCK * stride;
        const int32_t *first = a.first_of(b), *end = a.end_of(b);
        copy_rows(v, b, kv_head, a.keys, a.dim, values, stride);
        std::memset(values + a.keys * stride, 0, (keys - a.keys) * stride * sizeof(float));
        copy_rows(k, b, kv_head, a.keys, a.dim, key_rows, stride);
        transpose_rows(key_rows, a.keys, stride, keys_transposed, keys);
        for (long h = kv_head * group; h < (kv_head + 1) * group; h++)
            for (long i0 = 0; i0 < a.queries; i0 += BLOCK) {
                const long i1 = std::min(i0 + BLOCK, a.queries), rows = i1 - i0;
                const Span span = span_of(a, first, end, i0, i1);
                Heads from = q;
                from.data += i0 * q.time;
                copy_rows(from, b, h, rows, a.dim, queries, stride, a.scale);
                product(rows, span.count, a.dim, {queries, stride}, keys_transposed + span.start, keys, scores, keys, false);
                for (long i = 0; i < rows; i++) {
                    long low = first ? std::max<long>(first[i0 + i], 0) : 0, high = end ? std::min<long>(end[i0 + i], a.keys) : a.keys;
                    lse[(b * a.heads + h) * a.queries + i0 + i] = softmax_row(scores + i * keys, span.count, low - span.start, high - span.start);
                }
                product(rows, columns, span.count, {scores, keys}, values + span.start * stride, stride, out, stride, false);
                for (long i = 0; i < rows; i++)
                    for_each_vector(a.dim, [&](long d, int n) { store(o.at(b, h, i0 + i) + d, load(out + i * stride + d, n), n); });
            }
    });
}

inline void attention_backward(const AttentionShape& a, Heads q, Heads k, Heads v, Heads o, const float* lse, Heads gradient, Heads dq, Heads dk, Heads dv) {
    const long stride = row_length(a.dim), keys = row_length(a.keys), columns = round_up(a.dim, 16), group = a.heads / a.kv_heads, matrix_size = keys * stride;
    parallel_for(a.batch * a.kv_heads, [&](long task) {
        const long b = task / a.kv_heads, kv_head = task % a.kv_heads;
        float* key_rows = scratch(6 * matrix_size + BLOCK * (4 * stride + 2 * keys));
        float *keys_transposed = key_rows + matrix_size, *values = keys_transposed + matrix_size, *values_transposed = values + matrix_size;
        float *key_gradient = values_transposed + matrix_size, *value_gradient = key_gradient + matrix_size, *queries = value_gradient + matrix_size;
        float *out_gradient = queries + BLOCK * stride, *query_gradient = out_gradient + BLOCK * stride, *out = query_gradient + BLOCK * stride;
        float *weights = out + BLOCK * stride, *score_gradients = weights + BLOCK * keys;
        const int32_t *first = a.first_of(b), *end = a.end_of(b);
        copy_rows(k, b, kv_head, a.keys, a.dim, key_rows, stride);
        std::memset(key_rows + a.keys * stride, 0, (keys - a.keys) * stride * sizeof(float));
        copy_rows(v, b, kv_head, a.keys, a.dim, values, stride);
        transpose_rows(key_rows, a.keys, stride, keys_transposed, keys);
        transpose_rows(values, a.keys, stride, values_transposed, keys);
        std::memset(key_gradient, 0, 2 * matrix_size * sizeof(float));
        for (long h = kv_head * group; h < (kv_head + 1) * group; h++)
            for (long i0 = 0; i0 < a.queries; i0 += BLOCK) {
                const long i1 = std::min(i0 + BLOCK, a.queries), rows = i1 - i0;
                const Span span = span_of(a, first, end, i0, i1);
                auto from_query = [&](Heads x) { return x.data += i0 * x.time, x; };
                copy_rows(from_query(q), b, h, rows, a.dim, queries, stride, a.scale);
                copy_rows(from_query(gradient), b, h, rows, a.dim, out_gradient, stride);
                copy_rows(from_query(o), b, h, rows, a.dim, out, stride);
                product(rows, span.count, a.dim, {queries, stride}, keys_transposed + span.start, keys, weights, keys, false);
                product(rows, span.count, a.dim, {out_gradient, stride}, values_transposed + span.start, keys, score_gradients, keys, false);
                for (long i = 0; i < rows; i++) {
                    const long low = (first ? std::max<long>(first[i0 + i], 0) : 0) - span.start;
                    const long high = (end ? std::min<long>(end[i0 + i], a.keys) : a.keys) - span.start;
                    const float log_sum = lse[(b * a.heads + h) * a.queries + i0 + i];
                    Floats dot = zero();
                    for (long d = 0; d < columns; d += LANES) dot = fma(load(out + i * stride + d), load(out_gradient + i * stride + d), dot);
                    const float mean = sum(dot);
                    float *p = weights + i * keys, *s = score_gradients + i * keys;
                    if (log_sum < INFINITY)
                        for_each_wide(low, high, [&](long j) {
                            const Wide e = exponential(load_wide(p + j) - broadcast_wide(log_sum));
                            store(p + j, e);
                            store(s + j, e * (load_wide(s + j) - broadcast_wide(mean)));
                        });
                    const bool visible = log_sum < INFINITY && low < high;
                    zero_outside(p, span.count, visible ? low : span.count, high), zero_outside(s, span.count, visible ? low : span.count, high);
                }
                product(span.count, columns, rows, {weights, 1, keys}, out_gradient, stride, value_gradient + span.start * stride, stride, true);
                product(span.count, columns, rows, {score_gradients, 1, keys}, queries, stride, key_gradient + span.start * stride, stride, true);
                product(rows, columns, span.count, {score_gradients, keys}, key_rows + span.start * stride, stride, query_gradient, stride, false);
                for (long i = 0; i < rows; i++)
                    for_each_vector(a.dim, [&](long d, int n) { store(dq.at(b, h, i0 + i) + d, load(query_gradient + i * stride + d, n) * broadcast(a.scale), n); });
            }
        for (long t = 0; t < a.keys; t++)
            for_each_vector(a.dim, [&](long d, int n) {
                store(dk.at(b, kv_head, t) + d, load(key_gradient + t * stride + d, n), n);
                store(dv.at(b, kv_head, t) + d, load(value_gradient + t * stride + d, n), n);
            });
    });
}

}  // namespace SIGHTLINE_ISA
