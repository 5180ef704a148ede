// y = act(x), or gated y = act(x) ⊙ up, and the gradient, elementwise over whole tensors.
#pragma once
#include "simd/activations.h"
#include "threads.h"
#include "training/kernels.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

// Only activations with a gradient: relu, gelu, gelu_tanh, silu. The Python binding rejects the others.
template <class Body>
inline void with_activation(Activation activation, Body body) {
    if (activation == Activation::gelu) return body([](Floats x) { return gelu(x); });
    if (activation == Activation::silu) return body([](Floats x) { return silu(x); });
    if (activation == Activation::gelu_tanh) return body([](Floats x) { return gelu_tanh(x); });
    body([](Floats x) { return relu(x); });
}

constexpr long ELEMENTS_PER_TASK = 1 << 14;
template <class Body>
inline void parallel_for_vectors(long count, Body body) {
    parallel_for((count + ELEMENTS_PER_TASK - 1) / ELEMENTS_PER_TASK, [&](long task) {
        long start = task * ELEMENTS_PER_TASK, size = count - start < ELEMENTS_PER_TASK ? count - start : ELEMENTS_PER_TASK;
        for_each_vector(size, [&](long i, int n) { body(start + i, n); });
    });
}

inline void activate(Activation activation, long count, const float* x, const float* up, float* y) {
    with_activation(activation, [&](auto act) {
        parallel_for_vectors(count, [&](long i, int n) {
            Floats value = act(load(x + i, n)).value;
            store(y + i, up ? value * load(up + i, n) : value, n);
        });
    });
}

inline void activate_backward(Activation activation, long count, const float* x, const float* up, const float* gradient, float* dx, float* dup) {
    with_activation(activation, [&](auto act) {
        parallel_for_vectors(count, [&](long i, int n) {
            ValueAndGradient result = act(load(x + i, n));
            Floats dy = load(gradient + i, n);
            if (up) store(dup + i, dy * result.value, n);
            store(dx + i, (up ? dy * load(up + i, n) : dy) * result.gradient, n);
        });
    });
}

}  // namespace SIGHTLINE_ISA
