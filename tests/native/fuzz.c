// Random calls of the kernels on buffers of exactly the size that they may touch, for a sanitizer to watch.
//
//     fuzz SECONDS [SEED]       attention, stored rows, linear layers, selection, whole passes; values of attention are checked too
//     fuzz plant-overrun        reads one scale too many: AddressSanitizer must stop it
//     fuzz plant-race           all threads of attention work in one scratch buffer: ThreadSanitizer must report it
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "drivers.h"

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

static uint64_t state;

static uint32_t bits(void) {  // xorshift64*
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (uint32_t)(state * 2685821657736338717ull >> 32);
}

static int64_t between(int64_t least, int64_t most) { return least + bits() % (uint64_t)(most - least + 1); }
static int chance(int of) { return bits() % of == 0; }
static float number(void) { return (float)bits() / 2147483648.0f - 1; }

// Memory of one case: freed together, each piece as large as asked and no larger.
static void *pieces[512];
static int num_pieces;

static void *room(int64_t bytes) {
    void *piece = malloc(bytes);
    if (!piece || num_pieces == COUNT(pieces)) abort();
    return pieces[num_pieces++] = piece;
}

static void clear(void) {
    while (num_pieces) free(pieces[--num_pieces]);
}

static float *floats(int64_t count) {
    float *all = room(count * sizeof(float));
    for (int64_t i = 0; i < count; i++) all[i] = number();
    return all;
}

// Values of a type of rows, all of them small numbers.
static void *rows_of(int type, int64_t count) {
    if (type == ROW_FLOAT32) return floats(count);
    uint8_t *all = room(count * row_size(type));
    for (int64_t i = 0; i < count * row_size(type); i++) all[i] = (uint8_t)bits();
    for (int64_t i = 0; i < count && type != ROW_INT8; i++) all[2 * i + 1] = (all[2 * i + 1] & 0x80) | (type == ROW_FLOAT16 ? 0x38 : 0x3e);
    return all;
}

// ---- attention ----

static double value_of(const attend_args *a, const void *rows, const float *scales, int head, int64_t row, int d) {
    const int64_t at = head * a->head_stride + row * a->dim + d;
    uint32_t wide;
    float value;
    switch (a->type) {
        case ROW_FLOAT32: return ((const float *)rows)[at];
        case ROW_FLOAT16: return ((const _Float16 *)rows)[at];
        case ROW_BFLOAT16:
            wide = (uint32_t)((const uint16_t *)rows)[at] << 16;
            memcpy(&value, &wide, sizeof value);
            return value;
        default: return ((const int8_t *)rows)[at] * (double)scales[at / a->dim];
    }
}

// One query by definition.
static void check_attention(const attend_args *a, int token, int head) {
    const int kv = head / (a->heads / a->kv_heads);
    const int64_t first_new = a->rows - a->n, position = first_new + token;
    double *out = calloc(a->dim, sizeof *out), total = 0, most = -INFINITY, *scores = malloc(a->rows * sizeof *scores);
    for (int64_t row = 0; row < a->rows; row++) {
        const int seen = row >= first_new && a->ancestors ? a->ancestors[token * a->n + row - first_new] : row <= position;
        scores[row] = -INFINITY;
        if (!seen || (a->window && row <= position - a->window)) continue;
        scores[row] = 0;
        for (int d = 0; d < a->dim; d++)
            scores[row] += a->q[((int64_t)token * a->heads + head) * a->dim + d] * value_of(a, a->keys, a->key_scales, kv, row, d);
        scores[row] /= sqrt(a->dim);
        most = fmax(most, scores[row]);
    }
    for (int64_t row = 0; row < a->rows; row++) {
        const double weight = scores[row] == -INFINITY ? 0 : exp(scores[row] - most);
        total += weight;
        for (int d = 0; d < a->dim && weight > 0; d++) out[d] += weight * value_of(a, a->values, a->value_scales, kv, row, d);
    }
    for (int d = 0; d < a->dim; d++) {
        const double ours = a->out[((int64_t)token * a->heads + head) * a->dim + d];
        if (!(fabs(ours - out[d] / total) < 2e-4)) {
            fprintf(stderr, "attention of token %d, head %d: element %d is %g, expected %g\n", token, head, d, ours, out[d] / total);
            fprintf(stderr, "type %d, n %d, rows %ld, heads %d, kv_heads %d, dim %d, window %ld, tree %d\n", a->type, a->n,
                    (long)a->rows, a->heads, a->kv_heads, a->dim, (long)a->window, a->ancestors != 0);
            abort();
        }
    }
    free(out), free(scores);
}

