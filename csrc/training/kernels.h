// Kernels for training, in float32: attention with its gradient, matrix products, activations, RMSNorm, rotation.
#pragma once
#include <cstdint>

namespace sightline {

// q, k, v and the like: [batch, heads, time, dim], each with strides of its own; dim is contiguous.
struct Heads {
    float* data;
    long batch, head, time;
    float* at(long b, long h, long t) const { return data + b * batch + h * head + t * time; }
};

struct Attending {
    long batch, heads, kv_heads, queries, keys, dim;
    float scale;
    // Query i of row b sees keys first[b · queries + i] … end[…] − 1; both null: it sees all.
    const int32_t *first, *end;
    const int32_t* first_of(long b) const { return first ? first + b * queries : nullptr; }
    const int32_t* end_of(long b) const { return end ? end + b * queries : nullptr; }
};

struct Turning {
    long batch, heads, time, dim, pairs;
    const float *cosines, *sines;
    long row;  // between the angles of one row of the batch and the next; 0 where they are the same
    float turn;
};

// C [rows, columns] = A [rows, depth] B [depth, columns] + bias: of A and B the steps from row to row and from column to column, one of
// which is 1; of C the step from row to row.
struct Product {
    long rows, columns, depth, a_row, a_column, b_row, b_column;
    const float* bias;
    float* out;
    long under;
};

enum class Activation { relu, gelu, gelu_tanh, silu };  // in this order in Python, too

struct TrainingKernels {
    // o = softmax(q kᵀ · scale) v;  lse[b, h, i] = log Σ exp
    void (*attention)(const Attending&, Heads q, Heads k, Heads v, Heads o, float* lse);
    // from o, lse and the slope do: dq, dk, dv (written, not added to)
    void (*attention_back)(const Attending&, Heads q, Heads k, Heads v, Heads o, const float* lse, Heads slope, Heads dq, Heads dk, Heads dv);
    void (*matmul)(const Product&, const float* a, const float* b);
    // y = act(x), or act(x) ⊙ up where up is given
    void (*activate)(Activation, long count, const float* x, const float* up, float* y);
    void (*activate_back)(Activation, long count, const float* x, const float* up, const float* slope, float* dx, float* dup);
    // y = x / √(mean x² + ε) · gain; inverse[row] = 1 / √(…)
    void (*rms_norm)(long rows, long width, const float* x, const float* gain, float epsilon, float* y, float* inverse);
    void (*rms_norm_back)(long rows, long width, const float* x, const float* gain, const float* inverse, const float* slope, float* dx,
                          float* dgain, float* scratch);
    // pairs (x_i, x_{i + pairs}) of the first 2 · pairs numbers turned by their angle, backwards with turn = −1; cos, sin [#batch, time, pairs]
    void (*rotate)(const Turning&, Heads x, Heads y);
};

}  // namespace sightline
