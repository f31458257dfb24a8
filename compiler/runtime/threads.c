#include "threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "failure.h"

/* Kernels follow each other within microseconds, so a waiter spins about that long before it sleeps. */
enum { MAX_THREADS = 256, SPINS = 4000, STACK_BYTES = 4 << 20 };

static struct {
    int threads;
    pthread_t workers[MAX_THREADS];
    pf_parallel_lambda *lambda;
    void *closure;
    int task_count;
    atomic_int failure;
    _Alignas(64) atomic_int generation; /* counts launches; workers wait for it to change */
    _Alignas(64) atomic_int running;    /* workers that have not finished this launch */
    atomic_int sleepers;
    atomic_bool caller_sleeps;
    atomic_bool stopping;
} pool = {.threads = 1};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void sleep_while(atomic_int *word, int value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake_all(atomic_int *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0); }

/* Wait until `word` is no longer `value`; returns what it is. */
static int wait_change(atomic_int *word, int value, atomic_int *sleepers) {
    int seen;
    for (int spin = 0; spin < SPINS; spin++) {
        if ((seen = atomic_load_explicit(word, memory_order_acquire)) != value) return seen;
        relax();
    }
    atomic_fetch_add(sleepers, 1);
    while ((seen = atomic_load(word)) == value) sleep_while(word, value);
    atomic_fetch_sub(sleepers, 1);
    return seen;
}

static void run_share(int thread, int threads) {
    pf_parallel_env env = {.sync_handle = NULL, .num_task = pool.task_count};
    for (int task = thread; task < pool.task_count; task += threads)
        if (pool.lambda(task, &env, pool.closure) != 0) atomic_store(&pool.failure, 1);
}

static void *work(void *argument) {
    int thread = (int)(intptr_t)argument, generation = 0;
    for (;;) {
        generation = wait_change(&pool.generation, generation, &pool.sleepers);
        if (atomic_load(&pool.stopping)) return NULL;
        run_share(thread, pool.threads);
        if (atomic_fetch_sub(&pool.running, 1) == 1 && atomic_load(&pool.caller_sleeps)) wake_all(&pool.running);
    }
}

pf_status pf_threads_start(int threads) {
    pthread_attr_t attributes;
    if (threads > MAX_THREADS) return pf_fail(PF_LIMITS, "limits.threads", "at most %d threads, not %d", MAX_THREADS, threads);
    atomic_store(&pool.stopping, false);
    atomic_store(&pool.generation, 0);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pool.threads = 1;
    for (int thread = 1; thread < threads; thread++) {
        if (pthread_create(&pool.workers[thread], &attributes, work, (void *)(intptr_t)thread) != 0) {
            pf_threads_stop();
            return pf_fail(PF_LIMITS, "limits.threads", "the system refused thread %d of %d; try --threads %d", thread + 1,
                           threads, thread);
        }
        pool.threads = thread + 1;
    }
    pthread_attr_destroy(&attributes);
    return PF_OK;
}

static void announce(void) {
    atomic_fetch_add(&pool.generation, 1);
    if (atomic_load(&pool.sleepers) > 0) wake_all(&pool.generation);
}

void pf_threads_stop(void) {
    atomic_store(&pool.stopping, true);
    announce();
    for (int thread = 1; thread < pool.threads; thread++) pthread_join(pool.workers[thread], NULL);
    pool.threads = 1;
}

static void wait_for_workers(void) {
    int left;
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&pool.running, memory_order_acquire) == 0) return;
        relax();
    }
    atomic_store(&pool.caller_sleeps, true);
    while ((left = atomic_load(&pool.running)) != 0) sleep_while(&pool.running, left);
    atomic_store(&pool.caller_sleeps, false);
}

int pf_threads_run(pf_parallel_lambda *lambda, void *closure, int task_count) {
    pool.lambda = lambda;
    pool.closure = closure;
    pool.task_count = task_count > 0 ? task_count : pool.threads;
    atomic_store(&pool.failure, 0);
    if (pool.threads == 1 || pool.task_count == 1) {
        run_share(0, 1); /* workers stay asleep */
        return atomic_load(&pool.failure) ? -1 : 0;
    }
    atomic_store(&pool.running, pool.threads - 1);
    announce();
    run_share(0, pool.threads);
    wait_for_workers();
    return atomic_load(&pool.failure) ? -1 : 0;
}