static uint8_t *tree(int n) {
    uint8_t *sees = room((int64_t)n * n);
    memset(sees, 0, (int64_t)n * n);
    for (int node = 0; node < n; node++) {
        const int parent = (int)between(-1, node - 1);
        if (parent >= 0) memcpy(sees + node * n, sees + parent * n, n);
        sees[node * n + node] = 1;
    }
    return sees;
}

static void fuzz_attend(void) {
    attend_args a = {.n = chance(4) ? between(1, 200) : between(1, 9), .kv_heads = between(1, 4), .dim = 16 * between(1, chance(4) ? 16 : 5)};
    const int group = between(1, MOST_QUERIES / (a.n < 64 ? a.n : 64) < 8 ? MOST_QUERIES / (a.n < 64 ? a.n : 64) : 8);
    a.heads = group * a.kv_heads;
    a.type = between(ROW_FLOAT32, ROW_INT8);
    a.rows = a.n + between(0, chance(3) ? 1500 : 150);
    a.head_stride = (a.rows + between(0, 3)) * a.dim;
    a.window = chance(3) ? between(1, 300) : 0;
    const int64_t held = (a.kv_heads - 1) * a.head_stride + a.rows * a.dim;
    a.q = floats((int64_t)a.n * a.heads * a.dim);
    a.keys = rows_of(a.type, held), a.values = rows_of(a.type, held);
    if (a.type == ROW_INT8) {
        float *scales[] = {floats(held / a.dim), floats(held / a.dim)};
        for (int64_t i = 0; i < held / a.dim; i++) scales[0][i] /= 127, scales[1][i] /= 127;
        a.key_scales = scales[0], a.value_scales = scales[1];
    }
    a.ancestors = chance(3) ? tree(a.n) : 0;
    a.out = floats((int64_t)a.n * a.heads * a.dim);
    if (triforce_attend(&a)) abort();
    check_attention(&a, between(0, a.n - 1), between(0, a.heads - 1));
}

static void fuzz_rotate(void) {
    rotate_args a = {.n = chance(4) ? between(1, 200) : between(1, 9), .kv_heads = between(1, 4), .dim = 2 * between(1, MAX_DIM / 2)};
    a.heads = a.kv_heads * between(1, 8);
    a.type = between(ROW_FLOAT32, ROW_INT8);
    a.width = 2 * between(0, a.dim / 2);
    a.row = between(0, 9);
    const int64_t rows = a.row + a.n, held = rows * a.kv_heads * a.dim;
    a.head_stride = rows * a.dim;
    const int64_t together = (a.heads + 2 * a.kv_heads) * a.dim;
    if (chance(2)) {  // views of one product
        const float *qkv = floats(a.n * together);
        a.q = qkv, a.k = qkv + a.heads * a.dim, a.v = a.k + a.kv_heads * a.dim;
        a.q_stride = a.k_stride = a.v_stride = together;
    } else {
        a.q_stride = a.heads * a.dim, a.k_stride = a.v_stride = a.kv_heads * a.dim;
        a.q = floats(a.n * a.q_stride), a.k = floats(a.n * a.k_stride), a.v = floats(a.n * a.v_stride);
    }
    a.cos = floats((int64_t)a.n * a.width), a.sin = floats((int64_t)a.n * a.width);
    a.rotated = floats((int64_t)a.n * a.heads * a.dim);
    a.keys = rows_of(a.type, held), a.values = rows_of(a.type, held);
    if (a.type == ROW_INT8) a.key_scales = floats(held / a.dim), a.value_scales = floats(held / a.dim);
    triforce_rotate_and_store(&a);
}

// ---- layers ----

static const int FORMATS[] = {WEIGHT_F32,  WEIGHT_F16,  WEIGHT_BF16, WEIGHT_Q4_0, WEIGHT_Q4_1, WEIGHT_Q5_0,
                              WEIGHT_Q5_1, WEIGHT_Q8_0, WEIGHT_Q4_K, WEIGHT_Q5_K, WEIGHT_Q6_K};

static uint8_t *weights_of(int type, int64_t out, int64_t in) {
    const int64_t bytes = out * triforce_row_bytes(type, in);
    uint8_t *all = room(bytes);
    for (int64_t i = 0; i < bytes; i++) all[i] = (uint8_t)bits();
    return all;
}

