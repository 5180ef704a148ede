// Vectors of eight floats on AVX2 (with or without VNNI), NEON, or portable C++ that compilers unroll.
//
// Lanes are independent: a kernel computes the same value for an output in any lane, so results do not depend on the batch, the chunking
// or the number of threads.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace SIGHTLINE_ISA {

constexpr int LANES = 8;

#if defined(__AVX2__)

struct Floats {
    __m256 v;
};
inline Floats load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm256_storeu_ps(p, a.v); }
inline Floats broadcast(float a) { return {_mm256_set1_ps(a)}; }
inline Floats zero() { return {_mm256_setzero_ps()}; }
inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Floats round_nearest(Floats a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Floats absolute(Floats a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
// −a where `sign` is negative, else a.
inline Floats with_sign(Floats a, Floats sign) { return {_mm256_xor_ps(a.v, _mm256_and_ps(sign.v, _mm256_set1_ps(-0.0f)))}; }
inline Floats select_less(Floats a, Floats b, Floats yes, Floats no) {
    return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
// 2^n for integer n within the range of normal floats
inline Floats power_of_two(Floats n) {
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23);
    return {_mm256_castsi256_ps(bits)};
}
inline Floats load_half(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
inline void store_half(uint16_t* p, Floats a) { _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT)); }

#elif defined(__ARM_NEON)

struct Floats {
    float32x4_t a, b;
};
inline Floats load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float* p, Floats x) { vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b); }
inline Floats broadcast(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline Floats zero() { return broadcast(0.0f); }
inline Floats operator+(Floats x, Floats y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
inline Floats operator-(Floats x, Floats y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
inline Floats operator*(Floats x, Floats y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
inline Floats operator/(Floats x, Floats y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
inline Floats fma(Floats x, Floats y, Floats z) { return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
inline Floats max(Floats x, Floats y) { return {vmaxq_f32(x.a, y.a), vmaxq_f32(x.b, y.b)}; }
inline Floats min(Floats x, Floats y) { return {vminq_f32(x.a, y.a), vminq_f32(x.b, y.b)}; }
inline Floats round_nearest(Floats x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b)}; }
inline Floats absolute(Floats x) { return {vabsq_f32(x.a), vabsq_f32(x.b)}; }
inline Floats with_sign(Floats x, Floats sign) {
    const uint32x4_t bit = vdupq_n_u32(0x80000000u);
    auto one = [&](float32x4_t v, float32x4_t s) {
        return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(v), vandq_u32(vreinterpretq_u32_f32(s), bit)));
    };
    return {one(x.a, sign.a), one(x.b, sign.b)};
}
inline Floats select_less(Floats x, Floats y, Floats yes, Floats no) {
    return {vbslq_f32(vcltq_f32(x.a, y.a), yes.a, no.a), vbslq_f32(vcltq_f32(x.b, y.b), yes.b, no.b)};
}
inline Floats power_of_two(Floats n) {
    auto one = [](float32x4_t v) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(v), vdupq_n_s32(127)), 23)); };
    return {one(n.a), one(n.b)};
}
inline Floats load_half(const uint16_t* p) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))), vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4)))};
}
inline void store_half(uint16_t* p, Floats x) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x.a))), vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(x.b)));
}

#else

struct Floats {
    float v[LANES];
};
#define SIGHTLINE_EACH(expression)                       \
    Floats r;                                            \
    for (int i = 0; i < LANES; i++) r.v[i] = expression; \
    return r;
