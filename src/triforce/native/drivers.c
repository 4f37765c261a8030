// What Python calls: chooses the instruction set once and splits linear layers over threads. Checks no arguments.

#include <string.h>

#include "decode.h"
#include "drivers.h"
#include "threads.h"

#define PIECES 4  // of a linear layer for each thread, at least, so that a late one can be helped; of ROWS output rows at most
#define ALONE (1 << 15)  // floats of activations that are sooner done than threads are woken

const kernel_table *chosen = &kernels_portable;

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
        sizeof(layer_weights), sizeof(model_weights), sizeof(cache_rows), sizeof(score_args),  sizeof(gather_args),
        sizeof(mean_args),     MAX_DIM,               MOST_QUERIES,
    };
    return which >= 0 && which < (int)(sizeof sizes / sizeof *sizes) ? sizes[which] : -1;
}

// y = x W^T, or y += x W^T, each weight read once.
API void triforce_linear(const linear_job *job) {
    const int64_t even = (job->out / (PIECES * omp_get_max_threads()) / 4 + 1) * 4, rows = even < ROWS ? even : ROWS;
    shared_work work;
    cut(&work, (job->out + rows - 1) / rows);
#pragma omp parallel
    {
        int passed = 0;
        for (int64_t i; (i = take(&work, &passed)) >= 0;)
            chosen->linear(job, i * rows, (i + 1) * rows < job->out ? (i + 1) * rows : job->out);
    }
}

API void triforce_rms_norm(const float *x, const float *weight, float *out, int64_t rows, int64_t dim, float eps) {
    if (rows * dim <= ALONE) {
        chosen->rms_norm(x, weight, out, rows, dim, eps);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) chosen->rms_norm(x + row * dim, weight, out + row * dim, 1, dim, eps);
}

API void triforce_silu_mul(const float *gate_up, float *out, int64_t rows, int64_t inner) {
    if (rows * inner <= ALONE) {
        chosen->silu_mul(gate_up, out, rows, inner);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) chosen->silu_mul(gate_up + 2 * row * inner, out + row * inner, 1, inner);
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
