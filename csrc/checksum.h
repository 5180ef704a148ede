// CRC-32 (zlib's polynomial), and a parallel file read that verifies each block.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sightline {

uint32_t crc32(const uint8_t* data, size_t count);

struct ReadResult {
    long damaged_block = -1;  // the first block whose checksum differs; −1: none
    bool too_short = false;   // the file ended before `memory` was filled
    int error = 0;            // errno of a read that failed
};

// Fill `memory` from byte `start` of a file, in parallel; `sums` has the CRC-32 of each block.
ReadResult read_verified(int descriptor, long start, uint8_t* memory, long count, const uint32_t* sums, long block);

}  // namespace sightline
