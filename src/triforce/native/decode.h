// Weights from the formats of GGUF files to floats, 32 at a time in registers: the gguf library's values, in float32.
// Layouts: ggml's block_q4_0 and so on (ggml-common.h, MIT), written down as byte offsets.
#ifndef TRIFORCE_DECODE_H
#define TRIFORCE_DECODE_H

#include "kernels.h"
#include "simd.h"

#define GROUP 32                // weights decoded at a time; every row is a multiple of it
#define VECTORS (GROUP / WIDTH)  // registers that hold them
#define SHARING (256 / GROUP)    // groups of a block whose scales lie together
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

// `count` bits of each byte, from bit `at` on.
INLINE vbytes bits_of(vbytes bytes, int at, int count) { return bytes >> at & (uint16_t)(((1 << count) - 1) * 0x0101); }

// 32 weights from 16 bytes of nibbles, low ones first, with a fifth bit each from `high`: scale * q + offset
INLINE void decode_nibbles(const uint8_t *q, uint32_t high, int five_bits, vfloat scale, vfloat offset, vfloat *w) {
    vint packed[PARTS];
    widen_16(load_16(q), packed);
    for (int g = 0; g < VECTORS; g++) {
        vint value = g < PARTS ? packed[g] & 15 : packed[g - PARTS] >> 4;
        if (five_bits) value |= (((vint){0} + (int32_t)high) >> (lanes() + g * WIDTH) & 1) << 4;
        w[g] = to_float(value) * scale + offset;
    }
}

// The scales of a block of 256 weights. Q6_K: of[2 * j + half] of each half of group j. Q4_K and Q5_K: of[j], and of[8 + j],
// which is taken off.
typedef struct {
    float of[16];
} block_scales;

// Of Q4_K or Q5_K: after two halves come 12 bytes, here x[1] to x[3], with eight scales and eight minima of 6 bits. The first
// four of each are whole; of the last four, the upper two bits lie above the first ones', the lower four in x[3].
INLINE void read_k_scales(const uint8_t *block, block_scales *out) {
    const vwords x = load_words(block);
    const vwords once = {x[1], x[1], x[2], x[2]};  // for scales 0 to 3, 4 to 7, minima 0 to 3, 4 to 7
    const vwords lower = (vwords){x[3], x[3], x[3], x[3]} >> (vwords){0, 0, 0, 4} & (vwords){0, 0x0f0f0f0f, 0, 0x0f0f0f0f};
    const vwords whole = once & (vwords){0x3f3f3f3f, 0, 0x3f3f3f3f, 0};
    const vwords upper = once >> 2 & (vwords){0, 0x30303030, 0, 0x30303030};
    const vfloat d = splat_half(block), m = splat_half(block + 2);
    vint values[PARTS];
    widen_16(bytes_of(whole | upper | lower), values);
    for (int i = 0; i < PARTS; i++) {
        const vint scale = lanes() + i * WIDTH < 8;
        store(out->of + i * WIDTH, to_float(values[i]) * (vfloat)(((vint)d & scale) | ((vint)m & ~scale)));
    }
}

INLINE void read_scales(int type, const uint8_t *block, block_scales *out) {
    if (type == WEIGHT_Q4_K || type == WEIGHT_Q5_K) read_k_scales(block, out);
    if (type != WEIGHT_Q6_K) return;
    const int8_t *scales = (const int8_t *)(block + 192);
    const float d = read_half(block + 208);
    for (int i = 0; i < 16; i++) out->of[i] = d * (float)scales[i];
}

// Group j of a block: the bits of 16 weights are put together as bytes, then widened.
INLINE void decode_q4_q5_k(const uint8_t *block, int j, int five_bits, const block_scales *s, vfloat *w) {
    const uint8_t *high = block + 16, *q = high + (five_bits ? 32 : 0) + 32 * (j / 2);
    for (int half = 0; half < 2; half++, w += PARTS) {
        vbytes together = bits_of(load_16(q + 16 * half), 4 * (j & 1), 4);
        if (five_bits) together |= bits_of(load_16(high + 16 * half), j, 1) << 4;
        vint values[PARTS];
        widen_16(together, values);
        for (int i = 0; i < PARTS; i++) w[i] = to_float(values[i]) * s->of[j] - s->of[8 + j];
    }
}

INLINE void decode_q6_k(const uint8_t *block, int j, const block_scales *s, vfloat *w) {
    const int part = j % 4;
    const uint8_t *low = block + 64 * (j / 4) + 32 * (part & 1), *high = block + 128 + 32 * (j / 4);
    for (int half = 0; half < 2; half++, w += PARTS) {
        vint values[PARTS];
        const vbytes lower = bits_of(load_16(low + 16 * half), 4 * (part / 2), 4);
        widen_16(lower | bits_of(load_16(high + 16 * half), 2 * part, 2) << 4, values);
        for (int i = 0; i < PARTS; i++) w[i] = to_float(values[i] - 32) * s->of[2 * j + half];
    }
}

// The block that group number `group` of a row of weights lies in. Unsigned: divided by shifts alone.
INLINE const uint8_t *block_of(int type, const uint8_t *row, uint64_t group) {
    const uint64_t groups = block_weights(type) / GROUP;  // in a block; 0 for plain formats
    return groups ? row + group / groups * block_bytes(type) : row + group * GROUP * block_bytes(type);
}

// Whether the scales of all groups of a block lie together.
INLINE int shares_scales(int type) { return block_weights(type) > GROUP; }

// Group number `group` of a row of weights; `s` are the scales of its block where groups share them.
INLINE void decode(int type, const uint8_t *row, uint64_t group, const block_scales *s, vfloat *w) {
    const uint8_t *b = block_of(type, row, group);
    const int j = (int)(group % SHARING);
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
        case WEIGHT_Q4_K: decode_q4_q5_k(b, j, 0, s, w); break;
        case WEIGHT_Q5_K: decode_q4_q5_k(b, j, 1, s, w); break;
        case WEIGHT_Q6_K: decode_q6_k(b, j, s, w); break;
    }
}

#endif
