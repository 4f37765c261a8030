// One vector of floats, as wide as the instruction set that this file is compiled for, and its loads from row formats.
// Built on the compilers' vector extensions; intrinsics only where those have no word (half precision).
#ifndef TRIFORCE_SIMD_H
#define TRIFORCE_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define WIDTH 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define WIDTH 8
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#define WIDTH 4
#else
#define WIDTH 4
#endif

typedef float vfloat __attribute__((vector_size(4 * WIDTH)));
typedef int32_t vint __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t vuint __attribute__((vector_size(4 * WIDTH)));

static inline vfloat load(const float *p) {
    vfloat v = {0};
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store(float *p, vfloat v) { memcpy(p, &v, sizeof v); }

static inline vfloat splat(float x) { return x - (vfloat){0}; }  // x + 0 would be an addition: it turns -0 into 0

static inline float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    float value;
    if (rest >= 0x7c00) {  // infinity or not a number
        uint32_t bits = sign | 0x7f800000u | (rest & 0x3ff) << 13;
        memcpy(&value, &bits, 4);
        return value;
    }
    uint32_t bits = rest << 13;  // as if exponents had float's bias; the product mends it, denormals included
    memcpy(&value, &bits, 4);
    value *= 0x1p112f;
    memcpy(&bits, &value, 4);
    bits |= sign;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint16_t float_to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint16_t sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits >= 0x7f800000) return sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00);
    if (bits >= 0x477ff000) return sign | 0x7c00;  // rounds past the largest half
    if (bits < 0x38800000) {                       // denormal: let the addition round
        float value, magic = 0.5f;
        memcpy(&value, &bits, 4);
        value += magic;
        memcpy(&bits, &value, 4);
        return sign | (uint16_t)(bits - 0x3f000000);
    }
    bits += 0xc8000fff + (bits >> 13 & 1);  // new bias, round to nearest even
    return sign | (uint16_t)(bits >> 13);
}

static inline float bfloat_to_float(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint16_t float_to_bfloat(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static inline vfloat load_half(const uint16_t *p) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__AVX2__)
    return (vfloat)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (vfloat)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
    vfloat v = {0};
    for (int i = 0; i < WIDTH; i++) v[i] = half_to_float(p[i]);
    return v;
#endif
}

static inline vint widen_u8(const uint8_t *p) {
#if defined(__AVX512F__)
    return (vint)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
#elif defined(__AVX2__)
    return (vint)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    vint v = {0};
    for (int i = 0; i < WIDTH; i++) v[i] = p[i];
    return v;
#endif
}

static inline vint widen_s8(const int8_t *p) {
#if defined(__AVX512F__)
    return (vint)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
#elif defined(__AVX2__)
    return (vint)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    vint v = {0};
    for (int i = 0; i < WIDTH; i++) v[i] = p[i];
    return v;
#endif
}

static inline vfloat to_float(vint v) { return __builtin_convertvector(v, vfloat); }

static inline vfloat load_bfloat(const uint16_t *p) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined(__AVX2__)
    return (vfloat)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    vfloat v = {0};
    for (int i = 0; i < WIDTH; i++) v[i] = bfloat_to_float(p[i]);
    return v;
#endif
}

static inline vfloat load_int8(const int8_t *p) { return to_float(widen_s8(p)); }

static inline vfloat larger(vfloat a, vfloat b) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vfloat)_mm256_max_ps((__m256)a, (__m256)b);
#else
    vint first = a > b;
    return (vfloat)(((vint)a & first) | ((vint)b & ~first));
#endif
}

static inline float highest(vfloat v) {
#if WIDTH == 8
    __m128 x = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
#endif
    float most = v[0];
    for (int i = 1; i < WIDTH; i++) most = v[i] > most ? v[i] : most;
    return most;
}

static inline float sum(vfloat v) {
#if WIDTH == 8
    __m128 x = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
#elif WIDTH == 16
    return _mm512_reduce_add_ps((__m512)v);
#else
    float total = 0;
    for (int i = 0; i < WIDTH; i++) total += v[i];
    return total;
#endif
}

// Elements [d, d + WIDTH) of a row of keys or values, and element d alone; 8-bit ones without their scale.
static inline vfloat load_row(int type, const char *row, int64_t d) {
    switch (type) {
        case ROW_FLOAT32: return load((const float *)row + d);
        case ROW_FLOAT16: return load_half((const uint16_t *)row + d);
        case ROW_INT8: return load_int8((const int8_t *)row + d);
    }
    return load_bfloat((const uint16_t *)row + d);
}

static inline float load_one(int type, const char *row, int64_t d) {
    switch (type) {
        case ROW_FLOAT32: return ((const float *)row)[d];
        case ROW_FLOAT16: return half_to_float(((const uint16_t *)row)[d]);
        case ROW_INT8: return ((const int8_t *)row)[d];
    }
    return bfloat_to_float(((const uint16_t *)row)[d]);
}

// 16 bytes, which shifts take in pairs: what comes over from a neighbour must be masked away. With vectors of 8, both halves of a
// register hold them all, so that each widens its own without crossing over.
typedef uint16_t vbytes __attribute__((vector_size(WIDTH == 8 ? 32 : 16)));
#define PARTS (16 / WIDTH)  // vectors that they widen to

typedef uint32_t vwords __attribute__((vector_size(16)));  // the same, as four words

