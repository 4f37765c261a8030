// OpenMP's calls, or without OpenMP those of one thread; and work that threads share.
#ifndef TRIFORCE_THREADS_H
#define TRIFORCE_THREADS_H

#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_max_threads(void) { return 1; }
static inline int omp_get_thread_num(void) { return 0; }
#endif

#define MOST_SHARES 64

// A run of pieces of work, a cache line of its own: what one thread does first, and the others help with when theirs are done.
typedef struct {
    _Alignas(64) int64_t next;
    int64_t end;
} share;

// Cuts pieces 0 to `count` into runs, one for each thread; returns their number. Neighbours are for one thread, which then
// reads one stream.
static inline int share_out(share *shares, int64_t count) {
    const int threads = omp_get_max_threads(), num = threads < MOST_SHARES ? threads : MOST_SHARES;
    for (int i = 0; i < num; i++) {
        shares[i].next = count * i / num;
        shares[i].end = count * (i + 1) / num;
    }
    return num;
}

// The next piece for the calling thread, or -1 when none is left. `passed`, which begins as 0, counts shares found empty.
static inline int64_t take(share *shares, int num, int *passed) {
    for (; *passed < num; ++*passed) {
        share *one = shares + (omp_get_thread_num() + *passed) % num;
        int64_t piece;
#pragma omp atomic capture
        piece = one->next++;
        if (piece < one->end) return piece;
    }
    return -1;
}

#endif
