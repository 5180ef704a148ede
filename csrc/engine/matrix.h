// A matrix, packed once in the order in which it is read: pairs of tiles of 8 output rows, 4 (int8), 8 (int4) or 1 (floats) inputs at a
// time. A thread that works on a range of pairs reads contiguous memory in order.
//
//     float32   [pair][k][2][8]              float16   [pair][k][2][8]
//     int8      [pair][k / 4][2][8][4]       one scale per row, or per row and group of 32 inputs
//     int4      [pair][k / 8][2][8][4]       low nibbles: inputs 0–3 of eight, high: 4–7; w = scale (q − 8), one scale per group of 32
//     int4_min  [pair][k / 8][2][8][4]       the same with w = scale q + minimum
//     scales    int8 [row] in float32; groups [pair][k / 32][2][8] in float16, and after each pair's scales its minima
//     sums      int8 [pair][k / 32][2][8] in int16: −Σ w of each group, for activations shifted by 64; not read for a single row
//
// A vector lane is a row, so every output is summed over k in the same order regardless of what else runs.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sightline {

constexpr long GROUP = 32;  // weights that share a scale; inputs are zero-padded to a multiple
constexpr long TILE = 8;

enum class Precision { float32, float16, int8, int8_groups, int4, int4_min };

// Whether activations are quantized to integers.
constexpr bool quantizes_activations(Precision p) { return p != Precision::float32 && p != Precision::float16; }
constexpr bool is_int4(Precision p) { return p == Precision::int4 || p == Precision::int4_min; }

struct Packed {
    Precision precision;
    long rows, inputs;    // as in the model
    long tiles, depth;    // rows / 8, rounded up to pairs; inputs, rounded up to groups
    const uint8_t* data;
    const void* scales;
    long tile_bytes() const { return bytes_of(precision, depth); }
    // the start of a tile; its vectors are 2 · vector_bytes() apart
    const uint8_t* tile(long number) const { return data + number / 2 * 2 * tile_bytes() + number % 2 * vector_bytes(); }
    long vector_bytes() const { return precision == Precision::float16 ? 16 : 32; }
    const uint16_t* group_scales(long tile, long group) const {
        const long each = precision == Precision::int4_min ? 4 * TILE : 2 * TILE;
        return (const uint16_t*)scales + (tile / 2 * (depth / GROUP) + group) * each + tile % 2 * TILE;
    }
    const uint16_t* minima(long tile, long group) const { return group_scales(tile, group) + 2 * TILE; }
    int16_t* negative_sums(long tile, long group) const {
        return (int16_t*)((float*)scales + tiles * TILE) + (tile / 2 * (depth / GROUP) + group) * 2 * TILE + tile % 2 * TILE;
    }
    static long bytes_of(Precision p, long depth) {
        return p == Precision::float32 ? 32 * depth : p == Precision::float16 ? 16 * depth : is_int4(p) ? 4 * depth : 8 * depth;
    }
    static long scale_bytes_of(Precision p, long depth) {
        const long halves = 2 * TILE * (depth / GROUP);
        return p == Precision::int8 ? 4 * TILE + halves : p == Precision::int4_min ? 2 * halves : quantizes_activations(p) ? halves : 0;
    }
};

}  // namespace sightline
