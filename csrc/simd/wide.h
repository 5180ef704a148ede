// The widest vectors of the processor: sixteen floats with AVX-512, otherwise the eight of vectors.h. A lane is an output here too, so
// every processor gives the same sums.
#pragma once
#include <type_traits>
#include <utility>

#include "simd/vectors.h"

// Kernels are not inlined: the code that uses their sums must not take their registers.
#if defined(__GNUC__)
#define SIGHTLINE_NOINLINE __attribute__((noinline))
#else
#define SIGHTLINE_NOINLINE
#endif

namespace SIGHTLINE_ISA {

template <int N>
using Count = std::integral_constant<int, N>;

// body(0) … body(N − 1), unrolled: accumulators with constant indices stay in registers; in a loop they would live in memory.
template <class Body, int... I>
__attribute__((always_inline)) inline void unroll(const Body& body, std::integer_sequence<int, I...>) {
    (body(Count<I>()), ...);
}
template <int N, class Body>
__attribute__((always_inline)) inline void unroll(const Body& body) {
    unroll(body, std::make_integer_sequence<int, N>());
}

// The register tile of a kernel: accumulators for ROWS rows of VECTORS vectors, chosen to minimize loads.
template <int ROWS, int VECTORS>
struct Block {
    static constexpr int rows = ROWS, vectors = VECTORS;
};

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__)

constexpr int WIDE = 16;
using FloatBlock = Block<6, 4>;
using IntegerBlock = Block<4, 3>;

struct Wide {
    __m512 v;
};
inline Wide load_wide(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Wide load_wide(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline void store(float* p, Wide a) { _mm512_storeu_ps(p, a.v); }
inline Wide broadcast_wide(float a) { return {_mm512_set1_ps(a)}; }
inline Wide operator+(Wide a, Wide b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Wide operator-(Wide a, Wide b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Wide operator*(Wide a, Wide b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Wide fma(Wide a, Wide b, Wide c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a b + sum, in place: compilers spill the accumulators of a large kernel although there are enough registers.
inline Wide add_product(Wide sum, Wide a, Wide b) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
    return sum;
}
inline Wide add_product(Wide sum, Wide a, const float* b) {
    asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(a.v), "m"(*b));
    return sum;
}
inline Wide max(Wide a, Wide b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Wide min(Wide a, Wide b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Wide round_nearest(Wide a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Wide power_of_two(Wide n) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
inline Wide exponential(Wide x) { return exponential_of<Wide, broadcast_wide>(x); }
// A pair of tiles as two vectors of eight.
inline void halves(const Wide* from, Floats to[2]) {
    to[0] = {_mm512_castps512_ps256(from->v)}, to[1] = {_mm512_extractf32x8_ps(from->v, 1)};
}
inline float sum(Wide a) {
    Floats parts[2];
    halves(&a, parts);
    return sum(parts[0] + parts[1]);
}
inline float horizontal_max(Wide a) {
    Floats parts[2];
    halves(&a, parts);
    return horizontal_max(max(parts[0], parts[1]));
}

#else

constexpr int WIDE = LANES;
using FloatBlock = Block<6, 2>;
using IntegerBlock = Block<4, 2>;

using Wide = Floats;
inline Wide load_wide(const float* p) { return load(p); }
inline Wide load_wide(const uint16_t* p) { return load_half(p); }
inline Wide broadcast_wide(float a) { return broadcast(a); }
inline Wide add_product(Wide sum, Wide a, Wide b) { return fma(a, b, sum); }
inline Wide add_product(Wide sum, Wide a, const float* b) { return fma(a, broadcast(*b), sum); }
inline void halves(const Wide* from, Floats to[2]) { to[0] = from[0], to[1] = from[1]; }

#endif

// ------------------------------------------------------------------------------------------------------------------ integers
//
// Dot products of four: lane r accumulates Σ_{i<4} w[r][i] · a[i]. Activations are signed, stored with a shift that is subtracted, or
// unsigned (0 to 127); weights are signed, or nibbles from 0 to 15. `start(total)` is the initial accumulator for weights passed through
// `shift_to_unsigned`, where `total` is the sum of the signed activations.

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__)

struct WideInts {
    __m512i v;
};
struct WideBytes {
    __m512i v;
};
inline Wide floats(WideInts a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline WideBytes load_wide_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline WideInts load_wide_times_64(const int16_t* p) {
    return {_mm512_slli_epi32(_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p)), 6)};
}
inline __m512i four_of_all(const int8_t* a) {
    int32_t word;
    std::memcpy(&word, a, 4);
    return _mm512_set1_epi32(word);
}

#if defined(__AVX512VNNI__)

// Σ over four of unsigned u and signed s, in place: with the intrinsic, compilers copy the accumulators back and forth.
inline WideInts add_fours(WideInts sum, __m512i u, __m512i s) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(u), "v"(s));
    return sum;
}
inline WideInts add_fours(WideInts sum, __m512i u, const int8_t* s) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(u), "m"(*(const int8_t(*)[4])s));
    return sum;
}
// w + 128 is unsigned, and Σ (w + 128) a − 128 Σ a = Σ w a. Weights are shifted once for all rows.
inline WideBytes shift_to_unsigned(WideBytes w) { return {_mm512_xor_si512(w.v, _mm512_set1_epi8((char)0x80))}; }
inline WideInts start(float total) { return {_mm512_set1_epi32(-128 * (int)total)}; }
inline WideInts dot_signed(WideInts sum, WideBytes shifted, __m512i a) { return add_fours(sum, shifted.v, a); }
inline WideInts dot_signed(WideInts sum, WideBytes shifted, const int8_t* a) { return add_fours(sum, shifted.v, a); }

#else

// the sum of a pair u · s must fit 16 bits
inline WideInts add_fours(WideInts sum, __m512i u, __m512i s) {
    __m512i result = _mm512_add_epi32(sum.v, _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), _mm512_set1_epi16(1)));
    asm("" : "+v"(result));
    return {result};
}
inline WideInts add_fours(WideInts sum, __m512i u, const int8_t* s) { return add_fours(sum, u, four_of_all(s)); }
inline WideBytes shift_to_unsigned(WideBytes w) { return w; }
inline WideInts start(float) { return {_mm512_setzero_si512()}; }
inline WideInts dot_signed(WideInts sum, WideBytes w, __m512i a) {
    return add_fours(sum, _mm512_abs_epi8(a), _mm512_mask_sub_epi8(w.v, _mm512_movepi8_mask(a), _mm512_setzero_si512(), w.v));
}
inline WideInts dot_signed(WideInts sum, WideBytes w, const int8_t* a) { return dot_signed(sum, w, four_of_all(a)); }

