#include "threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "denormals.h"
#include "failure.h"
#include "tiles.h"

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

/* A parallel loop. */
typedef struct {
    int task_count;
    pf_parallel_lambda *lambda;
    void *closure;
} pf_launch;

struct pf_pool {
    int threads;
    double spin_us;
    const pf_placement *placement;
    uint64_t launches;
    atomic_uint_fast64_t sleeps;
    /* What a worker reads of a launch, on one cache line, which so crosses to each of them once. */
    _Alignas(64) atomic_uint generation; /* counts launches; workers wait for it to change */
    pf_launch launch;
    atomic_int sleepers;
    atomic_bool caller_sleeps;
    atomic_bool stopping;
    char message[PF_KERNEL_MESSAGE_BYTES];
    pthread_t workers[MAX_THREADS];
    share_state shares[MAX_THREADS];
};

/* What a thread uses that has no pool: its loops run on it alone. All zero, and only `message` is ever written. */
static pf_pool nobody;
/* In the thread's own block from its start on, also of a library that is loaded late: nothing is allocated for it. */
static _Thread_local pf_pool *used __attribute__((tls_model("initial-exec")));

static pf_pool *pool_used(void) { return used ? used : &nobody; }

void pf_threads_use(pf_pool *pool) { used = pool; }

char *pf_threads_message(void) { return pool_used()->message; }

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void sleep_while(pf_pool *pool, atomic_uint *word, unsigned value) {
    atomic_fetch_add_explicit(&pool->sleeps, 1, memory_order_relaxed);
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake_all(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0); }

/* Wait a little for `word` to differ from `value`. */
static bool spin_while(const pf_pool *pool, atomic_uint *word, unsigned value) {
    if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
    double give_up_us = pf_now_us() + pool->spin_us;
    do {
        for (int i = 0; i < RELAXES_PER_CLOCK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
            relax();
        }
    } while (pf_now_us() < give_up_us);
    return false;
}

static unsigned wait_for_launch(pf_pool *pool, unsigned seen) {
    if (!spin_while(pool, &pool->generation, seen)) {
        atomic_fetch_add(&pool->sleepers, 1);
        while (atomic_load(&pool->generation) == seen) sleep_while(pool, &pool->generation, seen);
        atomic_fetch_sub(&pool->sleepers, 1);
    }
    return atomic_load_explicit(&pool->generation, memory_order_acquire);
}

/* Whether every task of share `share` of `count` succeeded. */
static bool run_share(const pf_launch *launch, int share, int count) {
    pf_parallel_env env = {.sync_handle = NULL, .num_task = launch->task_count};
    bool good = true;
    for (int task = share; task < launch->task_count; task += count) good &= launch->lambda(task, &env, launch->closure) == 0;
    return good;
}

/* Run share `number` of launch `generation` unless another thread has it. */
static void try_share(pf_pool *pool, int number, unsigned generation) {
    share_state *share = &pool->shares[number];
    unsigned before = generation - 1;
    if (atomic_load_explicit(&share->claimed, memory_order_relaxed) != before) return;
    if (!atomic_compare_exchange_strong(&share->claimed, &before, generation)) return;
    share->failed = !run_share(&pool->launch, number, pool->threads);
    atomic_store(&share->done, generation);
    if (atomic_load(&pool->caller_sleeps)) wake_all(&share->done);
}

/* What a worker is told as it starts; it copies it before the pool goes on. */
typedef struct {
    pf_pool *pool;
    int thread;
} place_of_work;

static void *work(void *argument) {
    place_of_work place = *(place_of_work *)argument;
    unsigned generation = 0;
    free(argument);
    used = place.pool;
    pf_cores_settle(place.pool->placement, place.thread);
    pf_denormals_flush();
    for (;;) {
        generation = wait_for_launch(place.pool, generation);
        if (atomic_load(&place.pool->stopping)) return NULL;
        try_share(place.pool, place.thread, generation);
    }
}

static int start_worker(pf_pool *pool, int thread, const pthread_attr_t *attributes) {
    place_of_work *place = malloc(sizeof *place);
    if (!place) return ENOMEM;
    *place = (place_of_work){pool, thread};
    int failed = pthread_create(&pool->workers[thread], attributes, work, place);
    if (failed) free(place);
    return failed;
}