inline Floats load(const float* p) { SIGHTLINE_EACH(p[i]) }
inline void store(float* p, Floats a) { std::memcpy(p, a.v, sizeof a.v); }
inline Floats broadcast(float a) { SIGHTLINE_EACH(a) }
inline Floats zero() { return broadcast(0.0f); }
inline Floats operator+(Floats a, Floats b) { SIGHTLINE_EACH(a.v[i] + b.v[i]) }
inline Floats operator-(Floats a, Floats b) { SIGHTLINE_EACH(a.v[i] - b.v[i]) }
inline Floats operator*(Floats a, Floats b) { SIGHTLINE_EACH(a.v[i] * b.v[i]) }
inline Floats operator/(Floats a, Floats b) { SIGHTLINE_EACH(a.v[i] / b.v[i]) }
inline Floats fma(Floats a, Floats b, Floats c) { SIGHTLINE_EACH(a.v[i] * b.v[i] + c.v[i]) }
inline Floats max(Floats a, Floats b) { SIGHTLINE_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]) }
inline Floats min(Floats a, Floats b) { SIGHTLINE_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]) }
inline Floats round_nearest(Floats a) { SIGHTLINE_EACH(std::nearbyintf(a.v[i])) }
inline Floats absolute(Floats a) { SIGHTLINE_EACH(std::fabs(a.v[i])) }
inline Floats with_sign(Floats a, Floats sign) { SIGHTLINE_EACH(std::signbit(sign.v[i]) ? -a.v[i] : a.v[i]) }
inline Floats select_less(Floats a, Floats b, Floats yes, Floats no) { SIGHTLINE_EACH(a.v[i] < b.v[i] ? yes.v[i] : no.v[i]) }
inline Floats power_of_two(Floats n) { SIGHTLINE_EACH(std::ldexp(1.0f, (int)n.v[i])) }
inline float from_half(uint16_t h) {
    uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    uint32_t bits = sign | ((exponent + 112) << 23) | (fraction << 13);
    if (exponent == 31) bits = sign | 0x7f800000u | (fraction << 13);
    float f;
    std::memcpy(&f, &bits, 4);
    return exponent == 0 ? (sign ? -1.0f : 1.0f) * std::ldexp((float)fraction, -24) : f;
}
inline uint16_t to_half(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    uint16_t sign = (bits >> 16) & 0x8000;
    float size = std::fabs(f);
    if (std::isnan(f)) return sign | 0x7e00;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 6.103515625e-05f) return sign | (uint16_t)std::nearbyintf(std::ldexp(size, 24));
    std::memcpy(&bits, &size, 4);
    bits += 0xfff + ((bits >> 13) & 1);  // to even
    return sign | (uint16_t)((bits - (112u << 23)) >> 13);
}
inline Floats load_half(const uint16_t* p) { SIGHTLINE_EACH(from_half(p[i])) }
inline void store_half(uint16_t* p, Floats a) {
    for (int i = 0; i < LANES; i++) p[i] = to_half(a.v[i]);
}
#undef SIGHTLINE_EACH

#endif

inline void transpose(const Floats in[LANES], Floats out[LANES]) {
#if defined(__AVX2__)
    __m256 pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) pairs[i] = _mm256_unpacklo_ps(in[i].v, in[i + 1].v), pairs[i + 1] = _mm256_unpackhi_ps(in[i].v, in[i + 1].v);
    for (int i = 0; i < 8; i += 4)
        for (int h = 0; h < 2; h++) {
            fours[i + 2 * h] = _mm256_shuffle_ps(pairs[i + h], pairs[i + h + 2], _MM_SHUFFLE(1, 0, 1, 0));
            fours[i + 2 * h + 1] = _mm256_shuffle_ps(pairs[i + h], pairs[i + h + 2], _MM_SHUFFLE(3, 2, 3, 2));
        }
    for (int i = 0; i < 4; i++) {
        out[i].v = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        out[i + 4].v = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
#else
    float block[LANES][LANES], column[LANES];
    for (int r = 0; r < LANES; r++) store(block[r], in[r]);
    for (int c = 0; c < LANES; c++) {
        for (int r = 0; r < LANES; r++) column[r] = block[r][c];
        out[c] = load(column);
    }
#endif
}

inline float sum(Floats a) {  // in the same order on every processor
#if defined(__AVX2__)
    const __m128 fours = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1)), twos = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
    return _mm_cvtss_f32(_mm_add_ss(twos, _mm_movehdup_ps(twos)));
#else
    float v[LANES];
    store(v, a);
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#endif
}
inline float horizontal_max(Floats a) {
#if defined(__AVX2__)
    const __m128 fours = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1)), twos = _mm_max_ps(fours, _mm_movehl_ps(fours, fours));
    return _mm_cvtss_f32(_mm_max_ss(twos, _mm_movehdup_ps(twos)));
