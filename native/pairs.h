// Sixteen numbers at a time: a pair of tiles. One vector with AVX-512, else two of eight. A lane is an output here too, so all kinds of
// processor give the same sums.
#pragma once
#include "simd.h"

namespace SIGHTLINE_ISA {

#if defined(__AVX512F__) && defined(__AVX512DQ__)

constexpr int ROWS_AT_ONCE = 12;  // sums that a kernel for floats keeps in registers, besides what it reads

struct Pair {
    __m512 v;
};
inline Pair load_pair(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Pair load_half_pair(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline void store(float* p, Pair a) { _mm512_storeu_ps(p, a.v); }
inline Pair both(float a) { return {_mm512_set1_ps(a)}; }
inline Pair no_pair() { return {_mm512_setzero_ps()}; }
inline Pair operator+(Pair a, Pair b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Pair operator*(Pair a, Pair b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Pair fma(Pair a, Pair b, Pair c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats first(Pair a) { return {_mm512_castps512_ps256(a.v)}; }
inline Floats second(Pair a) { return {_mm512_extractf32x8_ps(a.v, 1)}; }
inline Pair pair_of(Floats a, Floats b) { return {_mm512_insertf32x8(_mm512_castps256_ps512(a.v), b.v, 1)}; }

#else

constexpr int ROWS_AT_ONCE = 6;

struct Pair {
    Floats a, b;
};
inline Pair load_pair(const float* p) { return {load(p), load(p + LANES)}; }
inline Pair load_half_pair(const uint16_t* p) { return {load_half(p), load_half(p + LANES)}; }
inline void store(float* p, Pair x) { store(p, x.a), store(p + LANES, x.b); }
inline Pair both(float x) { return {all(x), all(x)}; }
inline Pair no_pair() { return {zero(), zero()}; }
inline Pair operator+(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }
inline Pair operator*(Pair x, Pair y) { return {x.a * y.a, x.b * y.b}; }
inline Pair fma(Pair x, Pair y, Pair z) { return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b)}; }
inline Floats first(Pair x) { return x.a; }
inline Floats second(Pair x) { return x.b; }
inline Pair pair_of(Floats a, Floats b) { return {a, b}; }

#endif

// ------------------------------------------------------------------------------------------------------------------ whole numbers
//
// Dot products of four of 64 weights with 4 activations, as simd.h has them of 32. `start` is what a sum of signed activations begins
// with, whose own sum is `of`.

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

constexpr int WHOLE_ROWS_AT_ONCE = 12;

struct PairInts {
    __m512i v;
};
struct PairBytes {
    __m512i v;
};
inline Pair floats(PairInts a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline PairBytes load_pair_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline PairInts load_pair_times_64(const int16_t* p) {
    return {_mm512_slli_epi32(_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p)), 6)};
}
inline __m512i four_of_all(const int8_t* a) {
    int32_t word;
    std::memcpy(&word, a, 4);
    return _mm512_set1_epi32(word);
}
// The processor multiplies unsigned by signed: w + 128 ≥ 0, and Σ (w + 128) a − 128 Σ a = Σ w a. Weights are moved once for all rows.
inline PairBytes for_signed(PairBytes w) { return {_mm512_xor_si512(w.v, _mm512_set1_epi8((char)0x80))}; }
inline PairInts start(float of) { return {_mm512_set1_epi32(-128 * (int)of)}; }
inline PairInts dot_signed(PairInts sum, PairBytes moved, const int8_t* a) { return {_mm512_dpbusd_epi32(sum.v, moved.v, four_of_all(a))}; }
inline PairInts dot_signed_less(PairInts sum, PairBytes moved, const int8_t* a, char shift) {
    return {_mm512_dpbusd_epi32(sum.v, moved.v, _mm512_sub_epi8(four_of_all(a), _mm512_set1_epi8(shift)))};
}
inline PairInts dot_unsigned(PairInts sum, PairBytes w, const int8_t* a) { return {_mm512_dpbusd_epi32(sum.v, four_of_all(a), w.v)}; }

using PairNibbles = PairInts;  // sums of nibbles times activations
inline PairNibbles start_nibbles() { return {_mm512_setzero_si512()}; }
inline PairBytes low_nibbles(PairBytes w) { return {_mm512_and_si512(w.v, _mm512_set1_epi8(15))}; }
inline PairBytes high_nibbles(PairBytes w) { return {_mm512_and_si512(_mm512_srli_epi16(w.v, 4), _mm512_set1_epi8(15))}; }
inline PairNibbles dot_nibbles(PairNibbles sum, PairBytes w, const int8_t* a) { return {_mm512_dpbusd_epi32(sum.v, w.v, four_of_all(a))}; }

#else

constexpr int WHOLE_ROWS_AT_ONCE = 4;

struct PairInts {
    Ints a, b;
};
struct PairBytes {
    Bytes a, b;
};
inline Pair floats(PairInts x) { return pair_of(floats(x.a), floats(x.b)); }
inline PairBytes load_pair_bytes(const uint8_t* p) { return {load_bytes(p), load_bytes(p + 32)}; }
inline PairInts load_pair_times_64(const int16_t* p) { return {load_times_64(p), load_times_64(p + LANES)}; }
inline PairBytes for_signed(PairBytes w) { return w; }
inline PairInts start(float) { return {no_ints(), no_ints()}; }
inline PairInts dot_signed(PairInts sum, PairBytes w, const int8_t* a) { return {dot_four(sum.a, w.a, four(a)), dot_four(sum.b, w.b, four(a))}; }
inline PairInts dot_signed_less(PairInts sum, PairBytes w, const int8_t* a, char shift) {
    const Four less = four_less(a, shift);
    return {dot_four(sum.a, w.a, less), dot_four(sum.b, w.b, less)};
}
inline PairInts dot_unsigned(PairInts sum, PairBytes w, const int8_t* a) {
    const auto those = four_unsigned(a);
    return {dot_four_unsigned(sum.a, w.a, those), dot_four_unsigned(sum.b, w.b, those)};
}

struct PairNibbles {
    Shorts a, b;
};
inline PairNibbles start_nibbles() { return {no_shorts(), no_shorts()}; }
inline Pair floats(PairNibbles x) { return pair_of(floats(fours(x.a)), floats(fours(x.b))); }
inline PairBytes low_nibbles(PairBytes w) { return {low_nibbles(w.a), low_nibbles(w.b)}; }
inline PairBytes high_nibbles(PairBytes w) { return {high_nibbles(w.a), high_nibbles(w.b)}; }
inline PairNibbles dot_nibbles(PairNibbles sum, PairBytes w, const int8_t* a) { return {dot_pairs(sum.a, w.a, four(a)), dot_pairs(sum.b, w.b, four(a))}; }

#endif

}  // namespace SIGHTLINE_ISA
