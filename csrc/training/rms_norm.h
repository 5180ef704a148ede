// RMSNorm and its gradient:  r = 1 / √(mean x² + ε),  y = x r g
//
//     dx = r (g ∘ dy − x r² mean(g ∘ dy ∘ x))        dg = Σ_rows dy ∘ x r
#pragma once
#include <cmath>

#include "simd/vectors.h"
#include "threads.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

inline void rms_norm(long rows, long width, const float* x, const float* gain, float epsilon, float* y, float* inverse) {
    parallel_for((rows + RMS_ROWS_PER_TASK - 1) / RMS_ROWS_PER_TASK, [&](long task) {
        for (long row = task * RMS_ROWS_PER_TASK; row < rows && row < (task + 1) * RMS_ROWS_PER_TASK; row++) {
            const float* from = x + row * width;
            Floats squares = zero();
            for_each_vector(width, [&](long i, int n) { squares = fma(load(from + i, n), load(from + i, n), squares); });
            const float r = inverse[row] = 1.0f / std::sqrt(sum(squares) / width + epsilon);
            for_each_vector(width, [&](long i, int n) {
                Floats scaled = load(from + i, n) * broadcast(r);
                store(y + row * width + i, gain ? scaled * load(gain + i, n) : scaled, n);
            });
        }
    });
}

// `scratch` holds one gain gradient per task; they are added in order, so the sum does not depend on the threads.
inline void rms_norm_backward(long rows, long width, const float* x, const float* gain, const float* inverse, const float* gradient, float* dx,
                          float* dgain, float* scratch) {
    const long tasks = (rows + RMS_ROWS_PER_TASK - 1) / RMS_ROWS_PER_TASK;
    parallel_for(tasks, [&](long task) {
        float* task_dgain = dgain ? scratch + task * width : nullptr;
        if (task_dgain) std::memset(task_dgain, 0, width * sizeof(float));
        for (long row = task * RMS_ROWS_PER_TASK; row < rows && row < (task + 1) * RMS_ROWS_PER_TASK; row++) {
            const float *from = x + row * width, *dy = gradient + row * width;
            const float r = inverse[row];
            Floats dots = zero();
            auto scaled = [&](long i, int n) { return gain ? load(dy + i, n) * load(gain + i, n) : load(dy + i, n); };
            for_each_vector(width, [&](long i, int n) { dots = fma(scaled(i, n), load(from + i, n), dots); });
            const float shrink = sum(dots) / width * r * r;
            for_each_vector(width, [&](long i, int n) {
                Floats value = load(from + i, n);
                store(dx + row * width + i, broadcast(r) * (scaled(i, n) - value * broadcast(shrink)), n);
                if (task_dgain) store(task_dgain + i, fma(load(dy + i, n) * value, broadcast(r), load(task_dgain + i, n)), n);
            });
        }
    });
    if (!dgain) return;
    std::memcpy(dgain, scratch, width * sizeof(float));
    for (long task = 1; task < tasks; task++)
        for_each_vector(width, [&](long i, int n) { store(dgain + i, load(dgain + i, n) + load(scratch + task * width + i, n), n); });
}

}  // namespace SIGHTLINE_ISA
