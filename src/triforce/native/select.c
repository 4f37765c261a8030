// The mean keys of chunks of rows, how much recent queries want each, and the chosen ones side by side. Checks nothing.

#include <stdlib.h>
#include <string.h>

#include "drivers.h"
#include "int8.h"
#include "queries.h"
#include "threads.h"

static void score_head(const score_args *a, int task, float *queries, float *scratch) {
    const float *layer = a->q + (int64_t)(task / a->kv_heads) * a->n * a->heads * a->dim;
    gather_queries(layer, a->n, a->heads, a->kv_heads, a->dim, task % a->kv_heads, queries);
    const score_job job = {
        .q = queries,
        .means = a->means + a->mean_stride * a->dim * task,
        .scales = a->scales + a->mean_stride * task,
        .scores = a->scores + a->chunks * task,
        .dim = a->dim,
        .num_queries = a->n * (a->heads / a->kv_heads),
        .chunks = a->chunks,
    };
    chosen->score(&job, scratch);
}

// Attention over the chunks' mean keys, summed over the queries of each KV head; 0, or -1 when memory is short.
API int triforce_score_chunks(const score_args *a) {
    const int queries = a->n * (a->heads / a->kv_heads);
    const int64_t scratch = score_scratch(a->dim, queries, a->chunks), size = scratch + (int64_t)queries * a->dim;
    float *memory = malloc(sizeof(float) * size * omp_get_max_threads());
    if (!memory) return -1;
#pragma omp parallel for schedule(dynamic, 1)
    for (int task = 0; task < a->layers * a->kv_heads; task++) {
        float *own = memory + size * omp_get_thread_num();
        score_head(a, task, own + scratch, own);
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

// The mean key of each chunk, in 8 bits with a scale.
API void triforce_mean_chunks(const mean_args *a) {
    const int64_t bytes = (int64_t)a->dim * row_size(a->type);
#pragma omp parallel for schedule(static)
    for (int head = 0; head < a->heads; head++) {
        float mean[MAX_DIM];
        for (int64_t i = a->begin; i < a->end; i++) {
            const int64_t row = head * (a->head_stride / a->dim) + i * a->chunk, to = head * a->mean_stride + i;
            const float *scales = a->type == ROW_INT8 ? a->key_scales + row : 0;
            chosen->mean(a->type, (const char *)a->keys + row * bytes, scales, a->chunk, a->dim, mean);
            store_int8(mean, a->means + to * a->dim, a->scales + to, a->dim);
        }
    }
}
