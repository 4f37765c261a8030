// Attention over threads: splits the rows, merges, and stores new rows. Checks no arguments.

#include <math.h>
#include <stdlib.h>
#include <string.h>
#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "drivers.h"
#include "int8.h"
#include "queries.h"
#include "simd.h"
#include "threads.h"

#define FEW 64       // new tokens up to which rows are split; past it there are tasks enough without
#define SPLIT 512    // rows of a split: on a fixed grid, so that no sum depends on how many tokens are new
#define QUERIES 96   // query rows of a task of many tokens

// How the work is cut: a task is a KV head, a tile of the new tokens and a split of the rows.
typedef struct {
    int group, tokens, tiles;       // query heads of a KV head; tokens of a tile
    int64_t first_split, splits;    // the first one with a row that is seen
    int64_t oldest;                 // the first row that is met, a multiple of BLOCK
    int64_t part;                   // floats that a task writes
} plan;

static int smaller(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

static plan plan_of(const attend_args *a) {
    const int group = a->heads / a->kv_heads, few = a->n <= FEW;
    const int tokens = few ? a->n : QUERIES / group ? QUERIES / group : 1;
    const int64_t seen = a->window > 0 ? a->rows - a->n - a->window + 1 : 0, oldest = seen > 0 ? seen / BLOCK * BLOCK : 0;
    const int64_t first = few ? oldest / SPLIT : 0;
    return (plan){
        .group = group,
        .tokens = tokens,
        .tiles = (a->n + tokens - 1) / tokens,
        .first_split = first,
        .splits = few ? (a->rows + SPLIT - 1) / SPLIT - first : 1,
        .oldest = oldest,
        .part = (int64_t)group * tokens * (a->dim + 2),
    };
}

// [kv_heads, n * group, dim]
static void gather_all(const attend_args *a, float *q) {
    const int64_t size = (int64_t)a->n * (a->heads / a->kv_heads) * a->dim;
#pragma omp parallel for if (a->n > FEW)
    for (int head = 0; head < a->kv_heads; head++) gather_queries(a->q, a->n, a->heads, a->kv_heads, a->dim, head, q + size * head);
}

static void attend_task(const attend_args *a, const plan *p, const float *q, int task, float *scratch, float *part) {
    const int split = task % p->splits, tile = task / p->splits % p->tiles, head = task / p->splits / p->tiles;
    const int first_token = tile * p->tokens, tokens = smaller(p->tokens, a->n - first_token);
    const int queries = tokens * p->group;
    const int64_t skip = a->head_stride * head, scales = skip / a->dim, last = a->rows - a->n + first_token + tokens;
    const attend_job job = {
        .q = q + ((int64_t)head * a->n + first_token) * p->group * a->dim,
        .keys = (const char *)a->keys + skip * row_size(a->type),
        .values = (const char *)a->values + skip * row_size(a->type),
        .key_scales = a->key_scales ? a->key_scales + scales : 0,
        .value_scales = a->value_scales ? a->value_scales + scales : 0,
        .ancestors = a->ancestors,
        .type = a->type,
        .dim = a->dim,
        .group = p->group,
        .num_queries = queries,
        .n = a->n,
        .first_token = first_token,
        .rows = a->rows,
        .window = a->window,
    };
    int64_t begin = p->oldest, end = last;
    if (p->splits > 1) {
        begin = (p->first_split + split) * SPLIT;
        end = begin + SPLIT < last ? begin + SPLIT : last;
        if (begin < p->oldest) begin = p->oldest;
    }
    float *max = part + (int64_t)queries * a->dim;
    chosen->attend(&job, begin, end, scratch, part, max, max + queries);
}

// Log-sum-exp merge, to base 2, of the splits of query row r of a tile whose parts begin at `part`.
static void merge(const attend_args *a, const plan *p, const float *part, int queries, int r, float *out) {
    const int dim = a->dim;
    float max = -INFINITY, total = 0;
    for (int s = 0; s < p->splits; s++) max = fmaxf(max, part[s * p->part + (int64_t)queries * dim + r]);
    memset(out, 0, sizeof(float) * dim);
    for (int s = 0; s < p->splits && max > -INFINITY; s++) {
        const float *one = part + s * p->part, weight = exp2f(one[(int64_t)queries * dim + r] - max);
        total += weight * one[(int64_t)queries * (dim + 1) + r];
        for (int d = 0; d < dim; d++) out[d] += weight * one[r * dim + d];
    }
    for (int d = 0; d < dim && total > 0; d++) out[d] /= total;
}

static void merge_all(const attend_args *a, const plan *p, const float *parts) {
    const int tiles = a->kv_heads * p->tiles;
#pragma omp parallel for collapse(2) if (p->part * p->splits * tiles > 1 << 14)
    for (int tile = 0; tile < tiles; tile++)
        for (int r = 0; r < p->tokens * p->group; r++) {
            const int head = tile / p->tiles, first_token = tile % p->tiles * p->tokens, token = first_token + r / p->group;
            const int queries = smaller(p->tokens, a->n - first_token) * p->group;
            if (r >= queries) continue;
            float *out = a->out + ((int64_t)token * a->heads + head * p->group + r % p->group) * a->dim;
            merge(a, p, parts + tile * p->splits * p->part, queries, r, out);
        }
}

#if defined(_WIN32)
static void free_with_thread(char *memory) { (void)memory; }  // kept until the process ends
#else
static pthread_key_t at_end;
static int have_key;  // a process has some thousand: without one, memory is kept until it ends

static void make_key(void) { have_key = !pthread_key_create(&at_end, free); }

// In place of what the calling thread named before.
static void free_with_thread(char *memory) {
    static pthread_once_t made = PTHREAD_ONCE_INIT;
    pthread_once(&made, make_key);
    if (have_key) pthread_setspecific(at_end, memory);
}
#endif

// Memory for so many floats, of the calling thread and kept for its next call: pages that are new every time cost more
// than attention over a thousand rows. Null when memory is short.
static float *workspace(int64_t floats) {
    static _Thread_local char *memory;
    static _Thread_local int64_t held;
    if (floats > held) {
        free(memory);
        memory = malloc(sizeof(float) * floats + LINE);
        held = memory ? floats : 0;
        free_with_thread(memory);
    }
    return memory ? first_line(memory) : 0;
}

// Attention of the last n rows over all rows; 0, or -1 when memory is short.
API int triforce_attend(const attend_args *a) {
    const plan p = plan_of(a);
    const int threads = omp_get_max_threads(), tasks = (int)(p.splits * p.tiles) * a->kv_heads;
    const int64_t scratch_size = attend_scratch(a->dim, p.tokens * p.group), q_size = (int64_t)a->n * a->heads * a->dim;
    float *scratch = workspace(threads * scratch_size + q_size + tasks * p.part);  // first, one for each thread
    if (!scratch) return -1;
    float *q = scratch + threads * scratch_size, *parts = q + q_size;
    gather_all(a, q);
    shared_work work;
    cut(&work, tasks);
#pragma omp parallel
    {
        int passed = 0;
        float *own = scratch + omp_get_thread_num() * scratch_size;
        for (int64_t i; (i = take(&work, &passed)) >= 0;) {
            const int task = (int)(p.tiles > 1 ? tasks - 1 - i : i);  // later tiles see more rows: a head's longest first
            attend_task(a, &p, q, task, own, parts + task * p.part);
        }
    }
    merge_all(a, &p, parts);
    return 0;
}

// Row number `at` of `rows`.
static void store_row(const float *from, void *rows, float *scales, int64_t at, int dim, int type) {
    uint16_t *narrow = (uint16_t *)rows + at * dim;
    switch (type) {
        case ROW_FLOAT32: memcpy((float *)rows + at * dim, from, sizeof(float) * dim); break;
        case ROW_INT8: store_int8(from, (int8_t *)rows + at * dim, scales + at, dim); break;
        case ROW_FLOAT16: for (int d = 0; d < dim; d++) narrow[d] = float_to_half(from[d]); break;
        default: for (int d = 0; d < dim; d++) narrow[d] = float_to_bfloat(from[d]);
    }
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
#pragma omp parallel for if (a->n > FEW)
    for (int i = 0; i < a->n; i++) {
        float rotated[MAX_DIM];
        const float *cos = a->cos + (int64_t)i * a->width, *sin = a->sin + (int64_t)i * a->width;
        const float *q = a->q + i * a->q_stride, *k = a->k + i * a->k_stride, *v = a->v + i * a->v_stride;
        for (int h = 0; h < a->heads; h++)
            rotate(q + h * dim, cos, sin, a->width, dim, a->rotated + ((int64_t)i * a->heads + h) * dim);
        for (int h = 0; h < a->kv_heads; h++) {
            const int64_t at = a->head_stride / dim * h + a->row + i;
            rotate(k + h * dim, cos, sin, a->width, dim, rotated);
            store_row(rotated, a->keys, a->key_scales, at, dim, a->type);
            store_row(v + h * dim, a->values, a->value_scales, at, dim, a->type);
        }
    }
}
