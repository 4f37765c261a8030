// Queries [n, heads, dim] as the kernels want them.
#ifndef TRIFORCE_QUERIES_H
#define TRIFORCE_QUERIES_H

#include <math.h>

#include "kernels.h"

// Those of KV head `head` side by side, token by token: [n * group, dim], scaled so that scores are to base 2.
static inline void gather_queries(const float *q, int n, int heads, int kv_heads, int dim, int head, float *to) {
    const int width = heads / kv_heads * dim;
    const float scale = LOG2_E / sqrtf((float)dim);
    for (int token = 0; token < n; token++) {
        const float *from = q + (int64_t)token * heads * dim + head * width;
        for (int i = 0; i < width; i++) to[(int64_t)token * width + i] = from[i] * scale;
    }
}

#endif
