#include "checksum.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sightline {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

static Tables make_tables() {
    Tables tables{};
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int bit = 0; bit < 8; bit++) c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
        tables[0][n] = c;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t n = 0; n < 256; n++) tables[k][n] = tables[0][tables[k - 1][n] & 255] ^ (tables[k - 1][n] >> 8);
    return tables;
}

// Slicing-by-8: eight bytes at a time, by tables. The caller inverts `crc` before and after.
static uint32_t crc_by_tables(const uint8_t* data, size_t count, uint32_t crc) {
    static const Tables tables = make_tables();
    for (; count >= 8; data += 8, count -= 8) {
        const uint32_t low = crc ^ (data[0] | data[1] << 8 | data[2] << 16 | (uint32_t)data[3] << 24);
        crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^ tables[4][low >> 24] ^ tables[3][data[4]] ^
              tables[2][data[5]] ^ tables[1][data[6]] ^ tables[0][data[7]];
    }
    for (; count; count--) crc = tables[0][(crc ^ *data++) & 255] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)

// Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" (Intel, 2009): folds four vectors at a time, then
// one, then reduces to 32 bits (Barrett). `count` is a multiple of 16, at least 64.
__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_by_clmul(const uint8_t* data, size_t count, uint32_t crc) {
    auto load = [](const uint8_t* p) __attribute__((target("pclmul,sse4.1"))) { return _mm_loadu_si128((const __m128i*)p); };
    auto fold = [](__m128i x, __m128i by, __m128i next) __attribute__((target("pclmul,sse4.1"))) {
        return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), next);
    };
    const __m128i by_four = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), by_one = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)crc)), b = load(data + 16), c = load(data + 32), d = load(data + 48);
    for (data += 64, count -= 64; count >= 64; data += 64, count -= 64) {
        a = fold(a, by_four, load(data)), b = fold(b, by_four, load(data + 16));
        c = fold(c, by_four, load(data + 32)), d = fold(d, by_four, load(data + 48));
    }
    a = fold(fold(fold(a, by_one, b), by_one, c), by_one, d);
    for (; count >= 16; data += 16, count -= 16) a = fold(a, by_one, load(data));
    const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_one, 0x10));  // 128 → 64 bits
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low_words), _mm_set_epi64x(0, 0x0163cd6124), 0x00));
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    __m128i quotient = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10), low_words);
    a = _mm_xor_si128(a, _mm_clmulepi64_si128(quotient, barrett, 0x00));
    return (uint32_t)_mm_extract_epi32(a, 1);
}

static uint32_t crc_of(const uint8_t* data, size_t count, uint32_t crc) {
    static const bool has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    const size_t folded = has_clmul && count >= 64 ? count & ~(size_t)15 : 0;
    if (folded) crc = crc_by_clmul(data, folded, crc);
    return crc_by_tables(data + folded, count - folded, crc);
}

#else

static uint32_t crc_of(const uint8_t* data, size_t count, uint32_t crc) { return crc_by_tables(data, count, crc); }

#endif

uint32_t crc32(const uint8_t* data, size_t count) { return ~crc_of(data, count, ~0u); }

ReadResult read_verified(int descriptor, long start, uint8_t* memory, long count, const uint32_t* sums, long block) {
    const long blocks = (count + block - 1) / block;
    std::atomic<long> damaged{blocks};
    std::atomic<bool> too_short{false};
    std::atomic<int> error{0};
    parallel_for(blocks, [&](long number) {
        if (error || too_short) return;
        uint8_t* to = memory + number * block;
        const long size = std::min(block, count - number * block);
        for (long filled = 0; filled < size;) {
            const ssize_t bytes_read = pread(descriptor, to + filled, size - filled, start + number * block + filled);
            if (bytes_read < 0 && errno == EINTR) continue;
            if (bytes_read < 0) return (void)(error = errno);
            if (bytes_read == 0) return (void)(too_short = true);
            filled += bytes_read;
        }
        if (crc32(to, size) == sums[number]) return;  // while the block is still in the CPU cache
        for (long first = damaged; number < first && !damaged.compare_exchange_weak(first, number);) {
        }
    });
    return {damaged == blocks ? -1 : damaged.load(), too_short, error};
}

}  // namespace sightline
