// How much recent queries want each chunk of rows, and the chosen chunks side by side. Checks no arguments.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "drivers.h"
#include "simd.h"

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
static int omp_get_thread_num(void) { return 0; }
#endif

#define TOGETHER 128  // mean keys met at a time: as floats they stay in the second-level cache
#define LOG2_E 1.44269504f

typedef struct {
    float *means, *queries, *weights;  // [TOGETHER, dim], [n * group, dim], [n * group, chunks]
} workspace;

// The queries of KV head `head` of a layer, [n * group, dim], scaled so that scores are to base 2.
static void gather_queries(const score_args *a, int layer, int head, float *to) {
    const int group = a->heads / a->kv_heads, width = group * a->dim;
    const float *from = a->q + ((int64_t)layer * a->n * a->heads + head * group) * a->dim, scale = LOG2_E / sqrtf((float)a->dim);
    for (int token = 0; token < a->n; token++)
        for (int i = 0; i < width; i++) to[token * width + i] = from[(int64_t)token * a->heads * a->dim + i] * scale;
}

static void widen(const int8_t *from, const float *scales, float *to, int rows, int dim) {
    for (int row = 0; row < rows; row++)
        for (int d = 0; d < dim; d++) to[row * dim + d] = from[row * dim + d] * scales[row];
}

// Add to `scores` what the softmax of `weights`, logarithms to base 2, gives each of `count` chunks.
static void add_softmax(float *weights, float *scores, int64_t count) {
    float max = -INFINITY, total = 0;
    for (int64_t i = 0; i < count; i++) max = weights[i] > max ? weights[i] : max;
    int64_t i = 0;
    vfloat sums = {0};
    for (; i + WIDTH <= count; i += WIDTH) {
        const vfloat w = exp2_small(load(weights + i) - max);
        store(weights + i, w);
        sums += w;
    }
    total = sum(sums);
    for (; i < count; i++) total += weights[i] = exp2f(weights[i] - max);
    const float share = 1 / total;
    for (i = 0; i < count; i++) scores[i] += weights[i] * share;
}

static void score_head(const score_args *a, int task, const workspace *w) {
    const int queries = a->n * (a->heads / a->kv_heads), dim = a->dim;
    const int8_t *means = a->means + a->mean_stride * dim * task;
    const float *scales = a->scales + a->mean_stride * task;
    float *scores = a->scores + a->chunks * task;
    gather_queries(a, task / a->kv_heads, task % a->kv_heads, w->queries);
    for (int64_t at = 0; at < a->chunks; at += TOGETHER) {
        const int count = a->chunks - at < TOGETHER ? (int)(a->chunks - at) : TOGETHER;
        widen(means + at * dim, scales + at, w->means, count, dim);
        const linear_job job = {
            .x = w->queries,
            .weights = (const uint8_t *)w->means,
            .y = w->weights + at,
            .type = WEIGHT_F32,
            .n = queries,
            .in = dim,
            .out = count,
            .row_bytes = dim * (int64_t)sizeof(float),
            .y_stride = a->chunks,
        };
        chosen->linear(&job, 0, count);
    }
    memset(scores, 0, sizeof(float) * a->chunks);
    for (int r = 0; r < queries; r++) add_softmax(w->weights + r * a->chunks, scores, a->chunks);
}

// Attention over the chunks' mean keys, summed over the queries of each KV head; 0, or -1 when memory is short.
API int triforce_score_chunks(const score_args *a) {
    const int64_t queries = (int64_t)a->n * (a->heads / a->kv_heads);
    const int64_t size = TOGETHER * a->dim + queries * a->dim + queries * a->chunks;
    float *memory = malloc(sizeof(float) * size * omp_get_max_threads());
    if (!memory) return -1;
#pragma omp parallel for schedule(dynamic, 1)
    for (int task = 0; task < a->layers * a->kv_heads; task++) {
        float *own = memory + size * omp_get_thread_num();
        const workspace w = {own, own + TOGETHER * a->dim, own + (TOGETHER + queries) * a->dim};
        score_head(a, task, &w);
    }
    free(memory);
    return 0;
}

// The chosen chunks of each head, one after the other.
API void triforce_gather_chunks(const gather_args *a) {
#pragma omp parallel for schedule(static)
    for (int head = 0; head < a->heads; head++) {
        const char *from = (const char *)a->from + a->from_stride * head;
        char *to = (char *)a->to + a->to_stride * head;
        for (int64_t i = 0; i < a->count; i++)
            memcpy(to + i * a->chunk_bytes, from + a->chunks[head * a->count + i] * a->chunk_bytes, a->chunk_bytes);
    }
}
