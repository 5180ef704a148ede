// y = W x for one or more rows of x, with W packed. Integer products are exact, and floats are added in an order that depends only on k:
// a row's result is the same alone, in a batch, and for any number of threads.
#pragma once
#include "engine/matrix.h"
#include "simd/wide.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

// Rows of x in the format that the matrix needs: floats, or int8 with a scale and a sum per group.
struct Inputs {
    const float* floats;
    long stride;
    const int8_t* bytes;   // [row][depth]
    const float* scales;   // [row][groups]
    const float* sums;     // [row][groups]: Σ of the integers, before the shift
};

// The integer range of quantized activations: −127 … 127; for int8, −63 … 63 shifted by 64, since products of 7 by 8 bits fit 16 bits.
struct ActivationRange {
    float limit, shift;
    static ActivationRange of(Precision p) { return p == Precision::int8 ? ActivationRange{63.0f, 64.0f} : ActivationRange{127.0f, 0.0f}; }
};

// Quantizes a row, one group at a time:  scale = max |x| / limit
inline void quantize_row(const ActivationRange& by, const float* x, long count, long depth, int8_t* bytes, float* scales, float* sums) {
    for (long start = 0; start < depth; start += GROUP) {
        Floats v[4], tops = zero(), total = zero();
        for (int j = 0; j < 4; j++) {
            const long at = start + j * LANES, left = count - at < LANES ? count - at : LANES;
            v[j] = left > 0 ? load(x + at, (int)left) : zero();
            tops = max(tops, absolute(v[j]));
        }
        const float top = horizontal_max(tops), scale = top / by.limit, inverse = top > 0.0f ? by.limit / top : 0.0f;
        for (int j = 0; j < 4; j++) v[j] = round_nearest(v[j] * broadcast(inverse)), total = total + v[j], v[j] = v[j] + broadcast(by.shift);
        store_bytes(bytes + start, v[0], v[1], v[2], v[3]);
        scales[start / GROUP] = scale, sums[start / GROUP] = sum(total);
    }
}

constexpr int TILES = WIDE / TILE;  // per vector
constexpr long SPAN = 128;    // floats are summed over spans of k, then over the spans: smaller rounding error than one long sum
constexpr long AHEAD = 2048;  // prefetch distance in bytes

// sums[row][vector]: ROWS rows of x times VECTORS vectors of outputs, starting at `tile`, over all of k. For float weights.
template <int ROWS, int VECTORS, Precision P>
SIGHTLINE_NOINLINE void tiles_of_floats(const Packed& w, long tile, const Inputs& x, long row, Wide sums[ROWS][VECTORS]) {
    using Stored = std::conditional_t<P == Precision::float32, float, uint16_t>;
    const Stored* data[VECTORS];
    for (int v = 0; v < VECTORS; v++) data[v] = (const Stored*)w.tile(tile + v * TILES);
    const float* at = x.floats + row * x.stride;
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = broadcast_wide(0.0f);
    for (long begin = 0; begin < w.inputs; begin += SPAN) {
        Wide part[ROWS][VECTORS];
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) part[r][v] = broadcast_wide(0.0f);
        for (long k = begin; k < (w.inputs < begin + SPAN ? w.inputs : begin + SPAN); k++) {
            Wide weights[VECTORS];
            for (int v = 0; v < VECTORS; v++) weights[v] = load_wide(data[v] + 2 * k * TILE);
            if (ROWS == 1) prefetch((const uint8_t*)(data[0] + 2 * (k + 1) * TILE) + AHEAD);
            for (int r = 0; r < ROWS; r++) {
                const Wide a = broadcast_wide(at[r * x.stride + k]);
                for (int v = 0; v < VECTORS; v++) part[r][v] = fma(a, weights[v], part[r][v]);
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) sums[r][v] = sums[r][v] + part[r][v];
    }
}

