// Packing and quantising, once for each matrix.
//
// A group's scale (and minimum) is chosen by error, not by its largest number: of some candidates around the usual one, that with the
// smallest Σ w² (w − scale q)², for a model depends on its large numbers more than on its small ones.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/matrix.h"
#include "simd/vectors.h"
#include "threads.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

inline uint16_t to_float16(float x) {
    float v[LANES] = {x};
    uint16_t h[LANES];
    store_half(h, load(v));
    return h[0];
}
inline float from_float16(uint16_t h) {
    uint16_t v[LANES] = {h};
    float f[LANES];
    store(f, load_half(v));
    return f[0];
}

inline int round_clamped(float x, int low, int high) { return std::min(high, std::max(low, (int)std::nearbyintf(x))); }

// The scale for whole numbers low … high. Where low has no partner on the other side, the largest number is put there.
inline float best_scale(const float* w, long count, int low, int high, bool half) {
    float edge = 0.0f;
    for (long i = 0; i < count; i++)
        if (std::fabs(w[i]) > std::fabs(edge)) edge = w[i];
    if (edge == 0.0f) return 0.0f;
    const float usual = high == -low ? std::fabs(edge) / high : edge / low;
    float best = usual, least = INFINITY;
    const int tries = high > 100 ? 0 : 8;  // with 8 bits the largest number decides well enough
    for (int n = -tries; n <= tries; n++) {
        float scale = usual * (1.0f - 0.0125f * n);
        if (half) scale = from_float16(to_float16(scale));
        if (scale == 0.0f) break;
        float error = 0.0f, upper = 0.0f, lower = 0.0f;
        auto each = [&](float by, auto add) {
            for (long i = 0; i < count; i++) add(w[i] / edge * (w[i] / edge), w[i], (float)round_clamped(w[i] / by, low, high));
        };
        each(scale, [&](float weight, float x, float q) { upper += weight * q * x, lower += weight * q * q; });
        float fitted = lower > 0 && tries ? upper / lower : scale;  // least squares for these whole numbers
        if (half) fitted = from_float16(to_float16(fitted));
        if (fitted == 0.0f) continue;
        each(fitted, [&](float weight, float x, float q) { error += weight * (x - fitted * q) * (x - fitted * q); });
        if (error < least) least = error, best = fitted;
    }
    return best;
}

struct Affine {
    float scale, minimum;
};
inline Affine round_to_float16(float scale, float minimum) { return {from_float16(to_float16(scale)), from_float16(to_float16(minimum))}; }

// w ≈ scale q + minimum for q from 0 to 15: candidates with ever less room at the ends, each fitted by least squares.
inline Affine best_affine(const float* w, long count) {
    const auto [low, high] = std::minmax_element(w, w + count);
    Affine best = round_to_float16((*high - *low) / 15, *low);
    float least = INFINITY;
    for (int n = 0; n < 16 && *high > *low; n++) {
        Affine tried = round_to_float16((*high - *low) / (15.0f + 0.1f * n), *low + 0.05f * n * (*high - *low) / 15);
        for (int again = 0; again < 2 && tried.scale > 0; again++) {
            double qs = 0, qq = 0, ws = 0, qw = 0, error = 0;
            for (long i = 0; i < count; i++) {
                const double q = round_clamped((w[i] - tried.minimum) / tried.scale, 0, 15), off = w[i] - tried.scale * q - tried.minimum;
                qs += q, qq += q * q, ws += w[i], qw += q * w[i], error += off * off;
            }
            if (error < least) least = (float)error, best = tried;
            const double denominator = count * qq - qs * qs;
            if (denominator <= 0) break;
            const double scale = (count * qw - qs * ws) / denominator;
            tried = round_to_float16((float)scale, (float)((ws - scale * qs) / count));
        }
    }
    return best;
}

// What a row loses by packing. Where some numbers are so large that their scale rounds the others to zero, hardly anything is missing of
// the whole row's size, and yet most of it is gone: so what counts is how many numbers are off by more than half of their own size. In rows
// of real models with four bits these may be two in three; where one number makes the scale, they are all but a few.
struct Loss {
    long numbers = 0, off = 0;
    void add(float w, float packed) {
        if (w == 0.0f) return;  // what fills a group, too
        numbers++;
        off += std::fabs(w - packed) > 0.5f * std::fabs(w);
    }
    bool destroyed() const { return 10 * off > 9 * numbers; }
};

