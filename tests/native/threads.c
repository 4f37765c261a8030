// The part of GCC's OpenMP runtime that the kernels use, on plain threads: ThreadSanitizer knows what those order.
//
// libgomp is built without ThreadSanitizer, which therefore misses its barriers and reports races where there are none. Here a
// parallel section starts its threads and joins them, and nothing else orders memory: the counter that deals out iterations is
// relaxed on purpose, so that a race between two iterations is seen whichever thread gets them.
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#define MOST_THREADS 8

int planted_race;  // all threads take themselves for the first, and so share its memory

static int wanted = 4;
static _Thread_local int number, team = 1;

// The loop of a section whose iterations are dealt out: one at most, counted from its first by steps of 1.
typedef struct {
    long first, end, chunk;
} loop;

static loop given;                // what the threads of a section start with
static _Thread_local loop mine;
static atomic_long dealt;

int omp_get_max_threads(void) { return wanted; }
int omp_get_num_threads(void) { return team; }
int omp_get_thread_num(void) { return planted_race ? 0 : number; }
void omp_set_num_threads(int count) { wanted = count < MOST_THREADS ? count : MOST_THREADS; }

typedef struct {
    void (*body)(void *);
    void *data;
    int number, team;
} section;

static void *enter(void *argument) {
    const section *s = argument;
    number = s->number, team = s->team, mine = given;
    s->body(s->data);
    number = 0, team = 1;
    return NULL;
}

void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
    (void)flags;
    if (team > 1) abort();  // the kernels nest no sections
    static int sections_begun;
    const int most = threads ? (int)threads : wanted, count = ++sections_begun % 3 || most == 1 ? most : most - 1;  // a team may be smaller
    section sections[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    atomic_store_explicit(&dealt, 0, memory_order_relaxed);
    for (int i = 0; i < count; i++) sections[i] = (section){body, data, i, count};
    for (int i = 1; i < count; i++)
        if (pthread_create(&ids[i], NULL, enter, &sections[i])) abort();
    enter(&sections[0]);
    for (int i = 1; i < count; i++) pthread_join(ids[i], NULL);
}

bool GOMP_loop_nonmonotonic_dynamic_next(long *start, long *end) {
    const long at = mine.first + atomic_fetch_add_explicit(&dealt, mine.chunk, memory_order_relaxed);
    if (at >= mine.end) return false;
    *start = at;
    *end = at + mine.chunk < mine.end ? at + mine.chunk : mine.end;
    return true;
}

bool GOMP_loop_nonmonotonic_dynamic_start(long first, long end, long step, long chunk, long *from, long *to) {
    (void)step;
    mine = (loop){first, end, chunk};
    return GOMP_loop_nonmonotonic_dynamic_next(from, to);
}

void GOMP_loop_end_nowait(void) {}

// Both at once, as other versions of GCC have it.
void GOMP_parallel_loop_nonmonotonic_dynamic(void (*body)(void *), void *data, unsigned threads, long first, long end,
                                             long step, long chunk, unsigned flags) {
    (void)step;
    given = (loop){first, end, chunk};
    GOMP_parallel(body, data, threads, flags);
}
