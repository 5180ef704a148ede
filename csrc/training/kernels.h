// Training kernels in float32: attention with its gradient, matrix products, activations, RMSNorm, RoPE.
#pragma once
#include <cstdint>

#include "activation.h"

namespace sightline {

// q, k, v, o or a gradient: [batch, heads, time, dim] with any strides, except that dim is contiguous.
struct Heads {
    float* data;
    long batch, head, time;
    float* at(long b, long h, long t) const { return data + b * batch + h * head + t * time; }
};

struct AttentionShape {
    long batch, heads, kv_heads, queries, keys, dim;
    float scale;
    // Query i of sequence b attends to keys first[b · queries + i] … end[…] − 1; both null: all keys.
    const int32_t *first, *end;
    const int32_t* first_of(long b) const { return first ? first + b * queries : nullptr; }
    const int32_t* end_of(long b) const { return end ? end + b * queries : nullptr; }
};

struct Rotation {
    long batch, heads, time, dim, pairs;
    const float *cosines, *sines;
    long row;         // stride between the angles of two sequences of the batch; 0 if they share the angles
    float direction;  // 1, or −1 to rotate back
};

// C [rows, columns] = A [rows, depth] B [depth, columns] + bias. Of the row and column strides of A and B, one is 1; the rows of C are
// contiguous, with stride `c_stride`.
struct Product {
    long rows, columns, depth, a_row, a_column, b_row, b_column;
    const float* bias;
    float* out;
    long c_stride;
};

constexpr long RMS_ROWS_PER_TASK = 32;  // rows of rms_norm per task

struct TrainingKernels {
    // o = softmax(q kᵀ · scale) v;  lse[b, h, i] = log Σ exp
    void (*attention)(const AttentionShape&, Heads q, Heads k, Heads v, Heads o, float* lse);
    // dq, dk, dv from o, lse and the gradient of o; overwritten, not accumulated
    void (*attention_backward)(const AttentionShape&, Heads q, Heads k, Heads v, Heads o, const float* lse, Heads gradient, Heads dq, Heads dk, Heads dv);
    void (*matmul)(const Product&, const float* a, const float* b);
    // y = act(x), or act(x) ⊙ up if up is not null
    void (*activate)(Activation, long count, const float* x, const float* up, float* y);
    void (*activate_backward)(Activation, long count, const float* x, const float* up, const float* gradient, float* dx, float* dup);
    // y = x / √(mean x² + ε) · gain; inverse[row] = 1 / √(…)
    void (*rms_norm)(long rows, long width, const float* x, const float* gain, float epsilon, float* y, float* inverse);
    void (*rms_norm_backward)(long rows, long width, const float* x, const float* gain, const float* inverse, const float* gradient, float* dx,
                          float* dgain, float* scratch);
    // rotates the pairs (x_i, x_{i + pairs}) of the first 2 · pairs elements, backwards with direction = −1; cos, sin [batch or 1, time, pairs]
    void (*rotate)(const Rotation&, Heads x, Heads y);
};

}  // namespace sightline
