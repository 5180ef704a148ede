// RoPE: each pair is rotated by its angle; elements past the rotated ones are copied. The gradient is the rotation by −angle.
#pragma once
#include "simd/vectors.h"
#include "threads.h"
#include "training/kernels.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

inline void rotate(const Rotation& by, Heads x, Heads y) {
    parallel_for(by.batch * by.time, [&](long task) {
        const long b = task / by.time, t = task % by.time;
        const float *c = by.cosines + b * by.row + t * by.pairs, *s = by.sines + b * by.row + t * by.pairs;
        for (long h = 0; h < by.heads; h++) {
            const float* from = x.at(b, h, t);
            float* to = y.at(b, h, t);
            for_each_vector(by.pairs, [&](long i, int n) {
                Floats left = load(from + i, n), right = load(from + by.pairs + i, n), cosine = load(c + i, n), sine = load(s + i, n) * broadcast(by.direction);
                store(to + i, left * cosine - right * sine, n);
                store(to + by.pairs + i, right * cosine + left * sine, n);
            });
            for (long i = 2 * by.pairs; i < by.dim; i++) to[i] = from[i];
        }
    });
}

}  // namespace SIGHTLINE_ISA
