// y = W x for one or many rows of x, with W packed. Whole-number products are exact, and floats are added in an order that only k
// decides: a row's result is the same alone, in a batch, and on any number of threads.
#pragma once
#include <type_traits>

#include "matrix.h"
#include "pairs.h"

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
    const float* sums;     // [row][groups]: Σ of the whole numbers, before any shift
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
        scales[start / GROUP] = scale, sums[start / GROUP] = sum(total);
    }
}

template <int N>
using Rows = std::integral_constant<int, N>;

constexpr long SPAN = 128;    // floats are added in spans of k, then the spans: less is lost than in one long chain
constexpr long AHEAD = 2048;  // bytes that are asked for before they are needed

// A pair of tiles (16 outputs) for ROWS rows of x, all of k, where each row of the matrix has one scale.
template <int ROWS>
SIGHTLINE_APART void pair_of_whole_tiles(const Packed& w, long tile, const Inputs& x, long row, Pair sums[ROWS]) {
    const uint8_t* data = w.tile(tile);
    const int8_t* bytes = x.bytes + row * w.depth;
    const long groups = w.depth / GROUP;
    const float *scales = x.scales + row * groups, *totals = x.sums + row * groups;
    const int16_t* less_sums = w.less_sums(tile, 0);
    for (int r = 0; r < ROWS; r++) sums[r] = no_pair();
    for (long g = 0; g < groups; g++, less_sums += 2 * TILE) {
        PairInts whole[ROWS];
        const PairInts begin = ROWS == 1 ? start(totals[g]) : load_pair_times_64(less_sums);
        for (int r = 0; r < ROWS; r++) whole[r] = begin;
        for (int j = 0; j < GROUP / 4; j++, data += 64, bytes += 4) {
            const PairBytes weights = load_pair_bytes(data);
            if constexpr (ROWS == 1) {  // memory is the limit: the matrix's own sums need not be read
                prefetch(data + AHEAD);
                whole[0] = dot_signed_less(whole[0], for_signed(weights), bytes, 64);
            } else {
                for (int r = 0; r < ROWS; r++) whole[r] = dot_unsigned(whole[r], weights, bytes + r * w.depth);
            }
        }
        for (int r = 0; r < ROWS; r++) sums[r] = fma(floats(whole[r]), both(scales[r * groups + g]), sums[r]);
    }
    const Pair scale = load_pair((const float*)w.scales + tile * TILE);
    for (int r = 0; r < ROWS; r++) sums[r] = sums[r] * scale;
}

// The same of all other precisions.
template <int ROWS, Precision P>
SIGHTLINE_APART void pair_of_tiles(const Packed& w, long tile, const Inputs& x, long row, Pair sums[ROWS]) {
    if constexpr (P == Precision::int8) return pair_of_whole_tiles<ROWS>(w, tile, x, row, sums);
    const uint8_t* data = w.tile(tile);
    for (int r = 0; r < ROWS; r++) sums[r] = no_pair();
    if constexpr (P == Precision::float32 || P == Precision::float16) {
        const float* at = x.floats + row * x.stride;
        for (long begin = 0; begin < w.inputs; begin += SPAN) {
            Pair part[ROWS];
            for (int r = 0; r < ROWS; r++) part[r] = no_pair();
            for (long k = begin; k < (w.inputs < begin + SPAN ? w.inputs : begin + SPAN); k++) {
                const Pair weights = P == Precision::float32 ? load_pair((const float*)data + 2 * k * TILE) : load_half_pair((const uint16_t*)data + 2 * k * TILE);
                if (ROWS == 1) prefetch(data + (2 * k + 2) * TILE * (P == Precision::float32 ? 4 : 2) + AHEAD);
                for (int r = 0; r < ROWS; r++) part[r] = fma(both(at[r * x.stride + k]), weights, part[r]);
            }
            for (int r = 0; r < ROWS; r++) sums[r] = sums[r] + part[r];
        }
        return;
    }
    const long groups = w.depth / GROUP;
    const int8_t* bytes = x.bytes + row * w.depth;
    for (long g = 0; g < groups; g++, bytes += GROUP) {
        const long at = row * groups + g;
        Pair found[ROWS];
        if constexpr (is_nibbles(P)) {
            PairNibbles whole[ROWS];
            for (int r = 0; r < ROWS; r++) whole[r] = start_nibbles();
            for (int j = 0; j < 4; j++, data += 64) {
                if (ROWS == 1) prefetch(data + AHEAD);
                const PairBytes each = load_pair_bytes(data), low = low_nibbles(each), high = high_nibbles(each);
                for (int r = 0; r < ROWS; r++) {
                    const int8_t* a = bytes + r * w.depth + j * 8;
                    whole[r] = dot_nibbles(dot_nibbles(whole[r], low, a), high, a + 4);
                }
            }
            for (int r = 0; r < ROWS; r++) found[r] = floats(whole[r]);
        } else {
            PairInts whole[ROWS];
            for (int r = 0; r < ROWS; r++) whole[r] = start(x.sums[at + r * groups]);
            for (int j = 0; j < 8; j++, data += 64) {
                if (ROWS == 1) prefetch(data + AHEAD);
                const PairBytes weights = for_signed(load_pair_bytes(data));
                for (int r = 0; r < ROWS; r++) whole[r] = dot_signed(whole[r], weights, bytes + r * w.depth + j * 4);
            }
            for (int r = 0; r < ROWS; r++) found[r] = floats(whole[r]);
        }
        const Pair scale = load_half_pair(w.group_scales(tile, g));
        for (int r = 0; r < ROWS; r++) {
            const float by = x.scales[at + r * groups], total = by * x.sums[at + r * groups];
            if constexpr (P == Precision::int4)
                sums[r] = fma(fma(found[r], both(by), both(-8.0f * total)), scale, sums[r]);
            else if constexpr (P == Precision::int4_min)
                sums[r] = fma(both(total), load_half_pair(w.minima(tile, g)), fma(found[r] * both(by), scale, sums[r]));
            else
                sums[r] = fma(found[r], both(by) * scale, sums[r]);
        }
    }
}

// All pairs of tiles from `first` to `last`, rows from `top` to `end`; `done(row, tile, sums of two tiles)` says what becomes of them.
template <Precision P, class Done>
inline void multiply(const Packed& w, const Inputs& x, long top, long end, long first, long last, const Done& done) {
    constexpr int MOST = takes_bytes(P) ? WHOLE_ROWS_AT_ONCE : ROWS_AT_ONCE;
    for (long tile = first; tile < last; tile += 2) {
        long row = top;
        auto many = [&](auto rows) {
            for (; row + rows <= end; row += rows) {
                Pair sums[rows];
                pair_of_tiles<rows, P>(w, tile, x, row, sums);
                for (int r = 0; r < rows; r++) {
                    const Floats tiles[2] = {SIGHTLINE_ISA::first(sums[r]), second(sums[r])};
                    done(row + r, tile, tiles);
                }
            }
        };
        many(Rows<MOST>());
        if constexpr (MOST > 4) many(Rows<4>());
        many(Rows<2>());
        many(Rows<1>());
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
