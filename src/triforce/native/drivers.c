// What Python calls: chooses the instruction set once, splits the work over threads, merges. Checks no arguments.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "drivers.h"

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
static int omp_get_thread_num(void) { return 0; }
#endif

#define LINE 64  // bytes of a line of the first-level cache

static const kernel_table *chosen = &kernels_portable;

static const kernel_table *best(void) {
#if defined(TRIFORCE_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &kernels_avx512;
#endif
#if defined(TRIFORCE_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        return &kernels_avx2;
#endif
#if defined(TRIFORCE_NEON)
    return &kernels_neon;
#endif
    return &kernels_portable;
}

// Choose a variant by name for the whole process, or the best for null; returns the name in use, or null where the
// machine lacks it.
API const char *triforce_use(const char *name) {
    const kernel_table *top = best();
    if (!name || !strcmp(name, top->name))
        chosen = top;
    else if (!strcmp(name, "portable"))
        chosen = &kernels_portable;
#if defined(TRIFORCE_AVX2)
    else if (!strcmp(name, "avx2") && !strcmp(top->name, "avx512"))
        chosen = &kernels_avx2;
#endif
    else
        return 0;
    return chosen->name;
}

API int triforce_threads(void) { return omp_get_max_threads(); }

// Sizes of the structs that Python lays out by itself, then the limits that it checks; -1 past the last.
API int64_t triforce_size_of(int which) {
    static const int64_t sizes[] = {
        sizeof(attend_args),   sizeof(rotate_args),   sizeof(linear_job), sizeof(matrix_part), sizeof(matrix),
        sizeof(layer_weights), sizeof(model_weights), sizeof(cache_rows), MAX_DIM,             MOST_QUERIES,
    };
    return which >= 0 && which < (int)(sizeof sizes / sizeof *sizes) ? sizes[which] : -1;
}

static attend_job job_of_head(const attend_args *a, int head, const float *q) {
    const int64_t skip = a->head_stride * head;
    const int group = a->heads / a->kv_heads;
    return (attend_job){
        .q = q,
        .keys = (const char *)a->keys + skip * row_size(a->type),
        .values = (const char *)a->values + skip * row_size(a->type),
        .ancestors = a->ancestors,
        .type = a->type,
        .dim = a->dim,
        .group = group,
        .num_queries = group * a->n,
        .n = a->n,
        .rows = a->rows,
        .window = a->window,
    };
}

// Query rows of one KV head together, token by token: [kv_heads, n * group, dim], scaled.
static void gather_queries(const attend_args *a, float *q) {
    const int group = a->heads / a->kv_heads;
    const float scale = 1.0f / sqrtf((float)a->dim);
    for (int head = 0; head < a->kv_heads; head++)
        for (int token = 0; token < a->n; token++) {
            const float *from = a->q + ((int64_t)token * a->heads + head * group) * a->dim;
            for (int i = 0; i < group * a->dim; i++) *q++ = from[i] * scale;
        }
}

// Log-sum-exp merge of the splits of each query row.
static void merge(const attend_args *a, const float *parts, int splits) {
    const int group = a->heads / a->kv_heads, queries = group * a->n, dim = a->dim;
    const int64_t size = (int64_t)queries * (dim + 2);
    for (int row = 0; row < a->kv_heads * queries; row++) {
        const int head = row / queries, r = row % queries, token = r / group;
        const float *part = parts + (int64_t)head * splits * size;
        float max = -INFINITY, total = 0;
        for (int s = 0; s < splits; s++) max = fmaxf(max, part[s * size + (int64_t)queries * dim + r]);
        float *out = a->out + ((int64_t)token * a->heads + head * group + r % group) * dim;
        memset(out, 0, sizeof(float) * dim);
        for (int s = 0; s < splits && max > -INFINITY; s++) {
            const float *p = part + s * size, weight = expf(p[(int64_t)queries * dim + r] - max);
            total += weight * p[(int64_t)queries * (dim + 1) + r];
            for (int d = 0; d < dim; d++) out[d] += weight * p[r * dim + d];
        }
        for (int d = 0; d < dim && total > 0; d++) out[d] /= total;
    }
}

