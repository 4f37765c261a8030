// The part of GCC's OpenMP runtime that the kernels use, on plain threads: ThreadSanitizer knows what those order.
//
// libgomp is built without ThreadSanitizer, which therefore misses its barriers and reports races where there are none. Here a
// parallel section starts its threads and joins them, and nothing else orders memory: the counter that deals out iterations is
// relaxed on purpose, so that a race between two iterations is seen whichever thread gets them.
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define MOST_THREADS 8

int planted_race;  // all threads take themselves for the first, and so share its memory

static int wanted = 4;
static _Thread_local int number, team = 1;
static atomic_long next_iteration;
static long end_iteration, chunk_size;

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
    const int outer_number = number, outer_team = team;
    number = s->number, team = s->team;
    s->body(s->data);
    number = outer_number, team = outer_team;
    return NULL;
}

void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
    (void)flags;
    const int count = team > 1 ? 1 : threads ? (int)threads : wanted;  // nested sections have one thread
    section sections[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    for (int i = 0; i < count; i++) sections[i] = (section){body, data, i, count};
    for (int i = 1; i < count; i++) pthread_create(&ids[i], NULL, enter, &sections[i]);
    enter(&sections[0]);
    for (int i = 1; i < count; i++) pthread_join(ids[i], NULL);
}

static void deal(long start, long end, long chunk) {
    atomic_store_explicit(&next_iteration, start, memory_order_relaxed);
    end_iteration = end, chunk_size = chunk;
}

bool GOMP_loop_nonmonotonic_dynamic_next(long *start, long *end) {
    const long at = atomic_fetch_add_explicit(&next_iteration, chunk_size, memory_order_relaxed);
    if (at >= end_iteration) return false;
    *start = at;
    *end = at + chunk_size < end_iteration ? at + chunk_size : end_iteration;
    return true;
}

bool GOMP_loop_dynamic_next(long *start, long *end) { return GOMP_loop_nonmonotonic_dynamic_next(start, end); }

void GOMP_loop_end_nowait(void) {}

static void dealt(void (*body)(void *), void *data, unsigned threads, long start, long end, long chunk, unsigned flags) {
    deal(start, end, chunk);
    GOMP_parallel(body, data, threads, flags);
}

void GOMP_parallel_loop_nonmonotonic_dynamic(void (*body)(void *), void *data, unsigned threads, long start, long end,
                                             long step, long chunk, unsigned flags) {
    (void)step;  // GCC makes it 1
    dealt(body, data, threads, start, end, chunk, flags);
}

void GOMP_parallel_loop_dynamic(void (*body)(void *), void *data, unsigned threads, long start, long end, long step,
                                long chunk, unsigned flags) {
    GOMP_parallel_loop_nonmonotonic_dynamic(body, data, threads, start, end, step, chunk, flags);
}