#else
    float v[LANES], top;
    store(v, a);
    top = v[0];
    for (int i = 1; i < LANES; i++) top = v[i] > top ? v[i] : top;
    return top;
#endif
}

// e^x = 2^n e^r, |r| ≤ ln 2 / 2; error about 1 ulp. Clamped below −87, where it is practically 0.
template <class V, V (*every)(float)>
inline V exponential_of(V x) {
    x = max(min(x, every(88.0f)), every(-87.0f));
    V n = round_nearest(x * every(1.44269504f));
    V r = fma(n, every(-0.693359375f), x);
    r = fma(n, every(2.12194440e-4f), r);
    V p = every(1.9875691500e-4f);
    p = fma(p, r, every(1.3981999507e-3f));
    p = fma(p, r, every(8.3334519073e-3f));
    p = fma(p, r, every(4.1665795894e-2f));
    p = fma(p, r, every(1.6666665459e-1f));
    p = fma(p, r, every(5.0000001201e-1f));
    p = fma(p, r * r, r + every(1.0f));
    return p * power_of_two(n);
}
inline Floats exponential(Floats x) { return exponential_of<Floats, broadcast>(x); }

// Arrays whose length is not a multiple of 8: the last elements are loaded into, and stored from, a partial vector.
template <class Body>
inline void for_each_vector(long count, Body body) {
    long i = 0;
    for (; i + LANES <= count; i += LANES) body(i, LANES);
    if (i < count) body(i, (int)(count - i));
}
inline Floats load(const float* p, int count, float rest = 0.0f) {
    if (count == LANES) return load(p);
    float v[LANES];
    for (int i = 0; i < LANES; i++) v[i] = i < count ? p[i] : rest;
    return load(v);
}
inline void store(float* p, Floats a, int count) {
    if (count == LANES) return store(p, a);
    float v[LANES];
    store(v, a);
    std::memcpy(p, v, (count & (LANES - 1)) * sizeof(float));
}

}  // namespace SIGHTLINE_ISA

// ------------------------------------------------------------------------------------------------------------------ integers
//
// Dot products of four: lane r accumulates Σ_{i<4} w[r][i] · a[i], with 32 weights in a vector and the same 4 activations for all rows.

namespace SIGHTLINE_ISA {

#if defined(__AVX2__)

struct Ints {
    __m256i v;
};
inline Ints zero_ints() { return {_mm256_setzero_si256()}; }
inline Floats floats(Ints a) { return {_mm256_cvtepi32_ps(a.v)}; }
struct Bytes {  // 32 weights
    __m256i v;
};
inline Bytes load_bytes(const uint8_t* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
struct Four {  // 4 activations, broadcast to every row, and their absolute values
    __m256i value, size;
};
inline Four four(const int8_t* a) {
    int32_t word;
    std::memcpy(&word, a, 4);
    __m256i value = _mm256_set1_epi32(word);
    return {value, _mm256_abs_epi8(value)};
}
// Keeps an accumulator in its register: otherwise compilers spill all products of a loop to memory and add them at the end.
inline __m256i keep_in_register(__m256i sum) {
    asm("" : "+x"(sum));
    return sum;
}
// Σ over four of unsigned a and signed w; a, |w| ≤ 127, so the sum of a pair fits 16 bits
inline __m256i add_products(__m256i sum, __m256i a, __m256i w) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, a, w);
#else
    return keep_in_register(_mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, w), _mm256_set1_epi16(1))));