// Attention of the last n rows over all rows; 0, or -1 when memory is short.
API int triforce_attend(const attend_args *a) {
    const int queries = a->heads / a->kv_heads * a->n, threads = omp_get_max_threads();
    const int64_t size = (int64_t)queries * (a->dim + 2), scratch_size = attend_scratch(a->dim, queries);
    int64_t splits = (4 * threads + a->kv_heads - 1) / a->kv_heads;
    if (splits > a->rows / 256) splits = a->rows / 256 ? a->rows / 256 : 1;
    const int tasks = (int)splits * a->kv_heads;
    const int64_t q_size = (int64_t)a->kv_heads * queries * a->dim;
    char *memory = malloc(sizeof(float) * (threads * scratch_size + q_size + tasks * size) + LINE);
    if (!memory) return -1;
    float *scratch = (float *)(memory + LINE - (uintptr_t)memory % LINE);  // one for each thread
    float *q = scratch + threads * scratch_size, *parts = q + q_size;
    gather_queries(a, q);
#pragma omp parallel for schedule(dynamic, 1)
    for (int task = 0; task < tasks; task++) {
        const int head = task / (int)splits;
        const int64_t split = task % splits;
        const attend_job job = job_of_head(a, head, q + (int64_t)head * queries * a->dim);
        float *out = parts + task * size, *max = out + (int64_t)queries * a->dim;
        chosen->attend(&job, a->rows * split / splits, a->rows * (split + 1) / splits,
                       scratch + omp_get_thread_num() * scratch_size, out, max, max + queries);
    }
    merge(a, parts, (int)splits);
    free(memory);
    return 0;
}

// y = x W^T, or y += x W^T, each weight read once.
API void triforce_linear(const linear_job *job) {
    const int64_t chunks = (job->out + ROWS - 1) / ROWS;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < chunks; i++)
        chosen->linear(job, i * ROWS, (i + 1) * ROWS < job->out ? (i + 1) * ROWS : job->out);
}

API void triforce_rms_norm(const float *x, const float *weight, float *out, int64_t rows, int64_t dim, float eps) {
    chosen->rms_norm(x, weight, out, rows, dim, eps);
}

API void triforce_silu_mul(const float *gate_up, float *out, int64_t rows, int64_t inner) {
    chosen->silu_mul(gate_up, out, rows, inner);
}

// Bytes of a row of `in` weights, or -1 where the format has no such rows.
API int64_t triforce_row_bytes(int type, int64_t in) {
    const int64_t weights = block_weights(type), bytes = block_bytes(type);
    return bytes && in % weights == 0 && in % GROUP == 0 ? in / weights * bytes : -1;
}

// `rows` rows of weights to floats.
API void triforce_dequantise(int type, const uint8_t *source, float *out, int64_t rows, int64_t row_bytes, int64_t in) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) chosen->dequantise(type, source + row * row_bytes, out + row * in, in);
}

static void store_row(const float *from, void *rows, int64_t at, int dim, int type) {
    uint16_t *narrow = (uint16_t *)rows + at;
    if (type == ROW_FLOAT32)
        memcpy((float *)rows + at, from, sizeof(float) * dim);
    else
        for (int d = 0; d < dim; d++)
            narrow[d] = type == ROW_FLOAT16 ? float_to_half(from[d]) : float_to_bfloat(from[d]);
}

static void rotate(const float *x, const float *cos, const float *sin, int width, int dim, float *out) {
    const int half = width / 2;
    for (int d = 0; d < half; d++) {
        out[d] = x[d] * cos[d] + x[d + half] * sin[d];
        out[d + half] = x[d + half] * cos[d + half] + x[d] * sin[d + half];
    }
    memcpy(out + width, x + width, sizeof(float) * (dim - width));
}

// RoPE on queries and keys; keys and values stored as the cache's next rows.
API void triforce_rotate_and_store(const rotate_args *a) {
    const int dim = a->dim;
    float rotated[MAX_DIM];
    for (int i = 0; i < a->n; i++) {
        const float *cos = a->cos + (int64_t)i * a->width, *sin = a->sin + (int64_t)i * a->width;
        const float *q = a->q + i * a->q_stride, *k = a->k + i * a->k_stride, *v = a->v + i * a->v_stride;
        for (int h = 0; h < a->heads; h++)
            rotate(q + h * dim, cos, sin, a->width, dim, a->rotated + ((int64_t)i * a->heads + h) * dim);
        for (int h = 0; h < a->kv_heads; h++) {
            const int64_t at = a->head_stride * h + (a->row + i) * dim;
            rotate(k + h * dim, cos, sin, a->width, dim, rotated);
            store_row(rotated, a->keys, at, dim, a->type);
            store_row(v + h * dim, a->values, at, dim, a->type);
        }
    }
}
