// y = W x for one or many rows of x, with W packed. Whole-number products are exact, and floats are added in an order that only k
// decides: a row's result is the same alone, in a batch, and on any number of threads.
#pragma once
#include "matrix.h"
#include "simd.h"

// Kernels are compiled by themselves: what is done with their sums must not take their registers.
#if defined(__GNUC__)
#define SIGHTLINE_APART __attribute__((noinline))
#else
#define SIGHTLINE_APART
#endif

namespace SIGHTLINE_ISA {
using namespace sightline;

// Rows of x as a matrix wants them: floats, or 8-bit numbers with a scale (and a sum) for each group.
struct Inputs {
    const float* floats;
    long stride;
    const int8_t* bytes;   // [row][depth]
    const float* scales;   // [row][groups]
    const float* sums;     // [row][groups]: scale · Σ bytes
};

// How activations are counted: from −127 to 127; for int8 from −63 to 63 with 64 added, for products of 7 by 8 bits fit 16 without signs.
struct Counting {
    float most, shift;
    static Counting of(Precision p) { return p == Precision::int8 ? Counting{63.0f, 64.0f} : Counting{127.0f, 0.0f}; }
};

// x → bytes, a group at a time:  scale = max |x| / most
inline void quantise_row(const Counting& by, const float* x, long count, long depth, int8_t* bytes, float* scales, float* sums) {
    for (long start = 0; start < depth; start += GROUP) {
        Floats v[4], tops = zero(), total = zero();
        for (int j = 0; j < 4; j++) {
            const long at = start + j * LANES, many = count - at < LANES ? count - at : LANES;
            v[j] = many > 0 ? load(x + at, (int)many) : zero();
            tops = max(tops, absolute(v[j]));
        }
        const float top = largest(tops), scale = top / by.most, inverse = top > 0.0f ? by.most / top : 0.0f;
        for (int j = 0; j < 4; j++) v[j] = nearest(v[j] * all(inverse)), total = total + v[j], v[j] = v[j] + all(by.shift);
        store_bytes(bytes + start, v[0], v[1], v[2], v[3]);
        scales[start / GROUP] = scale, sums[start / GROUP] = scale * sum(total);
    }
}

constexpr long SPAN = 128;    // floats are added in spans of k, then the spans: less is lost than in one long chain
constexpr long AHEAD = 2048;  // bytes that are asked for before they are needed

// A pair of tiles (16 outputs) for ROWS rows of x, all of k: sums[row][tile], where each row of the matrix has one scale.
template <int ROWS>
SIGHTLINE_APART void pair_of_whole_tiles(const Packed& w, long tile, const Inputs& x, long row, Floats sums[ROWS][2]) {
    const uint8_t* data = w.tile(tile);
    const int8_t* bytes = x.bytes + row * w.depth;
    const long groups = w.depth / GROUP;
    const float* scales = x.scales + row * groups;
    const int16_t* less_sums = w.less_sums(tile, 0);
    for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = zero();
    for (long g = 0; g < groups; g++, less_sums += 2 * TILE) {
        Ints whole[ROWS][2];
        for (int t = 0; t < 2; t++) {
            const Ints start = ROWS == 1 ? no_ints() : load_times_64(less_sums + t * TILE);
            for (int r = 0; r < ROWS; r++) whole[r][t] = start;
        }
        for (int j = 0; j < GROUP / 4; j++, data += 64, bytes += 4) {
            if (ROWS == 1) prefetch(data + AHEAD);
            Bytes weights[2] = {load_bytes(data), load_bytes(data + 32)};
            for (int r = 0; r < ROWS; r++) {
                if constexpr (ROWS == 1) {  // memory is the limit: the sums need not be read
                    Four a = four_less(bytes, 64);
                    for (int t = 0; t < 2; t++) whole[r][t] = dot_four(whole[r][t], weights[t], a);
                } else {
                    auto a = four_unsigned(bytes + r * w.depth);
                    for (int t = 0; t < 2; t++) whole[r][t] = dot_four_unsigned(whole[r][t], weights[t], a);
                }
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < 2; t++) sums[r][t] = fma(floats(whole[r][t]), all(scales[r * groups + g]), sums[r][t]);
    }
    for (int t = 0; t < 2; t++) {
        Floats scale = load((const float*)w.scales + (tile + t) * TILE);
        for (int r = 0; r < ROWS; r++) sums[r][t] = sums[r][t] * scale;
    }
}

// The same of all other precisions.
template <int ROWS, Precision P>
SIGHTLINE_APART void pair_of_tiles(const Packed& w, long tile, const Inputs& x, long row, Floats sums[ROWS][2]) {
    if constexpr (P == Precision::int8) return pair_of_whole_tiles<ROWS>(w, tile, x, row, sums);
    const uint8_t* data = w.tile(tile);
    for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = zero();
    if constexpr (P == Precision::float32 || P == Precision::float16) {
        const float* at = x.floats + row * x.stride;
        for (long start = 0; start < w.inputs; start += SPAN) {
            Floats part[ROWS][2];
            for (int r = 0; r < ROWS; r++) part[r][0] = part[r][1] = zero();
            for (long k = start; k < (w.inputs < start + SPAN ? w.inputs : start + SPAN); k++) {
                Floats weights[2];
                for (int t = 0; t < 2; t++)
                    weights[t] = P == Precision::float32 ? load((const float*)data + (2 * k + t) * TILE) : load_half((const uint16_t*)data + (2 * k + t) * TILE);
                if (ROWS == 1) prefetch(data + (2 * k + 2) * TILE * (P == Precision::float32 ? 4 : 2) + AHEAD);
                for (int r = 0; r < ROWS; r++) {
                    Floats a = all(at[r * x.stride + k]);
                    for (int t = 0; t < 2; t++) part[r][t] = fma(a, weights[t], part[r][t]);
                }
            }
            for (int r = 0; r < ROWS; r++)
                for (int t = 0; t < 2; t++) sums[r][t] = sums[r][t] + part[r][t];
        }
        return;
    }
    const long groups = w.depth / GROUP;
    const int8_t* bytes = x.bytes + row * w.depth;
    for (long g = 0; g < groups; g++, bytes += GROUP) {
        Floats found[ROWS][2];
        if constexpr (is_nibbles(P)) {
            Shorts pairs[ROWS][2];
            for (int r = 0; r < ROWS; r++) pairs[r][0] = pairs[r][1] = no_shorts();
            for (int j = 0; j < 4; j++, data += 64) {
                if (ROWS == 1) prefetch(data + AHEAD);
                for (int t = 0; t < 2; t++) {
                    Bytes both = load_bytes(data + t * 32), low = low_nibbles(both), high = high_nibbles(both);
                    for (int r = 0; r < ROWS; r++) {
                        const int8_t* a = bytes + r * w.depth + j * 8;
                        pairs[r][t] = dot_pairs(dot_pairs(pairs[r][t], low, four(a)), high, four(a + 4));
                    }
                }
            }
            for (int r = 0; r < ROWS; r++)
                for (int t = 0; t < 2; t++) found[r][t] = floats(fours(pairs[r][t]));
        } else {
            Ints whole[ROWS][2];
            for (int r = 0; r < ROWS; r++) whole[r][0] = whole[r][1] = no_ints();
            for (int j = 0; j < 8; j++, data += 64) {
                if (ROWS == 1) prefetch(data + AHEAD);
                Bytes weights[2] = {load_bytes(data), load_bytes(data + 32)};
                for (int r = 0; r < ROWS; r++) {
                    Four a = four(bytes + r * w.depth + j * 4);
                    for (int t = 0; t < 2; t++) whole[r][t] = dot_four(whole[r][t], weights[t], a);
                }
            }
            for (int r = 0; r < ROWS; r++)
                for (int t = 0; t < 2; t++) found[r][t] = floats(whole[r][t]);
        }
        for (int r = 0; r < ROWS; r++) {
            const long at = (row + r) * groups + g;
            Floats by = all(x.scales[at]);
            for (int t = 0; t < 2; t++) {
                if (P == Precision::int4)
                    sums[r][t] = fma(fma(found[r][t], by, all(-8.0f * x.sums[at])), load_half(w.group_scales(tile + t, g)), sums[r][t]);
                else if (P == Precision::int4_min)
                    sums[r][t] = fma(all(x.sums[at]), load_half(w.minima(tile + t, g)),
                                     fma(found[r][t] * by, load_half(w.group_scales(tile + t, g)), sums[r][t]));
                else
                    sums[r][t] = fma(found[r][t], by * load_half(w.group_scales(tile + t, g)), sums[r][t]);
            }
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
            pair_of_tiles<MANY, P>(w, tile, x, row, sums);
            for (int r = 0; r < MANY; r++) done(row + r, tile, sums[r]);
        }
        for (; row + 2 <= end; row += 2) {
            Floats sums[2][2];
            pair_of_tiles<2, P>(w, tile, x, row, sums);
            for (int r = 0; r < 2; r++) done(row + r, tile, sums[r]);
        }
        for (; row < end; row++) {
            Floats sums[1][2];
            pair_of_tiles<1, P>(w, tile, x, row, sums);
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
        case Precision::int4_min: return multiply<Precision::int4_min>(w, x, top, end, first, last, done);
    }
}

}  // namespace SIGHTLINE_ISA