static pf_pool *make_pool(const pf_placement *placement) {
    pf_pool *pool = aligned_alloc(_Alignof(pf_pool), sizeof *pool);
    if (!pool) return NULL;
    memset(pool, 0, sizeof *pool);
    pool->threads = 1;
    pool->placement = placement;
    /* With more threads than cores, one that spins keeps another from the work it waits for. */
    pool->spin_us = placement->threads > placement->allowed ? 0.0 : PF_SPIN_US;
    return pool;
}

pf_status pf_threads_start(pf_pool **made, const pf_placement *placement) {
    pthread_attr_t attributes;
    int threads = placement->threads, failed = 0;
    if (threads > MAX_THREADS) return pf_fail(PF_LIMITS, "limits.threads", "at most %d threads, not %d", MAX_THREADS, threads);
    if (!pf_tiles_ask())
        return pf_fail(PF_LIMITS, "limits.tiles", "the system gives no tile registers (AMX) to this process: %s; they need Linux "
                       "5.16 or newer and room for them on signal stacks; build for x86-64-v4-bf16 to do without", strerror(errno));
    pf_pool *pool = make_pool(placement);
    if (!pool) return pf_fail(PF_LIMITS, "limits.memory", "no memory for a pool of threads");
    pf_cores_settle(placement, 0);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (int thread = 1; thread < threads && !failed; thread++) {
        failed = start_worker(pool, thread, &attributes);
        if (!failed) pool->threads = thread + 1;
    }
    pthread_attr_destroy(&attributes);
    int started = pool->threads;
    if (failed) {
        pf_threads_stop(pool);
        return pf_fail(PF_LIMITS, "limits.threads", "the system refused thread %d of %d; try --threads %d", started + 1, threads,
                       started);
    }
    pf_threads_use(pool);
    *made = pool;
    return PF_OK;
}

static unsigned announce(pf_pool *pool) {
    unsigned generation = atomic_load_explicit(&pool->generation, memory_order_relaxed) + 1;
    atomic_store(&pool->generation, generation);
    if (atomic_load(&pool->sleepers) > 0) wake_all(&pool->generation);
    return generation;
}

void pf_threads_stop(pf_pool *pool) {
    if (!pool) return;
    atomic_store(&pool->stopping, true);
    announce(pool);
    for (int thread = 1; thread < pool->threads; thread++) pthread_join(pool->workers[thread], NULL);
    pf_cores_release(pool->placement);
    if (used == pool) used = NULL;
    free(pool);
}

static void wait_for_share(pf_pool *pool, share_state *share, unsigned generation) {
    while (atomic_load_explicit(&share->done, memory_order_acquire) != generation) {
        if (spin_while(pool, &share->done, generation - 1)) continue;
        atomic_store(&pool->caller_sleeps, true);
        if (atomic_load(&share->done) != generation) sleep_while(pool, &share->done, generation - 1);
        atomic_store(&pool->caller_sleeps, false);
    }
}

int pf_threads_run(pf_parallel_lambda *lambda, void *closure, int task_count) {
    pf_pool *pool = pool_used();
    pf_launch launch = {task_count > 0 ? task_count : pool->threads > 1 ? pool->threads : 1, lambda, closure};
    if (pool->threads <= 1 || launch.task_count == 1) return run_share(&launch, 0, 1) ? 0 : -1; /* workers stay asleep */
    pool->launch = launch;
    pool->launches++;
    unsigned generation = announce(pool);
    bool good = run_share(&launch, 0, pool->threads);
    for (int share = 1; share < pool->threads; share++) try_share(pool, share, generation);
    for (int share = 1; share < pool->threads; share++) {
        wait_for_share(pool, &pool->shares[share], generation);
        good &= !pool->shares[share].failed;
    }
    return good ? 0 : -1;
}

pf_thread_counts pf_threads_counts(void) {
    pf_pool *pool = pool_used();
    return (pf_thread_counts){pool->launches, atomic_load_explicit(&pool->sleeps, memory_order_relaxed)};
}