// `weights` [rows, inputs] float32 with a row stride → `data`, `scales`.
inline PackingDamage pack(const float* weights, long stride, const Packed& to) {
    std::vector<char> destroyed(to.tiles * TILE, 0);
    const bool four = is_int4(to.precision), above = to.precision == Precision::int4_min;
    const bool halves = to.precision == Precision::float16, whole = to.precision == Precision::float32;
    const long apart = 2 * to.vector_bytes();
    parallel_for(to.tiles, [&](long tile) {
        uint8_t* out = const_cast<uint8_t*>(to.tile(tile));
        std::vector<float> row(to.depth);
        if (four)
            for (long v = 0; v < to.depth / 8; v++) std::fill_n(out + v * apart, 32, 0);
        for (long r = 0; r < TILE; r++) {
            std::fill(row.begin(), row.end(), 0.0f);
            if (tile * TILE + r < to.rows) std::copy_n(weights + (tile * TILE + r) * stride, to.inputs, row.data());
            Loss loss;
            auto put = [&](long k, Affine by) {
                if (whole) return (void)(((float*)(out + k * apart))[r] = row[k]);
                if (halves) return (void)(((uint16_t*)(out + k * apart))[r] = to_float16(row[k]));
                const float exact = by.scale == 0 ? 0 : (row[k] - by.minimum) / by.scale;
                const int q = above ? round_clamped(exact, 0, 15) : four ? round_clamped(exact, -8, 7) : round_clamped(exact, -127, 127);
                loss.add(row[k], by.scale * q + by.minimum);
                if (four)
                    out[k / 8 * apart + r * 4 + k % 4] |= (above ? q : q + 8) << (k / 4 % 2 * 4);
                else
                    ((int8_t*)(out + k / 4 * apart))[r * 4 + k % 4] = (int8_t)q;
                if (to.precision == Precision::int8) to.negative_sums(tile, k / GROUP)[r] -= (int16_t)q;
            };
            Affine by{1.0f, 0.0f};
            if (to.precision == Precision::int8) {
                ((float*)to.scales)[tile * TILE + r] = by.scale = best_scale(row.data(), to.depth, -127, 127, false);
                for (long g = 0; g < to.depth / GROUP; g++) to.negative_sums(tile, g)[r] = 0;
            }
            for (long k = 0; k < to.depth; k++) {
                if (k % GROUP == 0 && (four || to.precision == Precision::int8_groups)) {
                    if (above) {
                        by = best_affine(row.data() + k, GROUP);
                        const_cast<uint16_t*>(to.minima(tile, k / GROUP))[r] = to_float16(by.minimum);
                    } else {
                        by.scale = best_scale(row.data() + k, GROUP, four ? -8 : -127, four ? 7 : 127, true);
                    }
                    const_cast<uint16_t*>(to.group_scales(tile, k / GROUP))[r] = to_float16(by.scale);
                }
                put(k, by);
            }
            destroyed[tile * TILE + r] = loss.destroyed();
        }
    });
    PackingDamage found;
    for (long r = 0; r < to.rows; r++)
        if (destroyed[r] && found.rows++ == 0) found.first = r;
    return found;
}

// Row `row` as it is after packing, in float32.
inline void unpack_row(const Packed& from, long row, float* to) {
    const long tile = row / TILE, r = row % TILE, apart = 2 * from.vector_bytes();
    const uint8_t* data = from.tile(tile);
    auto nibble = [&](long k) { return (data[k / 8 * apart + r * 4 + k % 4] >> (k / 4 % 2 * 4)) & 15; };
    for (long k = 0; k < from.inputs; k++) {
        const float scale = from.precision == Precision::int8 ? ((const float*)from.scales)[row]
                            : from.precision == Precision::int8_groups || is_int4(from.precision)
                                ? from_float16(from.group_scales(tile, k / GROUP)[r])
                                : 1.0f;
        switch (from.precision) {
            case Precision::float32: to[k] = ((const float*)(data + k * apart))[r]; break;
            case Precision::float16: to[k] = from_float16(((const uint16_t*)(data + k * apart))[r]); break;
            case Precision::int4: to[k] = scale * (nibble(k) - 8); break;
            case Precision::int4_min: to[k] = scale * nibble(k) + from_float16(from.minima(tile, k / GROUP)[r]); break;
            default: to[k] = scale * ((const int8_t*)(data + k / 4 * apart))[r * 4 + k % 4];
        }
    }
}

}  // namespace SIGHTLINE_ISA
