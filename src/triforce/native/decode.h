// Weights from the formats of GGUF files to floats, 32 at a time in registers: the gguf library's values, in float32.
// Layouts: ggml's block_q4_0 and so on (ggml-common.h, MIT), written down as byte offsets.
#ifndef TRIFORCE_DECODE_H
#define TRIFORCE_DECODE_H

#include "kernels.h"
#include "simd.h"

#define GROUP 32                // weights decoded at a time; every row is a multiple of it
#define VECTORS (GROUP / WIDTH)  // registers that hold them
#define INLINE static inline __attribute__((always_inline))

static inline float read_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
#if defined(__AVX2__)
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
#else
    return half_to_float(h);
#endif
}

// One half in every lane, and two that lie side by side.
INLINE vfloat splat_half(const uint8_t *p) { return splat(read_half(p)); }

INLINE void splat_halves(const uint8_t *p, vfloat *a, vfloat *b) {
#if WIDTH == 8
    int32_t both;
    memcpy(&both, p, 4);
    const __m256 pairs = _mm256_cvtph_ps(_mm_set1_epi32(both));
    *a = (vfloat)_mm256_moveldup_ps(pairs);
    *b = (vfloat)_mm256_movehdup_ps(pairs);
#else
    *a = splat_half(p), *b = splat_half(p + 2);
#endif
}

static inline int64_t block_weights(int type) {
    switch (type) {
        case WEIGHT_F32: case WEIGHT_F16: case WEIGHT_BF16: return 1;
        case WEIGHT_Q4_K: case WEIGHT_Q5_K: case WEIGHT_Q6_K: return 256;
        default: return 32;
    }
}

static inline int64_t block_bytes(int type) {
    switch (type) {
        case WEIGHT_Q4_0: return 18;
        case WEIGHT_Q4_1: return 20;
        case WEIGHT_Q5_0: return 22;
        case WEIGHT_Q5_1: return 24;
        case WEIGHT_Q8_0: return 34;
        case WEIGHT_Q4_K: return 144;
        case WEIGHT_Q5_K: return 176;
        case WEIGHT_Q6_K: return 210;
        case WEIGHT_F32: return 4;
        case WEIGHT_F16: case WEIGHT_BF16: return 2;
    }
    return 0;
}

INLINE vint lanes(void) {
    vint v = {0};
    for (int i = 0; i < WIDTH; i++) v[i] = i;
    return v;
}

// 16 bytes as integers, WIDTH in each of `out`.
INLINE void widen_16(const uint8_t *p, vint *out) {
#if WIDTH == 8  // both halves of a register get all bytes, so that each picks its own without crossing over
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    const __m256i first = _mm256_setr_epi64x(0xffffff01ffffff00, 0xffffff03ffffff02, 0xffffff05ffffff04, 0xffffff07ffffff06);
    out[0] = (vint)_mm256_shuffle_epi8(bytes, first);
    out[1] = (vint)_mm256_shuffle_epi8(bytes, _mm256_add_epi32(first, _mm256_set1_epi32(8)));
#else
    for (int i = 0; i < 16 / WIDTH; i++) out[i] = widen_u8(p + i * WIDTH);
#endif
}

// 32 weights from 16 bytes of nibbles, low ones first, with a fifth bit each from `high`: scale * q + offset
INLINE void decode_nibbles(const uint8_t *q, uint32_t high, int five_bits, vfloat scale, vfloat offset, vfloat *w) {
    vint packed[16 / WIDTH];
    widen_16(q, packed);
    for (int g = 0; g < VECTORS; g++) {
        vint value = g * WIDTH < 16 ? packed[g] & 15 : packed[g - 16 / WIDTH] >> 4;
        if (five_bits) value |= (((vint){0} + (int32_t)high) >> (lanes() + g * WIDTH) & 1) << 4;
        w[g] = to_float(value) * scale + offset;
    }
}

// The 6-bit scale and minimum of sub-block j of a Q4_K or Q5_K block.
INLINE void scale_and_min(const uint8_t *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

INLINE void decode_q4_q5_k(const uint8_t *block, int j, int five_bits, vfloat *w) {
    const uint8_t *high = block + 16, *q = high + (five_bits ? 32 : 0) + 32 * (j / 2);
    int scale, min;
    scale_and_min(block + 4, j, &scale, &min);
    const float a = read_half(block) * (float)scale, b = read_half(block + 2) * (float)min;
    for (int g = 0; g < VECTORS; g++) {
        vint value = widen_u8(q + g * WIDTH) >> (j & 1 ? 4 : 0) & 15;
        if (five_bits) value |= (widen_u8(high + g * WIDTH) >> j & 1) << 4;
        w[g] = to_float(value) * a - b;
    }
}

INLINE void decode_q6_k(const uint8_t *block, int j, vfloat *w) {
    const int half = j / 4, part = j % 4;
    const uint8_t *low = block + 64 * half + 32 * (part & 1), *high = block + 128 + 32 * half;
    const int8_t *scales = (const int8_t *)(block + 192) + 2 * j;
    const float d = read_half(block + 208);
    for (int g = 0; g < VECTORS; g++) {
        vint value = widen_u8(low + g * WIDTH) >> (part < 2 ? 0 : 4) & 15;
        value |= (widen_u8(high + g * WIDTH) >> 2 * part & 3) << 4;
        w[g] = to_float(value - 32) * (d * (float)scales[g * WIDTH / 16]);
    }
}

// Group number `group` of a row of weights.
INLINE void decode(int type, const uint8_t *row, int64_t group, vfloat *w) {
    const int64_t groups = block_weights(type) / GROUP;  // in a block; 0 for plain formats
    const uint8_t *b = groups ? row + group / groups * block_bytes(type) : row + group * GROUP * block_bytes(type);
    const int j = groups ? (int)(group % groups) : 0;
    uint32_t high;
    vfloat d, m;
    switch (type) {
        case WEIGHT_F32: for (int g = 0; g < VECTORS; g++) w[g] = load((const float *)b + g * WIDTH); break;
        case WEIGHT_F16: for (int g = 0; g < VECTORS; g++) w[g] = load_half((const uint16_t *)b + g * WIDTH); break;
        case WEIGHT_BF16: for (int g = 0; g < VECTORS; g++) w[g] = load_bfloat((const uint16_t *)b + g * WIDTH); break;
        case WEIGHT_Q4_0: d = splat_half(b); decode_nibbles(b + 2, 0, 0, d, d * -8, w); break;
        case WEIGHT_Q4_1:
            splat_halves(b, &d, &m);
            decode_nibbles(b + 4, 0, 0, d, m, w);
            break;
        case WEIGHT_Q5_0:
            memcpy(&high, b + 2, 4);
            d = splat_half(b);
            decode_nibbles(b + 6, high, 1, d, d * -16, w);
            break;
        case WEIGHT_Q5_1:
            memcpy(&high, b + 4, 4);
            splat_halves(b, &d, &m);
            decode_nibbles(b + 8, high, 1, d, m, w);
            break;
        case WEIGHT_Q8_0:
            d = splat_half(b);
            for (int g = 0; g < VECTORS; g++) w[g] = load_int8((const int8_t *)b + 2 + g * WIDTH) * d;
            break;
        case WEIGHT_Q4_K: decode_q4_q5_k(b, j, 0, w); break;
        case WEIGHT_Q5_K: decode_q4_q5_k(b, j, 1, w); break;
        case WEIGHT_Q6_K: decode_q6_k(b, j, w); break;
    }
}

#endif
