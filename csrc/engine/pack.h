// Packing and quantization, once per matrix.
//
// A group's scale (and minimum) minimizes the error instead of covering the largest weight: among candidates around the usual scale, the one
// with the smallest Σ w² (w − scale q)², because a model depends more on its large weights than on its small ones.
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

// The best scale for integers low … high. If the range is asymmetric, the largest weight maps to `low`.
inline float best_scale(const float* w, long count, int low, int high, bool half) {
    float edge = 0.0f;
    for (long i = 0; i < count; i++)
        if (std::fabs(w[i]) > std::fabs(edge)) edge = w[i];
    if (edge == 0.0f) return 0.0f;
    const float usual = high == -low ? std::fabs(edge) / high : edge / low;
    float best = usual, best_error = INFINITY;
    const int tries = high > 100 ? 0 : 8;  // with 8 bits the usual scale is good enough
    for (int n = -tries; n <= tries; n++) {
        float scale = usual * (1.0f - 0.0125f * n);
        if (half) scale = from_float16(to_float16(scale));
        if (scale == 0.0f) break;
        float error = 0.0f, upper = 0.0f, lower = 0.0f;
        auto each = [&](float by, auto add) {
            for (long i = 0; i < count; i++) add(w[i] / edge * (w[i] / edge), w[i], (float)round_clamped(w[i] / by, low, high));
        };
        each(scale, [&](float weight, float x, float q) { upper += weight * q * x, lower += weight * q * q; });
        float fitted = lower > 0 && tries ? upper / lower : scale;  // least squares for these integers
        if (half) fitted = from_float16(to_float16(fitted));
        if (fitted == 0.0f) continue;
        each(fitted, [&](float weight, float x, float q) { error += weight * (x - fitted * q) * (x - fitted * q); });
        if (error < best_error) best_error = error, best = fitted;
    }
    return best;
}

struct Affine {
    float scale, minimum;
};
inline Affine round_to_float16(float scale, float minimum) { return {from_float16(to_float16(scale)), from_float16(to_float16(minimum))}; }

// w ≈ scale q + minimum for q from 0 to 15: candidates that clip more and more at the ends, each refined by least squares.
inline Affine best_affine(const float* w, long count) {
    const auto [low, high] = std::minmax_element(w, w + count);
    Affine best = round_to_float16((*high - *low) / 15, *low);
    float best_error = INFINITY;
    for (int n = 0; n < 16 && *high > *low; n++) {
        Affine candidate = round_to_float16((*high - *low) / (15.0f + 0.1f * n), *low + 0.05f * n * (*high - *low) / 15);
        for (int refinement = 0; refinement < 2 && candidate.scale > 0; refinement++) {
            double qs = 0, qq = 0, ws = 0, qw = 0, error = 0;
            for (long i = 0; i < count; i++) {
                const double q = round_clamped((w[i] - candidate.minimum) / candidate.scale, 0, 15), off = w[i] - candidate.scale * q - candidate.minimum;
                qs += q, qq += q * q, ws += w[i], qw += q * w[i], error += off * off;
            }
            if (error < best_error) best_error = (float)error, best = candidate;
            const double denominator = count * qq - qs * qs;
            if (denominator <= 0) break;
            const double scale = (count * qw - qs * ws) / denominator;
            candidate = round_to_float16((float)scale, (float)((ws - scale * qs) / count));
        }
    }
    return best;
}

// The packing loss of a row. Outliers can make the scale so large that all other weights round to zero: the norm of the row barely changes,
// but the row is destroyed. So count the weights that are off by more than half of their own magnitude: up to two thirds in int4 rows of
// real models, nearly all of them where an outlier sets the scale.
struct Loss {
    long count = 0, off = 0;
    void add(float w, float packed) {
        if (w == 0.0f) return;  // includes the padding of a group
        count++;
        off += std::fabs(w - packed) > 0.5f * std::fabs(w);
    }
    bool destroyed() const { return 10 * off > 9 * count; }
};

