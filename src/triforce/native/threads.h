// OpenMP's calls; without OpenMP, those of one thread.
#ifndef TRIFORCE_THREADS_H
#define TRIFORCE_THREADS_H

#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_max_threads(void) { return 1; }
static inline int omp_get_thread_num(void) { return 0; }
#endif

#endif
