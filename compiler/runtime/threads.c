#include "threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "failure.h"
#include "session.h"

/* Kernels follow each other within microseconds, so a waiter spins about that long before it sleeps. */
enum { MAX_THREADS = 256, RELAXES_PER_CLOCK = 32, STACK_BYTES = 4 << 20 };
static const double SPIN_US = 50.0;

/* One launch at a time. Launch g is split into one share per thread; whoever moves `claims[t]` from g-1 to g runs share
 * t: thread t if it is awake, else the caller, who would otherwise wait for it to wake. */
static struct {
    int threads;
    pthread_t workers[MAX_THREADS];
    pf_parallel_lambda *lambda;
    void *closure;
    int task_count;
    atomic_int failure;
    _Alignas(64) atomic_uint generation; /* counts launches; workers wait for it to change */
    _Alignas(64) atomic_uint claims[MAX_THREADS];
    _Alignas(64) atomic_uint running; /* shares of this launch, the caller's own apart, that have not ended */
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

static void sleep_while(atomic_uint *word, unsigned value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake_all(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0); }

/* Wait a little for `word` to differ from `value`. */
static bool spin_while(atomic_uint *word, unsigned value) {
    double give_up_us = pf_now_us() + SPIN_US;
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
    return atomic_load(&pool.generation);
}

static void run_share(int share, int shares) {
    pf_parallel_env env = {.sync_handle = NULL, .num_task = pool.task_count};
    for (int task = share; task < pool.task_count; task += shares)
        if (pool.lambda(task, &env, pool.closure) != 0) atomic_store(&pool.failure, 1);
}

/* Run share `share` of launch `generation` unless another thread has it. */
static void try_share(int share, unsigned generation) {
    unsigned before = generation - 1;
    if (!atomic_compare_exchange_strong(&pool.claims[share], &before, generation)) return;
    run_share(share, pool.threads);
    if (atomic_fetch_sub(&pool.running, 1) == 1 && atomic_load(&pool.caller_sleeps)) wake_all(&pool.running);
}

static void *work(void *argument) {
    int thread = (int)(intptr_t)argument;
    unsigned generation = 0;
    for (;;) {
        generation = wait_for_launch(generation);
        if (atomic_load(&pool.stopping)) return NULL;
        try_share(thread, generation);
    }
}

static void reset(void) {
    pool.threads = 1;
    atomic_store(&pool.stopping, false);
    atomic_store(&pool.generation, 0);
    for (int thread = 0; thread < MAX_THREADS; thread++) atomic_store(&pool.claims[thread], 0);
}

pf_status pf_threads_start(int threads) {
    pthread_attr_t attributes;
    if (threads > MAX_THREADS) return pf_fail(PF_LIMITS, "limits.threads", "at most %d threads, not %d", MAX_THREADS, threads);
    reset();
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
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

static unsigned announce(void) {
    unsigned generation = atomic_fetch_add(&pool.generation, 1) + 1;
    if (atomic_load(&pool.sleepers) > 0) wake_all(&pool.generation);
    return generation;
}

void pf_threads_stop(void) {
    atomic_store(&pool.stopping, true);
    announce();
    for (int thread = 1; thread < pool.threads; thread++) pthread_join(pool.workers[thread], NULL);
    pool.threads = 1;
}

static void wait_for_shares(void) {
    unsigned left;
    while ((left = atomic_load(&pool.running)) != 0) {
        if (spin_while(&pool.running, left)) continue;
        atomic_store(&pool.caller_sleeps, true);
        if (atomic_load(&pool.running) == left) sleep_while(&pool.running, left);
        atomic_store(&pool.caller_sleeps, false);
    }
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
    atomic_store(&pool.running, (unsigned)pool.threads - 1);
    unsigned generation = announce();
    run_share(0, pool.threads);
    for (int share = 1; share < pool.threads; share++) try_share(share, generation);
    wait_for_shares();
    return atomic_load(&pool.failure) ? -1 : 0;
}
