#include "threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "denormals.h"
#include "failure.h"

/* Kernels follow each other within microseconds, so a waiter spins about that long before it sleeps. */
#ifndef PF_SPIN_US
#define PF_SPIN_US 50.0
#endif
enum { MAX_THREADS = 256, RELAXES_PER_CLOCK = 32, STACK_BYTES = 4 << 20 };

/* Share t of the launch under way, on a cache line of its own. Whoever moves `claimed` from g-1 to g runs it: thread t
 * if it is awake, else the caller, who would otherwise wait for it to wake. */
typedef struct {
    _Alignas(64) atomic_uint claimed; /* number of the last launch whose share was taken */
    atomic_uint done;                 /* number of the last launch whose share has ended */
    bool failed;
} share_state;

static struct {
    int threads;
    double spin_us;
    const pf_placement *placement;
    uint64_t launches;
    atomic_uint_fast64_t sleeps;
    /* What a worker reads of a launch, on one cache line, which so crosses to each of them once. */
    _Alignas(64) atomic_uint generation; /* counts launches; workers wait for it to change */
    int task_count;
    pf_parallel_lambda *lambda;
    void *closure;
    atomic_int sleepers;
    atomic_bool caller_sleeps;
    atomic_bool stopping;
} pool = {.threads = 1};

static share_state shares[MAX_THREADS];
static pthread_t workers[MAX_THREADS];

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void sleep_while(atomic_uint *word, unsigned value) {
    atomic_fetch_add_explicit(&pool.sleeps, 1, memory_order_relaxed);
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake_all(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0); }

/* Wait a little for `word` to differ from `value`. */
static bool spin_while(atomic_uint *word, unsigned value) {
    if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
    double give_up_us = pf_now_us() + pool.spin_us;
    do {
        for (int i = 0; i < RELAXES_PER_CLOCK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
            relax();
        }
    } while (pf_now_us() < give_up_us);
    return false;
}

static unsigned wait_for_launch(unsigned seen) {
    if (!spin_while(&pool.generation, seen)) {
        atomic_fetch_add(&pool.sleepers, 1);
        while (atomic_load(&pool.generation) == seen) sleep_while(&pool.generation, seen);
        atomic_fetch_sub(&pool.sleepers, 1);
    }
    return atomic_load_explicit(&pool.generation, memory_order_acquire);
}

/* Whether every task of share `share` of `count` succeeded. */
static bool run_share(int share, int count) {
    pf_parallel_env env = {.sync_handle = NULL, .num_task = pool.task_count};
    bool good = true;
    for (int task = share; task < pool.task_count; task += count) good &= pool.lambda(task, &env, pool.closure) == 0;
    return good;
}

/* Run share `number` of launch `generation` unless another thread has it. */
static void try_share(int number, unsigned generation) {
    share_state *share = &shares[number];
    unsigned before = generation - 1;
    if (atomic_load_explicit(&share->claimed, memory_order_relaxed) != before) return;
    if (!atomic_compare_exchange_strong(&share->claimed, &before, generation)) return;
    share->failed = !run_share(number, pool.threads);
    atomic_store(&share->done, generation);
    if (atomic_load(&pool.caller_sleeps)) wake_all(&share->done);
}

static void *work(void *argument) {
    int thread = (int)(intptr_t)argument;
    unsigned generation = 0;
    pf_cores_settle(pool.placement, thread);
    pf_denormals_flush();
    for (;;) {
        generation = wait_for_launch(generation);
        if (atomic_load(&pool.stopping)) return NULL;
        try_share(thread, generation);
    }
}

static void reset(const pf_placement *placement) {
    pool.threads = 1;
    pool.placement = placement;
    pool.launches = 0;
    atomic_store(&pool.sleeps, 0);
    atomic_store(&pool.stopping, false);
    atomic_store(&pool.generation, 0);
    for (int thread = 0; thread < MAX_THREADS; thread++) {
        atomic_store(&shares[thread].claimed, 0);
        atomic_store(&shares[thread].done, 0);
    }
}

pf_status pf_threads_start(const pf_placement *placement) {
    pthread_attr_t attributes;
    int threads = placement->threads;
    if (threads > MAX_THREADS) return pf_fail(PF_LIMITS, "limits.threads", "at most %d threads, not %d", MAX_THREADS, threads);
    reset(placement);
    /* With more threads than cores, one that spins keeps another from the work it waits for. */
    pool.spin_us = threads > placement->allowed ? 0.0 : PF_SPIN_US;
    pf_cores_settle(placement, 0);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (int thread = 1; thread < threads; thread++) {
        if (pthread_create(&workers[thread], &attributes, work, (void *)(intptr_t)thread) != 0) {
            pf_threads_stop();
            return pf_fail(PF_LIMITS, "limits.threads", "the system refused thread %d of %d; try --threads %d", thread + 1,
                           threads, thread);
        }
        pool.threads = thread + 1;
    }
    pthread_attr_destroy(&attributes);
    return PF_OK;
}

static unsigned announce(void) {
    unsigned generation = atomic_load_explicit(&pool.generation, memory_order_relaxed) + 1;
    atomic_store(&pool.generation, generation);
    if (atomic_load(&pool.sleepers) > 0) wake_all(&pool.generation);
    return generation;
}

void pf_threads_stop(void) {
    atomic_store(&pool.stopping, true);
    announce();
    for (int thread = 1; thread < pool.threads; thread++) pthread_join(workers[thread], NULL);
    if (pool.placement) pf_cores_release(pool.placement);
    pool.placement = NULL;
    pool.threads = 1;
}

static void wait_for_share(share_state *share, unsigned generation) {
    while (atomic_load_explicit(&share->done, memory_order_acquire) != generation) {
        if (spin_while(&share->done, generation - 1)) continue;
        atomic_store(&pool.caller_sleeps, true);
        if (atomic_load(&share->done) != generation) sleep_while(&share->done, generation - 1);
        atomic_store(&pool.caller_sleeps, false);
    }
}

int pf_threads_run(pf_parallel_lambda *lambda, void *closure, int task_count) {
    pool.lambda = lambda;
    pool.closure = closure;
    pool.task_count = task_count > 0 ? task_count : pool.threads;
    if (pool.threads == 1 || pool.task_count == 1) return run_share(0, 1) ? 0 : -1; /* workers stay asleep */
    pool.launches++;
    unsigned generation = announce();
    bool good = run_share(0, pool.threads);
    for (int share = 1; share < pool.threads; share++) try_share(share, generation);
    for (int share = 1; share < pool.threads; share++) {
        wait_for_share(&shares[share], generation);
        good &= !shares[share].failed;
    }
    return good ? 0 : -1;
}

pf_thread_counts pf_threads_counts(void) {
    return (pf_thread_counts){pool.launches, atomic_load_explicit(&pool.sleeps, memory_order_relaxed)};
}
