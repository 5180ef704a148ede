// act(x) and act′(x), alone or as a gate: y = act(x) ⊙ up.
//
//     gelu  x Φ(x)      silu  x / (1 + e⁻ˣ)      gelu_tanh  x σ(2 √(2/π) (x + 0.044715 x³))
#pragma once
#include "simd/vectors.h"
#include "threads.h"
#include "training/kernels.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

struct Bend {  // a function and its slope
    Floats value, slope;
};

inline Floats sigmoid(Floats x) { return all(1.0f) / (all(1.0f) + exponential(zero() - x)); }

// Φ by Abramowitz and Stegun 7.1.26: off by less than 2e-7
inline Bend gelu(Floats x) {
    Floats z = absolute(x) * all(0.70710678f), bell = exponential(zero() - z * z);
    Floats t = all(1.0f) / fma(z, all(0.3275911f), all(1.0f));
    Floats p = all(1.061405429f);
    p = fma(p, t, all(-1.453152027f));
    p = fma(p, t, all(1.421413741f));
    p = fma(p, t, all(-0.284496736f));
    p = fma(p, t, all(0.254829592f));
    Floats tail = p * t * bell * all(0.5f);  // 1 − Φ(|x|)
    Floats phi = below(x, zero(), tail, all(1.0f) - tail);
    return {x * phi, fma(x * all(0.39894228f), bell, phi)};
}
inline Bend silu(Floats x) {
    Floats s = sigmoid(x);
    return {x * s, s * fma(x, all(1.0f) - s, all(1.0f))};
}
inline Bend gelu_tanh(Floats x) {
    Floats square = x * x, inner = x * fma(square, all(2 * 0.79788456f * 0.044715f), all(2 * 0.79788456f));
    Floats s = sigmoid(inner), rise = fma(square, all(3 * 2 * 0.79788456f * 0.044715f), all(2 * 0.79788456f));
    return {x * s, fma(x * s * (all(1.0f) - s), rise, s)};
}
inline Bend relu(Floats x) { return {max(x, zero()), below(zero(), x, all(1.0f), zero())}; }

template <class Body>
inline void with_curve(Activation kind, Body body) {
    if (kind == Activation::gelu) return body([](Floats x) { return gelu(x); });
    if (kind == Activation::silu) return body([](Floats x) { return silu(x); });
    if (kind == Activation::gelu_tanh) return body([](Floats x) { return gelu_tanh(x); });
    body([](Floats x) { return relu(x); });
}

constexpr long PIECE = 1 << 14;
template <class Body>
inline void in_pieces(long count, Body body) {
    share((count + PIECE - 1) / PIECE, [&](long piece) {
        long start = piece * PIECE, many = count - start < PIECE ? count - start : PIECE;
        by_eight(many, [&](long i, int n) { body(start + i, n); });
    });
}

inline void activate(Activation kind, long count, const float* x, const float* up, float* y) {
    with_curve(kind, [&](auto curve) {
        in_pieces(count, [&](long i, int n) {
            Floats value = curve(load(x + i, n)).value;
            store(y + i, up ? value * load(up + i, n) : value, n);
        });
    });
}

inline void activate_back(Activation kind, long count, const float* x, const float* up, const float* slope, float* dx, float* dup) {
    with_curve(kind, [&](auto curve) {
        in_pieces(count, [&](long i, int n) {
            Bend here = curve(load(x + i, n));
            Floats down = load(slope + i, n);
            if (up) store(dup + i, down * here.value, n);
            store(dx + i, (up ? down * load(up + i, n) : down) * here.slope, n);
        });
    });
}

}  // namespace SIGHTLINE_ISA