// The same for int8 with one scale per row of the matrix.
template <int ROWS, int VECTORS>
SIGHTLINE_NOINLINE void tiles_of_bytes(const Packed& w, long tile, const Inputs& x, long row, Wide sums[ROWS][VECTORS]) {
    const uint8_t* data[VECTORS];
    const int16_t* negative_sums[VECTORS];
    for (int v = 0; v < VECTORS; v++) data[v] = w.tile(tile + v * TILES), negative_sums[v] = w.negative_sums(tile + v * TILES, 0);
    const long groups = w.depth / GROUP;
    const int8_t* bytes = x.bytes + row * w.depth;
    const float *scales = x.scales + row * groups, *totals = x.sums + row * groups;
    Wide result[ROWS * VECTORS];
    unroll<ROWS * VECTORS>([&](auto i) { result[i] = broadcast_wide(0.0f); });
    for (long g = 0; g < groups; g++) {
        WideInts integers[ROWS * VECTORS];
        unroll<VECTORS>([&](auto v) {
            const WideInts begin = ROWS == 1 ? start(totals[g]) : load_wide_times_64(negative_sums[v] + g * 2 * TILE);
            unroll<ROWS>([&](auto r) { integers[r * VECTORS + v] = begin; });
        });
        for (long k = g * GROUP; k < (g + 1) * GROUP; k += 4) {
            if (ROWS == 1) prefetch(data[0] + k * 2 * TILE + AHEAD);
            WideBytes weights[VECTORS];
            unroll<VECTORS>([&](auto v) { weights[v] = load_wide_bytes(data[v] + k * 2 * TILE); });
            unroll<ROWS * VECTORS>([&](auto i) {
                constexpr int r = i / VECTORS, v = i % VECTORS;
                if constexpr (ROWS == 1)  // memory-bound: avoid reading negative_sums
                    integers[i] = dot_signed_minus(integers[i], shift_to_unsigned(weights[v]), bytes + k, 64);
                else
                    integers[i] = dot_unsigned(integers[i], weights[v], bytes + r * w.depth + k);
            });
        }
        unroll<ROWS * VECTORS>([&](auto i) {
            result[i] = add_product(result[i], floats(integers[i]), scales + i / VECTORS * groups + g);
        });
    }
    unroll<ROWS * VECTORS>([&](auto i) {
        sums[i / VECTORS][i % VECTORS] = result[i] * load_wide((const float*)w.scales + (tile + i % VECTORS * TILES) * TILE);
    });
}

// The same for weights with one scale per group of inputs.
template <int ROWS, int VECTORS, Precision P>
SIGHTLINE_NOINLINE void tiles_of_groups(const Packed& w, long tile, const Inputs& x, long row, Wide sums[ROWS][VECTORS]) {
    constexpr bool nibbles = is_int4(P);
    constexpr long BYTES = nibbles ? TILE : 2 * TILE, AT_ONCE = nibbles ? 8 : 4;  // per input of a pair of tiles; inputs per vector
    const uint8_t* data[VECTORS];
    for (int v = 0; v < VECTORS; v++) data[v] = w.tile(tile + v * TILES);
    const long groups = w.depth / GROUP;
    const int8_t* bytes = x.bytes + row * w.depth;
    Wide result[ROWS * VECTORS];
    unroll<ROWS * VECTORS>([&](auto i) { result[i] = broadcast_wide(0.0f); });
    for (long g = 0; g < groups; g++) {
        const float *scales = x.scales + row * groups + g, *totals = x.sums + row * groups + g;
        std::conditional_t<nibbles, WideNibbles, WideInts> integers[ROWS * VECTORS];
        unroll<ROWS * VECTORS>([&](auto i) {
            if constexpr (nibbles)
                integers[i] = zero_nibbles();
            else
                integers[i] = start(totals[i / VECTORS * groups]);
        });
        for (long k = g * GROUP; k < (g + 1) * GROUP; k += AT_ONCE) {
            if (ROWS == 1) prefetch(data[0] + k * BYTES + AHEAD);
            unroll<VECTORS>([&](auto v) {
                const WideBytes read = load_wide_bytes(data[v] + k * BYTES);
                if constexpr (nibbles) {
                    const WideBytes low = low_nibbles(read), high = high_nibbles(read);
                    unroll<ROWS>([&](auto r) {
                        const int8_t* a = bytes + r * w.depth + k;
                        integers[r * VECTORS + v] = dot_nibbles(dot_nibbles(integers[r * VECTORS + v], low, a), high, a + 4);
                    });
                } else {
                    const WideBytes weights = shift_to_unsigned(read);
                    unroll<ROWS>([&](auto r) {
                        integers[r * VECTORS + v] = dot_signed(integers[r * VECTORS + v], weights, bytes + r * w.depth + k);
                    });
                }
            });
        }
        unroll<VECTORS>([&](auto v) {
            const Wide scale = load_wide(w.group_scales(tile + v * TILES, g));
            Wide minimum = scale;
            if constexpr (P == Precision::int4_min) minimum = load_wide(w.minima(tile + v * TILES, g));
            unroll<ROWS>([&](auto r) {
                constexpr int i = r * VECTORS + v;
                const float by = scales[r * groups], total = by * totals[r * groups];
                if constexpr (P == Precision::int4)
                    result[i] = add_product(result[i], fma(floats(fours(integers[i])), broadcast_wide(by), broadcast_wide(-8.0f * total)), scale);
                else if constexpr (P == Precision::int4_min)
                    result[i] = add_product(add_product(result[i], floats(fours(integers[i])) * broadcast_wide(by), scale), minimum, broadcast_wide(total));
                else
                    result[i] = add_product(result[i], floats(integers[i]), broadcast_wide(by) * scale);
            });
        });
    }
    unroll<ROWS * VECTORS>([&](auto i) { sums[i / VECTORS][i % VECTORS] = result[i]; });
}

