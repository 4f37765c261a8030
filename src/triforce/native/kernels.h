// What the drivers ask of an instruction set: one table of single-threaded kernels per variant.
#ifndef TRIFORCE_KERNELS_H
#define TRIFORCE_KERNELS_H

#include <stdint.h>

// Limits, which Python checks.
#define MAX_DIM 256       // of a head
#define MOST_QUERIES 512  // query rows of one KV head: past it, the scores of a block outgrow the second-level cache

#define MOST_WIDTH 16  // floats in the widest vector of any variant
#define BLOCK 64       // rows met at a time, between two looks at the maximum
#define ROWS 32        // output rows of a linear layer met at a time, and the most that a thread takes at once
#define LOG2_E 1.44269504f  // of powers to base 2 in place of e

// Rows of 8-bit integers have a scale each: a value is the integer times its row's scale.
enum row_type { ROW_FLOAT32, ROW_FLOAT16, ROW_BFLOAT16, ROW_INT8 };

static inline int row_size(int type) { return type == ROW_FLOAT32 ? 4 : type == ROW_INT8 ? 1 : 2; }

// Weight formats as they lie in a file; the numbers are GGUF's, with bfloat16's too.
enum weight_type {
    WEIGHT_F32 = 0,
    WEIGHT_F16 = 1,
    WEIGHT_Q4_0 = 2,
    WEIGHT_Q4_1 = 3,
    WEIGHT_Q5_0 = 6,
    WEIGHT_Q5_1 = 7,
    WEIGHT_Q8_0 = 8,
    WEIGHT_Q4_K = 12,
    WEIGHT_Q5_K = 13,
    WEIGHT_Q6_K = 14,
    WEIGHT_BF16 = 30,
};

// Attention of `num_queries` query rows of one KV head over rows [begin, end) of its keys and values.
typedef struct {
    const float *q;  // [num_queries, dim], scaled, for scores to base 2; row r belongs to new token first_token + r / group
    const void *keys, *values;  // [rows, dim]
    const float *key_scales, *value_scales;  // [rows], of 8-bit rows
    const uint8_t *ancestors;  // [n, n] or null: which new tokens a new token sees; null: those up to itself
    enum row_type type;
    int32_t dim, group, num_queries, n, first_token;
    int64_t rows, window;  // all rows, of which the last n are new; positions seen back (0: all)
} attend_job;

// Floats that `attend` works in: a block's scores, and its keys, turned, in any variant. A multiple of 16: neighbours stay
// aligned.
static inline int64_t attend_scratch(int dim, int num_queries) {
    return BLOCK * (int64_t)num_queries + (BLOCK + MOST_WIDTH) * (int64_t)dim;
}

// How much the query rows of one KV head want each chunk, by its mean key: the sum of their softmaxes.
typedef struct {
    const float *q;  // [num_queries, dim], scaled, for scores to base 2
    const int8_t *means;  // [chunks, dim]
    const float *scales;  // [chunks]
    float *scores;  // [chunks]
    int32_t dim, num_queries;
    int64_t chunks;
} score_job;

// Floats that `score` works in: as many as `attend`, and a row of weights for each query.
static inline int64_t score_scratch(int dim, int num_queries, int64_t chunks) {
    return attend_scratch(dim, num_queries) + num_queries * chunks;
}

typedef struct {
    const float *x;  // [n, in]
    const uint8_t *weights;  // [out, in] in the format of `type`
    const float *bias;  // [out] or null
    float *y;  // [n, out], rows y_stride apart
    enum weight_type type;
    int32_t n, accumulate;  // accumulate: add to y
    int64_t in, out, row_bytes, y_stride;
} linear_job;

typedef struct {
    const char *name;
    // Writes the unnormalised output [num_queries, dim], the maxima (to base 2) and the sums, [num_queries] each.
    // `scratch` [attend_scratch] is the caller's: on a thread's stack, whose size is not ours, it could be too much.
    void (*attend)(const attend_job *job, int64_t begin, int64_t end, float *scratch, float *out, float *max,
                   float *sum);
    void (*score)(const score_job *job, float *scratch);
    void (*mean)(int type, const void *rows, const float *scales, int count, int dim, float *out);  // of rows [count, dim]
    void (*linear)(const linear_job *job, int64_t begin, int64_t end);  // output rows [begin, end)
    void (*rms_norm)(const float *x, const float *weight, float *out, int64_t rows, int64_t dim, float eps);
    void (*silu_mul)(const float *gate_up, float *out, int64_t rows, int64_t inner);
    void (*dequantise)(int type, const uint8_t *source, float *out, int64_t count);
} kernel_table;

extern const kernel_table kernels_portable, kernels_avx2, kernels_avx512, kernels_neon;

#endif
