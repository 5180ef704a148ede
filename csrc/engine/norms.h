// Norms of one row, in place of what is read.
#pragma once
#include <cmath>

#include "engine/engine.h"
#include "simd/vectors.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

inline Floats moved(const Norm& norm, Floats x, long i, int n) {
    if (norm.gain) x = x * load(norm.gain + i, n);
    return norm.bias ? x + load(norm.bias + i, n) : x;
}

inline void norm_row(const Norm& norm, const float* x, long width, float* y) {
    float mean = 0.0f, inverse = 1.0f;
    if (norm.kind == NormKind::none) {
        if (x != y) std::memcpy(y, x, width * sizeof(float));
        return;
    }
    if (norm.kind == NormKind::layer) {
        Floats total = zero();
        by_eight(width, [&](long i, int n) { total = total + load(x + i, n); });
        mean = sum(total) / width;
    }
    Floats squares = zero();
    by_eight(width, [&](long i, int n) {
        Floats d = load(x + i, n, mean) - all(mean);
        squares = fma(d, d, squares);
    });
    const float square = sum(squares);
    if (norm.kind == NormKind::unit)
        inverse = 1.0f / std::max(std::sqrt(square), 1e-12f);
    else
        inverse = 1.0f / std::sqrt(square / width + norm.epsilon);
    by_eight(width, [&](long i, int n) { store(y + i, moved(norm, (load(x + i, n) - all(mean)) * all(inverse), i, n), n); });
}

}  // namespace SIGHTLINE_ISA
