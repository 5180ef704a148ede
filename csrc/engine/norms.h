// Norms of one row.
#pragma once
#include <cmath>

#include "engine/engine.h"
#include "simd/vectors.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

inline void norm_row(NormKind kind, float epsilon, const float* gain, const float* bias, const float* x, long width, float* y) {
    float mean = 0.0f, inverse = 1.0f;
    if (kind == NormKind::none) {
        if (x != y) std::memcpy(y, x, width * sizeof(float));
        return;
    }
    if (kind == NormKind::layer) {
        Floats total = zero();
        for_each_vector(width, [&](long i, int n) { total = total + load(x + i, n); });
        mean = sum(total) / width;
    }
    Floats squares = zero();
    for_each_vector(width, [&](long i, int n) {
        Floats d = load(x + i, n, mean) - broadcast(mean);
        squares = fma(d, d, squares);
    });
    const float square = sum(squares);
    if (kind == NormKind::unit)
        inverse = 1.0f / std::max(std::sqrt(square), 1e-12f);
    else
        inverse = 1.0f / std::sqrt(square / width + epsilon);
    for_each_vector(width, [&](long i, int n) {
        Floats value = (load(x + i, n) - broadcast(mean)) * broadcast(inverse);
        if (gain) value = value * load(gain + i, n);
        store(y + i, bias ? value + load(bias + i, n) : value, n);
    });
}

inline void norm_row(const Norm& norm, const float* x, long width, float* y) {
    norm_row(norm.kind, norm.epsilon, norm.gain.data, norm.bias.data, x, width, y);
}
inline void unit_row(const float* gain, float* x, long width) { norm_row(NormKind::unit, 0, gain, nullptr, x, width, x); }

}  // namespace SIGHTLINE_ISA