#endif
}
inline Ints dot_four(Ints sum, Bytes w, Four a) { return {add_products(sum.v, a.size, _mm256_sign_epi8(w.v, a.value))}; }
// a from 0 to 127
inline Ints dot_four_unsigned(Ints sum, Bytes w, __m256i a) { return {add_products(sum.v, a, w.v)}; }
inline __m256i four_unsigned(const int8_t* a) {
    int32_t word;
    std::memcpy(&word, a, 4);
    return _mm256_set1_epi32(word);
}
inline Four four_minus(const int8_t* a, char shift) {
    __m256i value = _mm256_sub_epi8(four_unsigned(a), _mm256_set1_epi8(shift));
    return {value, _mm256_abs_epi8(value)};
}
inline Ints load_times_64(const int16_t* p) { return {_mm256_slli_epi32(_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i*)p)), 6)}; }
// 32 integers from −128 to 127
inline void store_bytes(int8_t* p, Floats a, Floats b, Floats c, Floats d) {
    __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(a.v), _mm256_cvtps_epi32(b.v));
    __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(c.v), _mm256_cvtps_epi32(d.v));
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packs_* work within 128-bit halves
    _mm256_storeu_si256((__m256i*)p, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
}
struct Shorts {  // sums of pairs of nibble products: at most 8 · 2 · 15 · 127 < 2¹⁵ in a group of 32
    __m256i v;
};
inline Shorts zero_shorts() { return {_mm256_setzero_si256()}; }
inline Bytes low_nibbles(Bytes w) { return {_mm256_and_si256(w.v, _mm256_set1_epi8(15))}; }
inline Bytes high_nibbles(Bytes w) { return {_mm256_and_si256(_mm256_srli_epi16(w.v, 4), _mm256_set1_epi8(15))}; }
inline Shorts dot_pairs(Shorts sum, Bytes nibbles, Four a) { return {keep_in_register(_mm256_add_epi16(sum.v, _mm256_maddubs_epi16(nibbles.v, a.value)))}; }
inline Ints fours(Shorts sum) { return {_mm256_madd_epi16(sum.v, _mm256_set1_epi16(1))}; }
inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
inline void prefetch_far(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }

#else

struct Ints {
    int32_t v[LANES];
};
inline Ints zero_ints() { return {}; }
inline Floats floats(Ints a) {
    float f[LANES];
    for (int i = 0; i < LANES; i++) f[i] = (float)a.v[i];
    return load(f);
}
struct Bytes {
    uint8_t v[32];
};
inline Bytes load_bytes(const uint8_t* p) {
    Bytes b;
    std::memcpy(b.v, p, 32);
    return b;
}
struct Four {
    int8_t v[4];
};
inline Four four(const int8_t* a) { return {{a[0], a[1], a[2], a[3]}}; }
inline Ints dot_four(Ints sum, Bytes w, Four a) {
    for (int r = 0; r < LANES; r++)
        for (int i = 0; i < 4; i++) sum.v[r] += (int)(int8_t)w.v[4 * r + i] * a.v[i];
    return sum;
}
inline Ints dot_four_unsigned(Ints sum, Bytes w, Four a) { return dot_four(sum, w, a); }
inline Four four_unsigned(const int8_t* a) { return four(a); }
inline Four four_minus(const int8_t* a, char shift) {
    return {{(int8_t)(a[0] - shift), (int8_t)(a[1] - shift), (int8_t)(a[2] - shift), (int8_t)(a[3] - shift)}};
}
inline Ints load_times_64(const int16_t* p) {
    Ints a;
    for (int i = 0; i < LANES; i++) a.v[i] = 64 * p[i];
    return a;
}
inline void store_bytes(int8_t* p, Floats a, Floats b, Floats c, Floats d) {
    float v[4 * LANES];
    store(v, a), store(v + LANES, b), store(v + 2 * LANES, c), store(v + 3 * LANES, d);
    for (int i = 0; i < 4 * LANES; i++) p[i] = (int8_t)v[i];
}
using Shorts = Ints;
inline Shorts zero_shorts() { return {}; }
inline Bytes low_nibbles(Bytes w) {
    for (auto& b : w.v) b &= 15;
    return w;
}
inline Bytes high_nibbles(Bytes w) {
    for (auto& b : w.v) b >>= 4;
    return w;
}
inline Shorts dot_pairs(Shorts sum, Bytes nibbles, Four a) { return dot_four(sum, nibbles, a); }
inline Ints fours(Shorts sum) { return sum; }
inline void prefetch(const void* p) { __builtin_prefetch(p); }
inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

#endif

}  // namespace SIGHTLINE_ISA
