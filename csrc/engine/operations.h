// The operations of a program, one struct per kind. `input` and `output` are indices of the engine's buffers, `matrix` is the index of a
// packed matrix. Python has a class for each with the same fields.
#pragma once
#include <memory>
#include <variant>

#include "activation.h"

namespace sightline {

// Floats owned by Python; `owner` keeps them alive.
struct FloatArray {
    const float* data = nullptr;
    long count = 0;
    std::shared_ptr<const void> owner;
    explicit operator bool() const { return data; }
    const float* operator+(long offset) const { return data + offset; }
    float operator[](long index) const { return data[index]; }
};

enum class NormKind { none, layer, rms, unit };

struct Norm {
    NormKind kind = NormKind::none;
    float epsilon = 0;
    FloatArray gain, bias;
};

// norm(scale · E[token] + positions[position] + types)
struct Embed {
    int output = 0, matrix = 0;
    float scale = 1;
    FloatArray positions;  // [max_positions][width]
    FloatArray types;      // [width], the vector of type 0
    Norm norm;
};

// The norm of elements offset … offset + width − 1 of each row.
struct Normalize {
    int input = 0, output = 0, offset = 0, width = 0;
    Norm norm;
};

// column_scale ⊙ act(W norm(scale · x) + bias), then the soft cap. A gated matrix has alternating tiles of gate and up rows, and computes
// act(gate_scale ⊙ gate) ⊙ (up_scale ⊙ up), `gated_width` wide.
struct Linear {
    int input = 0, output = 0, matrix = 0;
    Norm norm;                            // of the input
    float scale = 1;                      // of the input
    FloatArray bias;
    Activation activation = Activation::none;
    int gated_width = 0;                  // 0: no gate
    FloatArray gate_scale;                // [2 · gated_width]: nGPT's s_v and s_u
    FloatArray column_scale;
    float softcap = 0;
    bool accumulate = false;              // add to the output instead of overwriting it
    bool logits = false;                  // writes the logits of the requested rows, not a buffer
};

// Applied to q and k before their product: a norm per head, RoPE, projection to the unit sphere with a scale.
struct HeadTransform {
    Norm query_norm, key_norm;
    FloatArray frequencies;               // of RoPE, one per pair
    float amplitude = 1;                  // YaRN's
    bool unit = false;                    // cosine attention, nGPT
    FloatArray query_scale, key_scale;    // [heads · head_dim], [kv_heads · head_dim], after `unit`
    int angles = 0;                       // index into Engine::angles
    int pairs() const { return (int)frequencies.count; }
};

// softmax(cap(q kᵀ · scale) + bias) v over the KV cache. Reads q, k and v, writes k and v to the cache; with `cross`, reads only q and
// attends to the encoder's cache.
struct Attend {
    int input = 0, output = 0, layer = 0, heads = 0, kv_heads = 0, head_dim = 0;
    HeadTransform transform;
    float scale = 1, softcap = 0;
    long window = 0;                      // 0: none
    bool causal = true, cross = false;
    FloatArray distance_bias;             // [heads][2 · max_distance + 1], by key − query
    long max_distance = 0;
    FloatArray sinks;                     // [heads]
};

// Writes k and v of a source to the cache, for the cross-attention of a decoder.
struct StoreKeyValue {
    int input = 0, layer = 0, kv_heads = 0, head_dim = 0;
    HeadTransform transform;
};

// output = unit(output + step ⊙ (unit(input) − output)), nGPT's residual step.
struct Blend {
    int input = 0, output = 0;
    FloatArray step;
};

// output += input
struct Add {
    int input = 0, output = 0;
};

using Operation = std::variant<Embed, Normalize, Linear, Attend, StoreKeyValue, Blend, Add>;

inline bool is_logits(const Operation& op) {
    auto* linear = std::get_if<Linear>(&op);
    return linear && linear->logits;
}

}  // namespace sightline
