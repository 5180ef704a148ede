// y = W x for one or many rows of x, with W packed. Whole-number products are exact, and floats are added in the order of k: a row's
// result is the same alone, in a batch, and on any number of threads.
#pragma once
#include "matrix.h"
#include "simd.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

// Rows of x as a matrix wants them: floats, or 8-bit numbers with a scale and a sum for each group of 32.
struct Inputs {
    const float* floats;
    long stride;
    const int8_t* bytes;   // [row][depth]
    const float* scales;   // [row][depth / 32]
    const float* sums;     // [row][depth / 32]: scale · Σ bytes
};

inline bool takes_bytes(Precision p) { return p != Precision::float32 && p != Precision::float16; }

// x → bytes, a group at a time:  scale = max |x| / 127
inline void quantise_row(const float* x, long count, long depth, int8_t* bytes, float* scales, float* sums) {
    for (long g = 0; g < depth / GROUP; g++) {
        float v[GROUP], top = 0.0f;
        const long many = count - g * GROUP < GROUP ? count - g * GROUP : GROUP;
        for (long i = 0; i < GROUP; i++) v[i] = i < many ? x[g * GROUP + i] : 0.0f;
        Floats tops = zero();
        for (long i = 0; i < GROUP; i += LANES) tops = max(tops, absolute(load(v + i)));
        top = largest(tops);
        const float scale = top / 127.0f, inverse = top > 0.0f ? 127.0f / top : 0.0f;
        int total = 0;
        for (long i = 0; i < GROUP; i += LANES) {
            float rounded[LANES];
            store(rounded, nearest(load(v + i) * all(inverse)));
            for (int j = 0; j < LANES; j++) bytes[g * GROUP + i + j] = (int8_t)rounded[j], total += (int)rounded[j];
        }
        scales[g] = scale, sums[g] = scale * total;
    }
}

// Two tiles (16 outputs) for ROWS rows of x, all of k: sums[row][tile].
template <int ROWS, Precision P>
inline void two_tiles(const Packed& w, long tile, const Inputs& x, long row, Floats sums[ROWS][2]) {
    const uint8_t* data[2] = {w.data + tile * w.tile_bytes(), w.data + (tile + 1) * w.tile_bytes()};
    for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = zero();
    if constexpr (P == Precision::float32 || P == Precision::float16) {
        const float* at = x.floats + row * x.stride;
        for (long k = 0; k < w.inputs; k++) {
            Floats weights[2];
            for (int t = 0; t < 2; t++)
                weights[t] = P == Precision::float32 ? load((const float*)data[t] + k * TILE) : load_half((const uint16_t*)data[t] + k * TILE);
            for (int r = 0; r < ROWS; r++) {
                Floats a = all(at[r * x.stride + k]);
                for (int t = 0; t < 2; t++) sums[r][t] = fma(a, weights[t], sums[r][t]);
            }
        }
    } else {
        const long groups = w.depth / GROUP;
        const int8_t* bytes = x.bytes + row * w.depth;
        const uint16_t* scales[2] = {};
        if (P != Precision::int8)
            for (int t = 0; t < 2; t++) scales[t] = (const uint16_t*)w.scales + (tile + t) * TILE * groups;
        for (long g = 0; g < groups; g++) {
            Floats scale[2];
            if (P != Precision::int8)
                for (int t = 0; t < 2; t++) scale[t] = load_half(scales[t] + g * TILE);
            if constexpr (P == Precision::int4) {
                Shorts found[ROWS][2];
                for (int r = 0; r < ROWS; r++) found[r][0] = found[r][1] = no_shorts();
                for (int t = 0; t < 2; t++)
                    for (int j = 0; j < 4; j++) {
                        Bytes both = load_bytes(data[t] + g * 128 + j * 32), low = low_nibbles(both), high = high_nibbles(both);
                        for (int r = 0; r < ROWS; r++) {
                            const int8_t* a = bytes + r * w.depth + g * GROUP + j * 8;
                            found[r][t] = dot_pairs(dot_pairs(found[r][t], low, four(a)), high, four(a + 4));
                        }
                    }
                for (int r = 0; r < ROWS; r++) {
                    const long at = (row + r) * groups + g;
                    Floats by = all(x.scales[at]), less = all(-8.0f * x.sums[at]);
                    for (int t = 0; t < 2; t++) sums[r][t] = fma(fma(floats(fours(found[r][t])), by, less), scale[t], sums[r][t]);
                }
            } else {
                Ints found[ROWS][2];
                for (int r = 0; r < ROWS; r++) found[r][0] = found[r][1] = no_ints();
                for (int j = 0; j < 8; j++) {
                    Bytes weights[2] = {load_bytes(data[0] + g * 256 + j * 32), load_bytes(data[1] + g * 256 + j * 32)};
                    for (int r = 0; r < ROWS; r++) {
                        Four a = four(bytes + r * w.depth + g * GROUP + j * 4);
                        for (int t = 0; t < 2; t++) found[r][t] = dot_four(found[r][t], weights[t], a);
                    }
                }
                for (int r = 0; r < ROWS; r++) {
                    Floats by = all(x.scales[(row + r) * groups + g]);
                    for (int t = 0; t < 2; t++)
                        sums[r][t] = fma(floats(found[r][t]), P == Precision::int8 ? by : by * scale[t], sums[r][t]);
                }
            }
        }
        if (P == Precision::int8)
            for (int t = 0; t < 2; t++) {
                Floats scale = load((const float*)w.scales + (tile + t) * TILE);
                for (int r = 0; r < ROWS; r++) sums[r][t] = sums[r][t] * scale;
            }
    }
}

// All pairs of tiles from `first` to `last`, rows from `top` to `end`; `done(row, tile, sums of two tiles)` says what becomes of them.
template <Precision P, class Done>
inline void multiply(const Packed& w, const Inputs& x, long top, long end, long first, long last, const Done& done) {
    constexpr int MANY = P == Precision::float32 || P == Precision::float16 ? 6 : 4;
    for (long tile = first; tile < last; tile += 2) {
        long row = top;
        for (; row + MANY <= end; row += MANY) {
            Floats sums[MANY][2];
            two_tiles<MANY, P>(w, tile, x, row, sums);
            for (int r = 0; r < MANY; r++) done(row + r, tile, sums[r]);
        }
        for (; row + 2 <= end; row += 2) {
            Floats sums[2][2];
            two_tiles<2, P>(w, tile, x, row, sums);
            for (int r = 0; r < 2; r++) done(row + r, tile, sums[r]);
        }
        for (; row < end; row++) {
            Floats sums[1][2];
            two_tiles<1, P>(w, tile, x, row, sums);
            done(row, tile, sums[0]);
        }
    }
}

template <class Done>
inline void multiply(const Packed& w, const Inputs& x, long top, long end, long first, long last, const Done& done) {
    switch (w.precision) {
        case Precision::float32: return multiply<Precision::float32>(w, x, top, end, first, last, done);
        case Precision::float16: return multiply<Precision::float16>(w, x, top, end, first, last, done);
        case Precision::int8: return multiply<Precision::int8>(w, x, top, end, first, last, done);
        case Precision::int8_groups: return multiply<Precision::int8_groups>(w, x, top, end, first, last, done);
        case Precision::int4: return multiply<Precision::int4>(w, x, top, end, first, last, done);
    }
}

}  // namespace SIGHTLINE_ISA
