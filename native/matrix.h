// A matrix, packed once in the order in which it is read: tiles of 8 output rows, 4 (int8), 8 (int4) or 1 (floats) inputs at a time.
//
//     float32   [tile][k][8]              float16   [tile][k][8]
//     int8      [tile][k / 4][8][4]       one scale for each row, or for each row and group of 32 inputs
//     int4      [tile][k / 8][8][4]       low nibbles: inputs 0–3 of eight, high: 4–7; w = scale (q − 8), a scale for each group of 32
//
// The lane of a vector is the row, so every output is one chain of sums over k, in the same order whatever runs beside it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sightline {

constexpr long GROUP = 32;  // numbers that share a scale; inputs are filled with zeros up to a multiple
constexpr long TILE = 8;

enum class Precision { float32, float16, int8, int8_groups, int4 };

struct Packed {
    Precision precision;
    long rows, inputs;    // as the model has them
    long tiles, depth;    // rows / 8, rounded up to pairs; inputs, rounded up to groups
    const uint8_t* data;  // tiles · tile_bytes
    const void* scales;   // int8: float [tiles][8]; groups: half [tiles][depth / 32][8]
    long tile_bytes() const { return bytes_of(precision, depth); }
    static long bytes_of(Precision p, long depth) {
        return p == Precision::float32 ? 32 * depth : p == Precision::float16 ? 16 * depth : p == Precision::int4 ? 4 * depth : 8 * depth;
    }
    static long scale_bytes_of(Precision p, long depth) {
        return p == Precision::int8 ? 4 * TILE : p == Precision::int8_groups || p == Precision::int4 ? 2 * TILE * (depth / GROUP) : 0;
    }
};

}  // namespace sightline
