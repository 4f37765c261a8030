// What Python and forward.c call; the arguments' shapes.
#ifndef TRIFORCE_DRIVERS_H
#define TRIFORCE_DRIVERS_H

#include <stdint.h>

#include "kernels.h"

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

typedef struct {
    const float *q;  // [n, heads, dim], rotated
    const void *keys, *values;  // [kv_heads, (head_stride / dim), dim]
    const float *key_scales, *value_scales;  // [kv_heads, head_stride / dim], int8 only
    const uint8_t *ancestors;  // [n, n] or null
    float *out;  // [n, heads, dim]
    int64_t rows, head_stride, window;
    int32_t n, heads, kv_heads, dim, type;
} attend_args;

typedef struct {
    const float *q, *k, *v;  // [n, heads, dim] and twice [n, kv_heads, dim], unrotated, tokens a stride apart
    const float *cos, *sin;  // [n, width]: halves repeated, sine signed
    float *rotated;  // [n, heads, dim], the queries
    void *keys, *values;  // [kv_heads, head_stride / dim, dim]
    int64_t q_stride, k_stride, v_stride, row, head_stride;  // row: the first new one
    int32_t n, heads, kv_heads, dim, width, type;
} rotate_args;

API int triforce_attend(const attend_args *a);
API void triforce_linear(const linear_job *job);
API void triforce_rms_norm(const float *x, const float *weight, float *out, int64_t rows, int64_t dim, float eps);
API void triforce_silu_mul(const float *gate_up, float *out, int64_t rows, int64_t inner);
API void triforce_rotate_and_store(const rotate_args *a);

#endif
