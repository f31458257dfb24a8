/* threads.h: fixed pools of threads, each of which runs the tasks of one parallel loop at a time.
 *
 * Kernels do not know whose they are: a thread says which pool its loops run on (`pf_threads_use`). Each step has its own, so
 * that steps in several threads do not meet. */
#ifndef POCKFARM_THREADS_H
#define POCKFARM_THREADS_H

#include "cores.h"
#include "pockfarm_step.h"
#include "tvm_abi.h"

typedef struct pf_pool pf_pool;

/* Start `placement->threads - 1` workers; the caller is the first thread, and uses the pool. `placement` must live until the
 * stop. */
pf_status pf_threads_start(pf_pool **pool, const pf_placement *placement);

/* End the workers and free the pool; the calling thread then uses none. NULL: nothing. */
void pf_threads_stop(pf_pool *pool);

/* From now on the calling thread's loops run on `pool`. */
void pf_threads_use(pf_pool *pool);

/* Run `lambda` for tasks 0 .. task_count-1 (0: one per thread) on the calling thread's pool (alone, if it uses none) and
 * wait; nonzero if a task failed.
 * Share t of T is tasks t, t + T, t + 2T ...; which thread runs a share is open, what it computes is not. */
int pf_threads_run(pf_parallel_lambda *lambda, void *closure, int task_count);

/* Where a kernel that fails says why, of the calling thread's pool. */
enum { PF_KERNEL_MESSAGE_BYTES = 320 };
char *pf_threads_message(void);

/* Of the calling thread's pool, since its start: launches that woke or waited for other threads, and how often a thread gave up spinning and slept. */
typedef struct {
    uint64_t launches, sleeps;
} pf_thread_counts;
pf_thread_counts pf_threads_counts(void);

#endif