#endif

inline WideInts dot_signed_minus(WideInts sum, WideBytes shifted, const int8_t* a, char shift) {
    return dot_signed(sum, shifted, _mm512_sub_epi8(four_of_all(a), _mm512_set1_epi8(shift)));
}
inline WideInts dot_unsigned(WideInts sum, WideBytes w, const int8_t* a) { return add_fours(sum, four_of_all(a), w.v); }

using WideNibbles = WideInts;
inline WideNibbles zero_nibbles() { return {_mm512_setzero_si512()}; }
inline WideBytes low_nibbles(WideBytes w) { return {_mm512_and_si512(w.v, _mm512_set1_epi8(15))}; }
inline WideBytes high_nibbles(WideBytes w) { return {_mm512_and_si512(_mm512_srli_epi16(w.v, 4), _mm512_set1_epi8(15))}; }
inline WideNibbles dot_nibbles(WideNibbles sum, WideBytes w, const int8_t* a) { return add_fours(sum, w.v, a); }
inline WideInts fours(WideNibbles sum) { return sum; }

#else

using WideInts = Ints;
using WideBytes = Bytes;
inline WideBytes load_wide_bytes(const uint8_t* p) { return load_bytes(p); }
inline WideInts load_wide_times_64(const int16_t* p) { return load_times_64(p); }
inline WideBytes shift_to_unsigned(WideBytes w) { return w; }
inline WideInts start(float) { return zero_ints(); }
inline WideInts dot_signed(WideInts sum, WideBytes w, const int8_t* a) { return dot_four(sum, w, four(a)); }
inline WideInts dot_signed_minus(WideInts sum, WideBytes w, const int8_t* a, char shift) { return dot_four(sum, w, four_minus(a, shift)); }
inline WideInts dot_unsigned(WideInts sum, WideBytes w, const int8_t* a) { return dot_four_unsigned(sum, w, four_unsigned(a)); }

using WideNibbles = Shorts;
inline WideNibbles zero_nibbles() { return zero_shorts(); }
inline WideNibbles dot_nibbles(WideNibbles sum, WideBytes w, const int8_t* a) { return dot_pairs(sum, w, four(a)); }

#endif

}  // namespace SIGHTLINE_ISA