static int format_for(int64_t in) {
    int type;
    do type = FORMATS[between(0, COUNT(FORMATS) - 1)];
    while (triforce_row_bytes(type, in) < 0);
    return type;
}

static void fuzz_linear(void) {
    linear_job job = {.in = 32 * between(1, chance(3) ? 64 : 16), .out = between(1, 90), .n = chance(3) ? between(1, 64) : between(1, 9)};
    job.type = format_for(job.in);
    job.row_bytes = triforce_row_bytes(job.type, job.in);
    job.weights = weights_of(job.type, job.out, job.in);
    job.x = floats(job.n * job.in);
    job.bias = chance(2) ? floats(job.out) : 0;
    job.accumulate = chance(2);
    job.y_stride = job.out + between(0, 5);
    job.y = floats((job.n - 1) * job.y_stride + job.out);
    triforce_linear(&job);
    triforce_dequantise(job.type, job.weights, floats(job.out * job.in), job.out, job.row_bytes, job.in);
}

static void fuzz_norm_and_gate(void) {
    const int64_t rows = between(1, chance(4) ? 300 : 20), dim = between(1, 300);  // for one thread and for several
    triforce_rms_norm(floats(rows * dim), floats(dim), floats(rows * dim), rows, dim, 1e-5f);
    triforce_silu_mul(floats(2 * rows * dim), floats(rows * dim), rows, dim);
}

// ---- whole passes ----

static matrix matrix_of(int64_t in, int64_t out) {
    matrix m = {.in = in, .out = out, .num_parts = between(1, 3), .bias = chance(2) ? floats(out) : 0};
    for (int i = 0; i < m.num_parts; i++) {
        matrix_part *part = m.parts + i;
        part->out = i + 1 < m.num_parts ? between(1, out - (m.num_parts - 1 - i)) : out;
        out -= part->out;
        part->type = format_for(in);
        part->row_bytes = triforce_row_bytes(part->type, in);
        part->weights = weights_of(part->type, part->out, in);
    }
    return m;
}

static void fuzz_forward(void) {
    const int kv_heads = between(1, 3), group = between(1, 3), dim = 32 * between(1, 3), n = chance(3) ? between(1, 64) : between(1, 9);
    model_weights m = {.hidden = 32 * between(1, 9), .inner = 32 * between(1, 9), .num_layers = between(1, 3), .heads = kv_heads * group, .kv_heads = kv_heads, .dim = dim, .eps = 1e-5f};
    layer_weights *layers = room(m.num_layers * sizeof *layers);
    for (int i = 0; i < m.num_layers; i++)
        layers[i] = (layer_weights){
            .attention_norm = floats(m.hidden),
            .q_norm = chance(2) ? floats(dim) : 0,
            .k_norm = chance(2) ? floats(dim) : 0,
            .mlp_norm = floats(m.hidden),
            .qkv = matrix_of(m.hidden, (m.heads + 2 * kv_heads) * dim),
            .output = matrix_of(m.heads * dim, m.hidden),
            .gate_up = matrix_of(m.hidden, 2 * m.inner),
            .down = matrix_of(m.inner, m.hidden),
        };
    m.layers = layers, m.norm = floats(m.hidden);
    cache_rows c = {.row = between(0, chance(2) ? 700 : 70), .window = chance(3) ? between(1, 100) : 0, .width = 2 * between(0, dim / 2), .type = between(ROW_FLOAT32, ROW_INT8)};
    c.head_stride = (c.row + n) * dim, c.layer_stride = c.head_stride * kv_heads;
    const int64_t held = c.layer_stride * m.num_layers;
    c.keys = rows_of(c.type, held), c.values = rows_of(c.type, held);
    if (c.type == ROW_INT8) c.key_scales = floats(held / dim), c.value_scales = floats(held / dim);
    c.queries = floats((int64_t)m.num_layers * n * m.heads * dim);
    c.cos = floats((int64_t)n * c.width), c.sin = floats((int64_t)n * c.width);
    if (triforce_forward(&m, &c, floats(n * m.hidden), floats(n * m.hidden), n)) abort();
}

// ---- selection ----

