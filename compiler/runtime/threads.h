/* threads.h: a fixed pool of threads that run the tasks of one parallel loop at a time. */
#ifndef POCKFARM_THREADS_H
#define POCKFARM_THREADS_H

#include "cores.h"
#include "pockfarm_step.h"
#include "tvm_abi.h"

/* Start `placement->threads - 1` workers; the caller is the first thread. `placement` must live until the stop. */
pf_status pf_threads_start(const pf_placement *placement);
void pf_threads_stop(void);

/* Run `lambda` for tasks 0 .. task_count-1 (0: one per thread) and wait; nonzero if a task failed.
 * Share t of T is tasks t, t + T, t + 2T ...; which thread runs a share is open, what it computes is not. */
int pf_threads_run(pf_parallel_lambda *lambda, void *closure, int task_count);

/* Since the start: launches that woke or waited for other threads, and how often a thread gave up spinning and slept. */
typedef struct {
    uint64_t launches, sleeps;
} pf_thread_counts;
pf_thread_counts pf_threads_counts(void);

#endif
