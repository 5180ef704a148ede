// RoPE: each pair turned by its angle; what lies past the rotated numbers stays as it is. The way back is the other way round.
#pragma once
#include "simd/vectors.h"
#include "threads.h"
#include "training/kernels.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

inline void rotate(const Turning& by, Heads x, Heads y) {
    share(by.batch * by.time, [&](long piece) {
        const long b = piece / by.time, t = piece % by.time;
        const float *c = by.cosines + b * by.row + t * by.pairs, *s = by.sines + b * by.row + t * by.pairs;
        for (long h = 0; h < by.heads; h++) {
            const float* from = x.at(b, h, t);
            float* to = y.at(b, h, t);
            by_eight(by.pairs, [&](long i, int n) {
                Floats one = load(from + i, n), other = load(from + by.pairs + i, n), cosine = load(c + i, n), sine = load(s + i, n) * all(by.turn);
                store(to + i, one * cosine - other * sine, n);
                store(to + by.pairs + i, other * cosine + one * sine, n);
            });
            for (long i = 2 * by.pairs; i < by.dim; i++) to[i] = from[i];
        }
    });
}

}  // namespace SIGHTLINE_ISA
