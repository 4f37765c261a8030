// A whole pass of a decoder over few tokens in one call: what is left to Python is the embedding and the head.

#include <stdlib.h>
#include <string.h>

#include "drivers.h"

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
    float *queries;  // [layers, n, heads, dim], filled with the rotated queries
    const float *cos, *sin;  // [n, width]
    int64_t layer_stride, head_stride, row, window;  // row: where the new rows go, after all that are seen
    int32_t width, type;
} cache_rows;

static void multiply(const matrix *m, const float *x, float *y, int n, int accumulate) {
    int64_t start = 0;
    for (int i = 0; i < m->num_parts; i++) {
        const matrix_part *part = m->parts + i;
        const linear_job job = {
            .x = x,
            .weights = part->weights,
            .bias = m->bias ? m->bias + start : 0,
            .y = y + start,
            .type = part->type,
            .n = n,
            .accumulate = accumulate,
            .in = m->in,
            .out = part->out,
            .row_bytes = part->row_bytes,
            .y_stride = m->out,
        };
        triforce_linear(&job);
        start += part->out;
    }
}

// Norms of heads [first, first + heads) of each token of qkv, in place.
static void norm_heads(const model_weights *m, float *qkv, int n, int first, int heads, const float *weight) {
    const int64_t width = (int64_t)(m->heads + 2 * m->kv_heads) * m->dim;
    for (int i = 0; i < n; i++) {
        float *x = qkv + i * width + (int64_t)first * m->dim;
        triforce_rms_norm(x, weight, x, heads, m->dim, m->eps);
    }
}

static int attention(const model_weights *m, const layer_weights *w, const cache_rows *c, int layer, float *qkv,
                     float *attended, int n) {
    const int64_t dim = m->dim, stride = (m->heads + 2 * m->kv_heads) * dim;
    const int64_t bytes = c->layer_stride * row_size(c->type) * layer;
    float *q = c->queries + (int64_t)layer * n * m->heads * dim;
    if (w->q_norm) norm_heads(m, qkv, n, 0, m->heads, w->q_norm);
    if (w->k_norm) norm_heads(m, qkv, n, m->heads, m->kv_heads, w->k_norm);
    const rotate_args rotation = {
        .q = qkv,
        .k = qkv + m->heads * dim,
        .v = qkv + (m->heads + m->kv_heads) * dim,
        .cos = c->cos,
        .sin = c->sin,
        .rotated = q,
        .keys = (char *)c->keys + bytes,
        .values = (char *)c->values + bytes,
        .q_stride = stride,
        .k_stride = stride,
        .v_stride = stride,
        .row = c->row,
        .head_stride = c->head_stride,
        .n = n,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .dim = m->dim,
        .width = c->width,
        .type = c->type,
    };
    triforce_rotate_and_store(&rotation);
    const attend_args attend = {
        .q = q,
        .keys = rotation.keys,
        .values = rotation.values,
        .out = attended,
        .rows = c->row + n,
        .head_stride = c->head_stride,
        .window = c->window,
        .n = n,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .dim = m->dim,
        .type = c->type,
    };
    return triforce_attend(&attend);
}

// x [n, hidden] through all layers, in place, and out [n, hidden] after the final norm; 0, or -1 when memory is short.
API int triforce_forward(const model_weights *m, const cache_rows *c, float *x, float *out, int n) {
    const int64_t qkv_width = (int64_t)(m->heads + 2 * m->kv_heads) * m->dim, attended_width = (int64_t)m->heads * m->dim;
    float *normed = malloc(sizeof(float) * n * (m->hidden + qkv_width + attended_width + 3 * m->inner));
    if (!normed) return -1;
    float *qkv = normed + n * m->hidden, *attended = qkv + n * qkv_width;
    float *gate_up = attended + n * attended_width, *gated = gate_up + 2 * n * m->inner;
    int status = 0;
    for (int layer = 0; layer < m->num_layers && !status; layer++) {
        const layer_weights *w = m->layers + layer;
        triforce_rms_norm(x, w->attention_norm, normed, n, m->hidden, m->eps);
        multiply(&w->qkv, normed, qkv, n, 0);
        status = attention(m, w, c, layer, qkv, attended, n);
        multiply(&w->output, attended, x, n, 1);
        triforce_rms_norm(x, w->mlp_norm, normed, n, m->hidden, m->eps);
        multiply(&w->gate_up, normed, gate_up, n, 0);
        triforce_silu_mul(gate_up, gated, n, m->inner);
        multiply(&w->down, gated, x, n, 1);
    }
    triforce_rms_norm(x, m->norm, out, n, m->hidden, m->eps);
    free(normed);
    return status;
}