static void fuzz_select(void) {
    score_args a = {.layers = between(1, 3), .n = between(1, 9), .kv_heads = between(1, 4), .dim = 16 * between(1, 8), .chunks = between(1, 300)};
    a.heads = a.kv_heads * between(1, 8);
    a.mean_stride = a.chunks + between(0, 3);
    const int64_t heads = a.layers * a.kv_heads, held = (heads - 1) * a.mean_stride + a.chunks;
    a.q = floats((int64_t)a.layers * a.n * a.heads * a.dim);
    a.means = rows_of(ROW_INT8, held * a.dim), a.scales = floats(held);
    a.scores = floats(heads * a.chunks);
    if (triforce_score_chunks(&a)) abort();
    gather_args g = {.heads = (int)heads, .count = between(0, 9), .chunk_bytes = between(1, 600)};
    const int64_t chunks = between(1, 20);
    g.from_stride = chunks * g.chunk_bytes + between(0, 50), g.to_stride = g.count * g.chunk_bytes + between(0, 50);
    g.from = rows_of(ROW_INT8, (heads - 1) * g.from_stride + chunks * g.chunk_bytes);
    g.to = rows_of(ROW_INT8, (heads - 1) * g.to_stride + g.count * g.chunk_bytes);
    int64_t *chosen_chunks = room(heads * g.count * sizeof(int64_t));
    for (int64_t i = 0; i < heads * g.count; i++) chosen_chunks[i] = between(0, chunks - 1);
    g.chunks = chosen_chunks;
    triforce_gather_chunks(&g);
    mean_args m = {.heads = (int)heads, .dim = a.dim, .chunk = between(1, 20), .end = between(0, 40), .type = between(ROW_FLOAT32, ROW_INT8)};
    m.begin = between(0, (int)m.end);
    m.head_stride = (m.end * m.chunk + between(0, 30)) * m.dim, m.mean_stride = m.end + between(0, 3);
    const int64_t rows = (heads - 1) * m.head_stride / m.dim + m.end * m.chunk, means = (heads - 1) * m.mean_stride + m.end;
    m.keys = rows_of(m.type, rows * m.dim), m.key_scales = m.type == ROW_INT8 ? floats(rows) : 0;
    m.means = rows_of(ROW_INT8, means * m.dim), m.scales = floats(means);
    triforce_mean_chunks(&m);
}

// ---- faults that a sanitizer must find ----

static void plant_overrun(void) {
    attend_args a = {.n = 1, .heads = 1, .kv_heads = 1, .dim = 16, .type = ROW_INT8, .rows = 67, .head_stride = 67 * 16};
    a.q = floats(16), a.out = floats(16), a.keys = rows_of(ROW_INT8, 67 * 16), a.values = rows_of(ROW_INT8, 67 * 16);
    a.key_scales = floats(67), a.value_scales = floats(66);
    triforce_attend(&a);
}

static void plant_race(void) {
#ifdef __SANITIZE_THREAD__  // then linked with threads.c
    extern int planted_race;
    planted_race = 1;
#endif
    const int rows = 40000;  // tasks enough for all threads
    attend_args a = {.n = 4, .heads = 4, .kv_heads = 2, .dim = 32, .rows = rows, .head_stride = rows * 32};
    a.q = floats(4 * 4 * 32), a.out = floats(4 * 4 * 32), a.keys = floats(2 * rows * 32), a.values = floats(2 * rows * 32);
    triforce_attend(&a);
}

int main(int count, char **words) {
    state = 1;
    omp_set_num_threads(4);
    const char *first = count > 1 ? words[1] : "10";
    if (!strcmp(first, "plant-overrun")) plant_overrun();
    else if (!strcmp(first, "plant-race")) plant_race();
    else {
        void (*const all[])(void) = {fuzz_attend, fuzz_attend, fuzz_rotate, fuzz_linear, fuzz_linear, fuzz_norm_and_gate, fuzz_forward, fuzz_select};
        const uint64_t seed = count > 2 ? strtoull(words[2], 0, 10) : (uint64_t)time(0);
        const char *variant = triforce_use(0);
        state = seed * 2654435761u + 1;
        printf("fuzz: %s kernels, seed %llu\n", variant, (unsigned long long)seed);
        fflush(stdout);
        long cases = 0;
        for (const time_t end = time(0) + atoi(first); time(0) < end; cases++, clear()) {
            omp_set_num_threads((int)between(1, 4));
            all[between(0, COUNT(all) - 1)]();
        }
        printf("fuzz: %ld cases without a finding\n", cases);
    }
    clear();
    return 0;
}