// `weights` [rows, inputs] float32 with a row stride → `data`, `scales`.
inline PackingDamage pack(const float* weights, long stride, const Packed& to) {
    std::vector<char> destroyed(to.tiles * TILE, 0);
    const bool four_bit = is_int4(to.precision), has_minimum = to.precision == Precision::int4_min;
    const bool is_float16 = to.precision == Precision::float16, is_float32 = to.precision == Precision::float32;
    const long vector_stride = 2 * to.vector_bytes();
    parallel_for(to.tiles, [&](long tile) {
        uint8_t* out = const_cast<uint8_t*>(to.tile(tile));
        std::vector<float> row(to.depth);
        if (four_bit)
            for (long v = 0; v < to.depth / 8; v++) std::fill_n(out + v * vector_stride, 32, 0);
        for (long r = 0; r < TILE; r++) {
            std::fill(row.begin(), row.end(), 0.0f);
            if (tile * TILE + r < to.rows) std::copy_n(weights + (tile * TILE + r) * stride, to.inputs, row.data());
            Loss loss;
            auto put = [&](long k, Affine by) {
                if (is_float32) return (void)(((float*)(out + k * vector_stride))[r] = row[k]);
                if (is_float16) return (void)(((uint16_t*)(out + k * vector_stride))[r] = to_float16(row[k]));
                const float exact = by.scale == 0 ? 0 : (row[k] - by.minimum) / by.scale;
                const int q = has_minimum ? round_clamped(exact, 0, 15) : four_bit ? round_clamped(exact, -8, 7) : round_clamped(exact, -127, 127);
                loss.add(row[k], by.scale * q + by.minimum);
                if (four_bit)
                    out[k / 8 * vector_stride + r * 4 + k % 4] |= (has_minimum ? q : q + 8) << (k / 4 % 2 * 4);
                else
                    ((int8_t*)(out + k / 4 * vector_stride))[r * 4 + k % 4] = (int8_t)q;
                if (to.precision == Precision::int8) to.negative_sums(tile, k / GROUP)[r] -= (int16_t)q;
            };
            Affine by{1.0f, 0.0f};
            if (to.precision == Precision::int8) {
                ((float*)to.scales)[tile * TILE + r] = by.scale = best_scale(row.data(), to.depth, -127, 127, false);
                for (long g = 0; g < to.depth / GROUP; g++) to.negative_sums(tile, g)[r] = 0;
            }
            for (long k = 0; k < to.depth; k++) {
                if (k % GROUP == 0 && (four_bit || to.precision == Precision::int8_groups)) {
                    if (has_minimum) {
                        by = best_affine(row.data() + k, GROUP);
                        const_cast<uint16_t*>(to.minima(tile, k / GROUP))[r] = to_float16(by.minimum);
                    } else {
                        by.scale = best_scale(row.data() + k, GROUP, four_bit ? -8 : -127, four_bit ? 7 : 127, true);
                    }
                    const_cast<uint16_t*>(to.group_scales(tile, k / GROUP))[r] = to_float16(by.scale);
                }
                put(k, by);
            }
            destroyed[tile * TILE + r] = loss.destroyed();
        }
    });
    PackingDamage damage;
    for (long r = 0; r < to.rows; r++)
        if (destroyed[r] && damage.rows++ == 0) damage.first = r;
    return damage;
}

// Unpacks row `row` to float32.
inline void unpack_row(const Packed& from, long row, float* to) {
    const long tile = row / TILE, r = row % TILE, vector_stride = 2 * from.vector_bytes();
    const uint8_t* data = from.tile(tile);
    auto nibble = [&](long k) { return (data[k / 8 * vector_stride + r * 4 + k % 4] >> (k / 4 % 2 * 4)) & 15; };
    for (long k = 0; k < from.inputs; k++) {
        const float scale = from.precision == Precision::int8 ? ((const float*)from.scales)[row]
                            : from.precision == Precision::int8_groups || is_int4(from.precision)
                                ? from_float16(from.group_scales(tile, k / GROUP)[r])
                                : 1.0f;
        switch (from.precision) {
            case Precision::float32: to[k] = ((const float*)(data + k * vector_stride))[r]; break;
            case Precision::float16: to[k] = from_float16(((const uint16_t*)(data + k * vector_stride))[r]); break;
            case Precision::int4: to[k] = scale * (nibble(k) - 8); break;
            case Precision::int4_min: to[k] = scale * nibble(k) + from_float16(from.minima(tile, k / GROUP)[r]); break;
            default: to[k] = scale * ((const int8_t*)(data + k / 4 * vector_stride))[r * 4 + k % 4];
        }
    }
}

}  // namespace SIGHTLINE_ISA
