// act(x) and act′(x) for a vector.
//
//     gelu  x Φ(x)      silu  x / (1 + e⁻ˣ)      gelu_tanh  x σ(2 √(2/π) (x + 0.044715 x³))
#pragma once
#include "activation.h"
#include "simd/vectors.h"

namespace SIGHTLINE_ISA {
using sightline::Activation;

struct ValueAndGradient {
    Floats value, gradient;
};

inline Floats sigmoid(Floats x) { return broadcast(1.0f) / (broadcast(1.0f) + exponential(zero() - x)); }

// Φ by Abramowitz and Stegun 7.1.26, with an error below 2e-7.
inline ValueAndGradient gelu(Floats x) {
    Floats z = absolute(x) * broadcast(0.70710678f), bell = exponential(zero() - z * z);
    Floats t = broadcast(1.0f) / fma(z, broadcast(0.3275911f), broadcast(1.0f));
    Floats p = broadcast(1.061405429f);
    p = fma(p, t, broadcast(-1.453152027f));
    p = fma(p, t, broadcast(1.421413741f));
    p = fma(p, t, broadcast(-0.284496736f));
    p = fma(p, t, broadcast(0.254829592f));
    Floats tail = p * t * bell * broadcast(0.5f);  // 1 − Φ(|x|)
    Floats phi = select_less(x, zero(), tail, broadcast(1.0f) - tail);
    return {x * phi, fma(x * broadcast(0.39894228f), bell, phi)};
}
inline ValueAndGradient silu(Floats x) {
    Floats s = sigmoid(x);
    return {x * s, s * fma(x, broadcast(1.0f) - s, broadcast(1.0f))};
}
inline ValueAndGradient gelu_tanh(Floats x) {
    Floats square = x * x, inner = x * fma(square, broadcast(2 * 0.79788456f * 0.044715f), broadcast(2 * 0.79788456f));
    Floats s = sigmoid(inner), rise = fma(square, broadcast(3 * 2 * 0.79788456f * 0.044715f), broadcast(2 * 0.79788456f));
    return {x * s, fma(x * s * (broadcast(1.0f) - s), rise, s)};
}
inline ValueAndGradient relu(Floats x) { return {max(x, zero()), select_less(zero(), x, broadcast(1.0f), zero())}; }
inline Floats tanh(Floats x) { return broadcast(1.0f) - broadcast(2.0f) / (exponential(x + x) + broadcast(1.0f)); }

// act(x) without the gradient, for every activation.
inline Floats activate(Activation activation, Floats x) {
    switch (activation) {
        case Activation::none: return x;
        case Activation::relu: return max(x, zero());
        case Activation::gelu: return gelu(x).value;
        case Activation::gelu_tanh: return gelu_tanh(x).value;
        case Activation::silu: return silu(x).value;
        case Activation::relu_squared: return max(x, zero()) * max(x, zero());
        case Activation::tanh: return tanh(x);
    }
    return x;
}

}  // namespace SIGHTLINE_ISA