// Tiles `first` to `last`, rows `top` to `end`. `epilogue(row, tile, sums of two tiles)` stores the results;
// `epilogue.prefetch_output(row, tile)` is called before the sums are computed.
template <Precision P, class Epilogue>
inline void multiply(const Packed& w, const Inputs& x, long top, long end, long first, long last, const Epilogue& epilogue) {
    using Largest = std::conditional_t<quantizes_activations(P), IntegerBlock, FloatBlock>;
    constexpr int PAIR = 2 / TILES;  // vectors per pair of tiles
    long tile = first;
    auto down = [&](auto rows, auto vectors, long& row) {
        for (; row + rows <= end; row += rows) {
            Wide sums[rows][vectors];
            if (rows > 1)
                for (int r = 0; r < rows; r++)
                    for (int v = 0; v < vectors; v += PAIR) epilogue.prefetch_output(row + r, tile + v * TILES);
            if constexpr (!quantizes_activations(P))
                tiles_of_floats<rows, vectors, P>(w, tile, x, row, sums);
            else if constexpr (P == Precision::int8)
                tiles_of_bytes<rows, vectors>(w, tile, x, row, sums);
            else
                tiles_of_groups<rows, vectors, P>(w, tile, x, row, sums);
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < vectors; v += PAIR) {
                    Floats tiles[2];
                    halves(sums[r] + v, tiles);
                    epilogue(row + r, tile + v * TILES, tiles);
                }
        }
    };
    auto across = [&](auto vectors) {
        for (; tile + vectors * TILES <= last; tile += vectors * TILES) {
            long row = top;
            down(Count<Largest::rows>(), vectors, row);
            down(Count<2>(), vectors, row);
            down(Count<1>(), vectors, row);
        }
    };
    if constexpr (Largest::vectors > PAIR)
        if (end - top > 1) across(Count<Largest::vectors>());
    across(Count<PAIR>());
}

template <class Epilogue>
inline void multiply(const Packed& w, const Inputs& x, long top, long end, long first, long last, const Epilogue& epilogue) {
    switch (w.precision) {
        case Precision::float32: return multiply<Precision::float32>(w, x, top, end, first, last, epilogue);
        case Precision::float16: return multiply<Precision::float16>(w, x, top, end, first, last, epilogue);
        case Precision::int8: return multiply<Precision::int8>(w, x, top, end, first, last, epilogue);
        case Precision::int8_groups: return multiply<Precision::int8_groups>(w, x, top, end, first, last, epilogue);
        case Precision::int4: return multiply<Precision::int4>(w, x, top, end, first, last, epilogue);
        case Precision::int4_min: return multiply<Precision::int4_min>(w, x, top, end, first, last, epilogue);
    }
}

}  // namespace SIGHTLINE_ISA
