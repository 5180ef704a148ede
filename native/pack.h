// Packing and quantising, once for each matrix.
//
// A group's scale is chosen by error, not by its largest number: of some candidates around the usual one, the one with the smallest
// Σ (w − scale q)².
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "matrix.h"
#include "simd.h"
#include "threads.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

inline uint16_t half_of(float x) {
    float v[LANES] = {x};
    uint16_t h[LANES];
    store_half(h, load(v));
    return h[0];
}
inline float float_of(uint16_t h) {
    uint16_t v[LANES] = {h};
    float f[LANES];
    store(f, load_half(v));
    return f[0];
}

inline int rounded_to(float x, int low, int high) { return std::min(high, std::max(low, (int)std::nearbyintf(x))); }

// The scale for whole numbers low … high. `signed_edge`: the largest number is put on `low`, which has no partner on the other side.
inline float best_scale(const float* w, long count, int low, int high, bool half) {
    float edge = 0.0f;
    for (long i = 0; i < count; i++)
        if (std::fabs(w[i]) > std::fabs(edge)) edge = w[i];
    if (edge == 0.0f) return 0.0f;
    const float usual = high == -low ? std::fabs(edge) / high : edge / low;
    float best = usual, least = INFINITY;
    const int tries = high > 100 ? 1 : 12;  // with 8 bits the largest number decides well enough
    for (int n = 0; n < tries; n++) {
        float scale = usual * (1.0f - 0.02f * n);
        if (half) scale = float_of(half_of(scale));
        if (scale == 0.0f) break;
        float error = 0.0f, upper = 0.0f, lower = 0.0f, q;
        for (long i = 0; i < count; i++) q = rounded_to(w[i] / scale, low, high), upper += q * w[i], lower += q * q;
        float fitted = lower > 0 && tries > 1 ? upper / lower : scale;  // least squares for these whole numbers
        if (half) fitted = float_of(half_of(fitted));
        if (fitted == 0.0f) continue;
        for (long i = 0; i < count; i++) q = rounded_to(w[i] / fitted, low, high), error += (w[i] - fitted * q) * (w[i] - fitted * q);
        if (error < least) least = error, best = fitted;
    }
    return best;
}

// `weights` [rows, inputs] float32 with a row stride → `data`, `scales`.
inline void pack(const float* weights, long stride, const Packed& to) {
    uint8_t* data = const_cast<uint8_t*>(to.data);
    share(to.tiles, [&](long tile) {
        std::vector<float> rows(TILE * to.depth, 0.0f);
        for (long r = 0; r < TILE; r++)
            if (tile * TILE + r < to.rows) std::copy_n(weights + (tile * TILE + r) * stride, to.inputs, rows.data() + r * to.depth);
        uint8_t* out = data + tile * to.tile_bytes();
        if (to.precision == Precision::float32) {
            for (long k = 0; k < to.depth; k++)
                for (long r = 0; r < TILE; r++) ((float*)out)[k * TILE + r] = rows[r * to.depth + k];
        } else if (to.precision == Precision::float16) {
            for (long k = 0; k < to.depth; k++)
                for (long r = 0; r < TILE; r++) ((uint16_t*)out)[k * TILE + r] = half_of(rows[r * to.depth + k]);
        } else if (to.precision == Precision::int8) {
            float* scales = (float*)to.scales + tile * TILE;
            for (long r = 0; r < TILE; r++) {
                const float* row = rows.data() + r * to.depth;
                const float scale = scales[r] = best_scale(row, to.depth, -127, 127, false);
                for (long k = 0; k < to.depth; k++)
                    ((int8_t*)out)[k / 4 * 32 + r * 4 + k % 4] = scale == 0 ? 0 : rounded_to(row[k] / scale, -127, 127);
            }
        } else {
            const bool four = to.precision == Precision::int4;
            uint16_t* scales = (uint16_t*)to.scales + tile * TILE * (to.depth / GROUP);
            if (four) std::fill_n(out, to.tile_bytes(), 0);
            for (long g = 0; g < to.depth / GROUP; g++)
                for (long r = 0; r < TILE; r++) {
                    const float* w = rows.data() + r * to.depth + g * GROUP;
                    const float scale = four ? best_scale(w, GROUP, -8, 7, true) : best_scale(w, GROUP, -127, 127, true);
                    scales[g * TILE + r] = half_of(scale);
                    for (long i = 0; i < GROUP; i++) {
                        const long k = g * GROUP + i;
                        if (!four)
                            ((int8_t*)out)[k / 4 * 32 + r * 4 + k % 4] = scale == 0 ? 0 : rounded_to(w[i] / scale, -127, 127);
                        else
                            out[k / 8 * 32 + r * 4 + k % 4] |= (scale == 0 ? 8 : rounded_to(w[i] / scale, -8, 7) + 8) << (k / 4 % 2 * 4);
                    }
                }
        }
    });
}

// Row `row` as it is after packing, in float32.
inline void unpack_row(const Packed& from, long row, float* to) {
    const long tile = row / TILE, r = row % TILE;
    const uint8_t* data = from.data + tile * from.tile_bytes();
    const uint16_t* halves = (const uint16_t*)from.scales + tile * TILE * (from.depth / GROUP);
    for (long k = 0; k < from.inputs; k++) {
        if (from.precision == Precision::float32) to[k] = ((const float*)data)[k * TILE + r];
        if (from.precision == Precision::float16) to[k] = float_of(((const uint16_t*)data)[k * TILE + r]);
        if (from.precision == Precision::int8)
            to[k] = ((const float*)from.scales)[row] * ((const int8_t*)data)[k / 4 * 32 + r * 4 + k % 4];
        if (from.precision == Precision::int8_groups)
            to[k] = float_of(halves[k / GROUP * TILE + r]) * ((const int8_t*)data)[k / 4 * 32 + r * 4 + k % 4];
        if (from.precision == Precision::int4)
            to[k] = float_of(halves[k / GROUP * TILE + r]) * (((data[k / 8 * 32 + r * 4 + k % 4] >> (k / 4 % 2 * 4)) & 15) - 8);
    }
}

}  // namespace SIGHTLINE_ISA
