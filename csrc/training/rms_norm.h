// RMSNorm and its gradient:  r = 1 / √(mean x² + ε),  y = x r g
//
//     dx = r (g ∘ dy − x r² mean(g ∘ dy ∘ x))        dg = Σ_rows dy ∘ x r
#pragma once
#include <cmath>

#include "simd/vectors.h"
#include "threads.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

constexpr long ROWS_TOGETHER = 32;

inline void rms_norm(long rows, long width, const float* x, const float* gain, float epsilon, float* y, float* inverse) {
    share((rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER, [&](long piece) {
        for (long row = piece * ROWS_TOGETHER; row < rows && row < (piece + 1) * ROWS_TOGETHER; row++) {
            const float* from = x + row * width;
            Floats squares = zero();
            by_eight(width, [&](long i, int n) { squares = fma(load(from + i, n), load(from + i, n), squares); });
            const float r = inverse[row] = 1.0f / std::sqrt(sum(squares) / width + epsilon);
            by_eight(width, [&](long i, int n) {
                Floats scaled = load(from + i, n) * all(r);
                store(y + row * width + i, gain ? scaled * load(gain + i, n) : scaled, n);
            });
        }
    });
}

// `scratch` has room for one gain of each piece; they are added in order, so the sum does not depend on the threads.
inline void rms_norm_back(long rows, long width, const float* x, const float* gain, const float* inverse, const float* slope, float* dx,
                          float* dgain, float* scratch) {
    const long pieces = (rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
    share(pieces, [&](long piece) {
        float* own = dgain ? scratch + piece * width : nullptr;
        if (own) std::memset(own, 0, width * sizeof(float));
        for (long row = piece * ROWS_TOGETHER; row < rows && row < (piece + 1) * ROWS_TOGETHER; row++) {
            const float *from = x + row * width, *down = slope + row * width;
            const float r = inverse[row];
            Floats dots = zero();
            auto wanted = [&](long i, int n) { return gain ? load(down + i, n) * load(gain + i, n) : load(down + i, n); };
            by_eight(width, [&](long i, int n) { dots = fma(wanted(i, n), load(from + i, n), dots); });
            const float shrink = sum(dots) / width * r * r;
            by_eight(width, [&](long i, int n) {
                Floats here = load(from + i, n);
                store(dx + row * width + i, all(r) * (wanted(i, n) - here * all(shrink)), n);
                if (own) store(own + i, fma(load(down + i, n) * here, all(r), load(own + i, n)), n);
            });
        }
    });
    if (!dgain) return;
    std::memcpy(dgain, scratch, width * sizeof(float));
    for (long piece = 1; piece < pieces; piece++)
        by_eight(width, [&](long i, int n) { store(dgain + i, load(dgain + i, n) + load(scratch + piece * width + i, n), n); });
}

}  // namespace SIGHTLINE_ISA
