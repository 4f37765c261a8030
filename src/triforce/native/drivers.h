// What Python calls; the arguments' shapes. `native/structs.py` lays out the same structs.
#ifndef TRIFORCE_DRIVERS_H
#define TRIFORCE_DRIVERS_H

#include <stdint.h>

#include "kernels.h"

#define LINE 64  // bytes of a line of the first-level cache

// The first line within memory that is a line longer than needed: a vector of 64 bytes that lies across two takes twice as long.
static inline float *first_line(char *memory) { return (float *)(memory + LINE - (uintptr_t)memory % LINE); }

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

typedef struct {
    const float *q;  // [n, heads, dim], rotated
    const void *keys, *values;  // [kv_heads, head_stride / dim, dim]
    const float *key_scales, *value_scales;  // [kv_heads, head_stride / dim], of 8-bit rows
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
    float *key_scales, *value_scales;  // [kv_heads, head_stride / dim], of 8-bit rows
    int64_t q_stride, k_stride, v_stride, row, head_stride;  // row: the first new one
    int32_t n, heads, kv_heads, dim, width, type;
} rotate_args;

typedef struct {
    const uint8_t *weights;
    int64_t out, row_bytes;
    int32_t type;
} matrix_part;

// Rows in up to three formats, one part after the other.
typedef struct {
    matrix_part parts[3];
    const float *bias;  // [out] or null
    int64_t in, out;
    int32_t num_parts;
} matrix;

typedef struct {
    const float *attention_norm, *q_norm, *k_norm, *mlp_norm;  // q_norm and k_norm [dim] or null
    matrix qkv, output, gate_up, down;
} layer_weights;

typedef struct {
    const layer_weights *layers;
    const float *norm;
    int64_t hidden, inner;
    int32_t num_layers, heads, kv_heads, dim;
    float eps;
} model_weights;

typedef struct {
    void *keys, *values;  // [layers, kv_heads, head_stride / dim, dim]
    float *key_scales, *value_scales;  // [layers, kv_heads, head_stride / dim], of 8-bit rows
    float *queries;  // [layers, n, heads, dim], filled with the rotated queries
    const float *cos, *sin;  // [n, width]
    int64_t layer_stride, head_stride, row, window;  // row: where the new rows go, after all that are seen
    int32_t width, type;
} cache_rows;

typedef struct {
    const float *q;  // [layers, n, heads, dim], rotated
    const int8_t *means;  // [layers, kv_heads, mean_stride, dim]: the chunks' mean keys
    const float *scales;  // [layers, kv_heads, mean_stride]
    float *scores;  // [layers, kv_heads, chunks]
    int64_t mean_stride, chunks;
    int32_t layers, n, heads, kv_heads, dim;
} score_args;

typedef struct {
    const void *from;
    void *to;
    const int64_t *chunks;  // [heads, count]
    int64_t from_stride, to_stride, chunk_bytes, count;  // bytes from head to head; chunks lie side by side
    int32_t heads;
} gather_args;

typedef struct {
    const void *keys;  // [heads, head_stride / dim, dim]
    const float *key_scales;  // [heads, head_stride / dim], of 8-bit rows
    int8_t *means;  // [heads, mean_stride, dim], of which chunks [begin, end) are made
    float *scales;  // [heads, mean_stride]
    int64_t head_stride, mean_stride, begin, end;
    int32_t heads, dim, chunk, type;
} mean_args;

extern const kernel_table *chosen;  // the variant in use, of the whole process

API const char *triforce_use(const char *variant);
API int triforce_threads(void);
API int64_t triforce_size_of(int which);
API int triforce_attend(const attend_args *a);
API void triforce_linear(const linear_job *job);
API void triforce_rms_norm(const float *x, const float *weight, float *out, int64_t rows, int64_t dim, float eps);
API void triforce_silu_mul(const float *gate_up, float *out, int64_t rows, int64_t inner);
API int64_t triforce_row_bytes(int type, int64_t in);
API void triforce_dequantise(int type, const uint8_t *source, float *out, int64_t rows, int64_t row_bytes, int64_t in);
API void triforce_rotate_and_store(const rotate_args *a);
API int triforce_forward(const model_weights *m, const cache_rows *c, float *x, float *out, int n);
API int triforce_score_chunks(const score_args *a);
API void triforce_gather_chunks(const gather_args *a);
API void triforce_mean_chunks(const mean_args *a);

#endif
