// Memory that a call works in.
#ifndef TRIFORCE_WORKSPACE_H
#define TRIFORCE_WORKSPACE_H

#include <stdint.h>
#include <stdlib.h>

#define LINE 64  // bytes of a line of the first-level cache

// So many floats, of the calling thread and kept for its next call in the same file: pages that are new every time cost more than
// attention over a thousand rows. They begin with a line: a vector of 64 bytes that lies across two is read at half the speed.
// Null when memory is short.
static inline float *workspace(int64_t floats) {
    static _Thread_local char *memory;
    static _Thread_local int64_t held;
    if (floats > held) {
        free(memory);
        memory = malloc(sizeof(float) * floats + LINE);
        held = memory ? floats : 0;
    }
    return memory ? (float *)(memory + LINE - (uintptr_t)memory % LINE) : 0;
}

#endif
