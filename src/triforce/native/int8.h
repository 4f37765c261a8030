// Rows of 8-bit integers with a scale each, as triforce.attention.int8 makes them.
#ifndef TRIFORCE_INT8_H
#define TRIFORCE_INT8_H

#include <math.h>
#include <stdint.h>

#define LEAST 1e-30f  // rows without a larger element are kept as zeros: the inverse of a smaller scale is no float

// The nearest multiples of 1/127 of the largest element; the scale is that 1/127.
static inline void store_int8(const float *from, int8_t *row, float *scale, int dim) {
    float largest = 0;
    for (int d = 0; d < dim; d++) {
        const float magnitude = fabsf(from[d]);
        largest = magnitude > largest ? magnitude : largest;
    }
    *scale = largest / 127;
    const float inverse = largest > LEAST ? 127 / largest : 0;
    for (int d = 0; d < dim; d++) row[d] = (int8_t)lrintf(from[d] * inverse);
}

#endif
