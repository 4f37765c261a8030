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

#define MOST_RUNS 64  // threads past it begin in the run of another

// Pieces of work cut into runs: each thread does one run, in order, and helps with the others' when its own is done. The next
// piece of a run stands in a cache line of its own.
typedef struct {
    int num;
    struct {
        _Alignas(64) int64_t next;
        int64_t end;
    } runs[MOST_RUNS];
} shared_work;

// Cuts pieces 0 to `count` into a run for each thread. Neighbours are for one thread, which then reads one stream.
static inline void cut(shared_work *work, int64_t count) {
    const int threads = omp_get_max_threads();
    work->num = threads < MOST_RUNS ? threads : MOST_RUNS;
    for (int i = 0; i < work->num; i++) {
        work->runs[i].next = count * i / work->num;
        work->runs[i].end = count * (i + 1) / work->num;
    }
}

// The next piece for the calling thread, or -1 when none is left. `passed`, which begins as 0, counts runs found done.
static inline int64_t take(shared_work *work, int *passed) {
    for (; *passed < work->num; ++*passed) {
        const int run = (omp_get_thread_num() + *passed) % work->num;
        int64_t piece;
#pragma omp atomic read
        piece = work->runs[run].next;
        if (piece >= work->runs[run].end) continue;  // a look first: many threads would fight for the line
#pragma omp atomic capture
        piece = work->runs[run].next++;
        if (piece < work->runs[run].end) return piece;
    }
    return -1;
}

#endif