static inline vwords load_words(const uint8_t *p) {
    vwords words;
    memcpy(&words, p, sizeof words);
    return words;
}

static inline vbytes bytes_of(vwords words) {
#if WIDTH == 8
    return (vbytes)_mm256_broadcastsi128_si256((__m128i)words);
#else
    return (vbytes)words;
#endif
}

static inline vbytes load_16(const uint8_t *p) { return bytes_of(load_words(p)); }

static inline void widen_16(vbytes bytes, vint *out) {
#if WIDTH == 16
    out[0] = (vint)_mm512_cvtepu8_epi32((__m128i)bytes);
#elif WIDTH == 8
    const __m256i first = _mm256_setr_epi64x(0xffffff01ffffff00, 0xffffff03ffffff02, 0xffffff05ffffff04, 0xffffff07ffffff06);
    out[0] = (vint)_mm256_shuffle_epi8((__m256i)bytes, first);
    out[1] = (vint)_mm256_shuffle_epi8((__m256i)bytes, _mm256_add_epi32(first, _mm256_set1_epi32(8)));
#else
    uint8_t each[16];
    memcpy(each, &bytes, sizeof each);
    for (int i = 0; i < PARTS; i++) out[i] = widen_u8(each + i * WIDTH);
#endif
}

// A small square of rows: TILE elements of each of TILE rows, and its columns out[d * stride + row].
#if WIDTH >= 8
#define TILE 8
typedef __m256 vtile;

static inline vtile load_tile(int type, const char *row, int64_t d) {
    switch (type) {
        case ROW_FLOAT32: return _mm256_loadu_ps((const float *)row + d);
        case ROW_FLOAT16: return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)row + d)));
        case ROW_INT8: return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(row + d))));
    }
    const __m128i narrow = _mm_loadu_si128((const __m128i *)((const uint16_t *)row + d));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

static inline void turn_tile(const vtile *rows, float *out, int64_t stride) {
    __m256 a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int half = 0; half < 2; half++) {
            b[i + 2 * half] = _mm256_shuffle_ps(a[i + half], a[i + half + 2], 0x44);
            b[i + 2 * half + 1] = _mm256_shuffle_ps(a[i + half], a[i + half + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + i * stride, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * stride, _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
    }
}

// The same of 16 rows of 16-bit elements, without looking at what they mean: out[d * stride + row] for eight d.
#define NARROW_TILE 16

static inline void turn_narrow_tile(const char *rows, int64_t bytes, uint16_t *out, int64_t stride) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i++) {  // row i beside row i + 8
        const __m128i low = _mm_loadu_si128((const __m128i *)(rows + i * bytes));
        const __m128i high = _mm_loadu_si128((const __m128i *)(rows + (i + 8) * bytes));
        a[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    for (int i = 0; i < 8; i += 2) {  // pairs of rows, four elements each
        b[i] = _mm256_unpacklo_epi16(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi16(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)  // fours of rows, two elements each
        for (int half = 0; half < 2; half++) {
            a[i + 2 * half] = _mm256_unpacklo_epi32(b[i + half], b[i + half + 2]);
            a[i + 2 * half + 1] = _mm256_unpackhi_epi32(b[i + half], b[i + half + 2]);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_si256((__m256i *)(out + 2 * i * stride), _mm256_unpacklo_epi64(a[i], a[i + 4]));
        _mm256_storeu_si256((__m256i *)(out + (2 * i + 1) * stride), _mm256_unpackhi_epi64(a[i], a[i + 4]));
    }
}
#elif defined(__ARM_NEON) && defined(__aarch64__)
#define TILE 4
typedef float32x4_t vtile;

static inline vtile load_tile(int type, const char *row, int64_t d) { return (vtile)load_row(type, row, d); }

static inline void turn_tile(const vtile *rows, float *out, int64_t stride) {
    const float32x4_t a = vtrn1q_f32(rows[0], rows[1]), b = vtrn2q_f32(rows[0], rows[1]);
    const float32x4_t c = vtrn1q_f32(rows[2], rows[3]), d = vtrn2q_f32(rows[2], rows[3]);
    vst1q_f32(out, vcombine_f32(vget_low_f32(a), vget_low_f32(c)));
    vst1q_f32(out + stride, vcombine_f32(vget_low_f32(b), vget_low_f32(d)));
    vst1q_f32(out + 2 * stride, vcombine_f32(vget_high_f32(a), vget_high_f32(c)));
    vst1q_f32(out + 3 * stride, vcombine_f32(vget_high_f32(b), vget_high_f32(d)));
}
#endif

// 2^x for x < 127 to within 2 units in the last place; 0 below -126.
static inline vfloat exp2_small(vfloat x) {
    const vint tiny = x < -126.0f;
    const vfloat shifted = x + 12582912.0f;  // 1.5 * 2^23: rounds to the nearest integer
    const vfloat r = x - (shifted - 12582912.0f);
    vfloat p = splat(1.53800356e-4f);
    p = p * r + 1.34055165e-3f;
    p = p * r + 9.61836707e-3f;
    p = p * r + 5.55031113e-2f;
    p = p * r + 2.40226477e-1f;
    p = p * r + 6.93147242e-1f;
    p = p * r + 1.0f;
    return (vfloat)(((vuint)p + ((vuint)shifted << 23)) & (vuint)~tiny);  // unsigned: what is masked may overflow
}

#endif
