// A whole pass of a decoder over few tokens in one call: what is left to Python is the embedding and the head.

#include <stdlib.h>

#include "drivers.h"

// Where the activations of a pass are, [n, ...] each.
typedef struct {
    float *normed, *qkv, *attended, *gate_up, *gated;
} activations;

static void apply_matrix(const matrix *m, const float *x, float *y, int n, int accumulate) {
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

static int64_t layer_bytes(const cache_rows *c, int layer) { return c->layer_stride * row_size(c->type) * layer; }

// The scales of a layer's rows; null, as they are, where rows have none.
static float *layer_scales(float *scales, const model_weights *m, const cache_rows *c, int layer) {
    return scales ? scales + c->layer_stride / m->dim * layer : 0;
}

// Keys and values of qkv become the cache's next rows of this layer; returns the queries, rotated [n, heads, dim].
static const float *store_rows(const model_weights *m, const layer_weights *w, const cache_rows *c, int layer,
                               float *qkv, int n) {
    const int64_t dim = m->dim, stride = (m->heads + 2 * m->kv_heads) * dim, bytes = layer_bytes(c, layer);
    if (w->q_norm) norm_heads(m, qkv, n, 0, m->heads, w->q_norm);
    if (w->k_norm) norm_heads(m, qkv, n, m->heads, m->kv_heads, w->k_norm);
    const rotate_args rotation = {
        .q = qkv,
        .k = qkv + m->heads * dim,
        .v = qkv + (m->heads + m->kv_heads) * dim,
        .cos = c->cos,
        .sin = c->sin,
        .rotated = c->queries + (int64_t)layer * n * m->heads * dim,
        .keys = (char *)c->keys + bytes,
        .values = (char *)c->values + bytes,
        .key_scales = layer_scales(c->key_scales, m, c, layer),
        .value_scales = layer_scales(c->value_scales, m, c, layer),
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
    return rotation.rotated;
}

static int attention(const model_weights *m, const cache_rows *c, int layer, const float *q, float *attended, int n) {
    const attend_args attend = {
        .q = q,
        .keys = (const char *)c->keys + layer_bytes(c, layer),
        .values = (const char *)c->values + layer_bytes(c, layer),
        .key_scales = layer_scales(c->key_scales, m, c, layer),
        .value_scales = layer_scales(c->value_scales, m, c, layer),
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

// x [n, hidden] through one layer, in place; 0, or -1 when memory is short.
static int apply_layer(const model_weights *m, const cache_rows *c, int layer, const activations *a, float *x, int n) {
    const layer_weights *w = m->layers + layer;
    triforce_rms_norm(x, w->attention_norm, a->normed, n, m->hidden, m->eps);
    apply_matrix(&w->qkv, a->normed, a->qkv, n, 0);
    const float *q = store_rows(m, w, c, layer, a->qkv, n);
    if (attention(m, c, layer, q, a->attended, n)) return -1;
    apply_matrix(&w->output, a->attended, x, n, 1);
    triforce_rms_norm(x, w->mlp_norm, a->normed, n, m->hidden, m->eps);
    apply_matrix(&w->gate_up, a->normed, a->gate_up, n, 0);
    triforce_silu_mul(a->gate_up, a->gated, n, m->inner);
    apply_matrix(&w->down, a->gated, x, n, 1);
    return 0;
}

// x [n, hidden] through all layers, in place, and out [n, hidden] after the final norm; 0, or -1 when memory is short.
API int triforce_forward(const model_weights *m, const cache_rows *c, float *x, float *out, int n) {
    const int64_t attended_width = (int64_t)m->heads * m->dim;
    const int64_t qkv_width = attended_width + 2 * (int64_t)m->kv_heads * m->dim;
    activations a;
    char *memory = malloc(sizeof(float) * n * (m->hidden + qkv_width + attended_width + 3 * m->inner) + LINE);
    if (!memory) return -1;
    a.normed = first_line(memory);  // the others begin with lines too, as all are whole lines long
    a.qkv = a.normed + n * m->hidden;
    a.attended = a.qkv + n * qkv_width;
    a.gate_up = a.attended + n * attended_width;
    a.gated = a.gate_up + 2 * n * m->inner;
    int status = 0;
    for (int layer = 0; layer < m->num_layers && !status; layer++) status = apply_layer(m, c, layer, &a, x, n);
    if (!status) triforce_rms_norm(x, m->norm, out, n, m->hidden, m->eps);
    free(memory);
    return status;
}
