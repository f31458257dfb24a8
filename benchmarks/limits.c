/* The machine's limits, as one line of JSON: multiply-add rate by number of threads, and copy bandwidth by footprint.
 * usage: limits THREADS */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__AVX512F__)
enum { LANES = 16, CHAINS = 12 };
#elif defined(__AVX__)
enum { LANES = 8, CHAINS = 10 };
#else
enum { LANES = 4, CHAINS = 12 };
#endif
#if defined(__clang__) && defined(__x86_64__)
/* Where it tunes for a processor that lowers its clock for 512 bits, clang splits such vectors, and the peak is half. */
#define WHOLE_VECTORS __attribute__((min_vector_width(LANES * 32)))
#else
#define WHOLE_VECTORS
#endif
typedef float vector __attribute__((vector_size(LANES * sizeof(float))));

enum { MAX_THREADS = 64, FMA_ROUNDS = 20000000, TRIES = 3, AHEAD = 16 };
static const size_t HUGE_PAGE = (size_t)2 << 20, COPIED_BYTES = (size_t)512 << 20;

typedef struct {
    float *from, *to;
    size_t floats;
    long repeats;
    float kept;
} task;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

WHOLE_VECTORS static void *multiply_add(void *argument) {
    vector sums[CHAINS], x = {0}, y = {0};
    x += 1.0000001f;
    y += 1e-9f;
    for (int i = 0; i < CHAINS; i++) sums[i] = y + (float)i;
    for (long n = 0; n < FMA_ROUNDS; n++)
        for (int i = 0; i < CHAINS; i++) sums[i] = sums[i] * x + y;
    for (int i = 1; i < CHAINS; i++) sums[0] += sums[i];
    ((task *)argument)->kept = sums[0][0];
    return NULL;
}

WHOLE_VECTORS static void *copy(void *argument) {
    task *own = argument;
    for (long n = 0; n < own->repeats; n++) {
        const vector *from = (const vector *)own->from;
        vector *to = (vector *)own->to;
        for (size_t i = 0; i < own->floats / LANES; i += 2) { /* lines to be written are waited for as long as others */
            __builtin_prefetch(from + i + AHEAD), __builtin_prefetch(from + i + AHEAD + 1);
            __builtin_prefetch(to + i + AHEAD, 1), __builtin_prefetch(to + i + AHEAD + 1, 1);
            to[i] = from[i];
            to[i + 1] = from[i + 1];
        }
        __asm__ volatile("" ::: "memory");
    }
    return NULL;
}

/* Seconds of the quickest of a few tries. */
static double best_s(void *(*work)(void *), task *tasks, int threads) {
    double best = 1e9;
    for (int attempt = 0; attempt < TRIES; attempt++) {
        pthread_t others[MAX_THREADS];
        double start = now_s();
        for (int t = 1; t < threads; t++) pthread_create(&others[t], NULL, work, &tasks[t]);
        work(&tasks[0]);
        for (int t = 1; t < threads; t++) pthread_join(others[t], NULL);
        double seconds = now_s() - start;
        if (seconds < best) best = seconds;
    }
    return best;
}

static double copy_gb_s(size_t footprint, int threads) {
    task tasks[MAX_THREADS] = {0};
    size_t half = footprint / 2 / (size_t)threads;
    long repeats = (long)(COPIED_BYTES / footprint) + 1;
    for (int t = 0; t < threads; t++) {
        size_t rounded = (2 * half + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        float *memory = aligned_alloc(HUGE_PAGE, rounded);
        madvise(memory, rounded, MADV_HUGEPAGE);
        memset(memory, 1, rounded);
        tasks[t] = (task){memory, memory + half / sizeof(float), half / sizeof(float), repeats, 0};
    }
    double seconds = best_s(copy, tasks, threads);
    for (int t = 0; t < threads; t++) free(tasks[t].from);
    return (double)repeats * 2 * (double)half * threads / seconds / 1e9;
}

int main(int argc, char **argv) {
    int most = argc > 1 ? atoi(argv[1]) : 1;
    if (most < 1 || most > MAX_THREADS) return 2;
    printf("{\"fma_gflop_s\": {");
    for (int threads = 1; threads <= most; threads++) {
        task tasks[MAX_THREADS] = {0};
        double seconds = best_s(multiply_add, tasks, threads);
        double gflop = 2.0 * LANES * CHAINS * FMA_ROUNDS * threads / 1e9;
        printf("%s\"%d\": %.1f", threads > 1 ? ", " : "", threads, gflop / seconds);
    }
    printf("}, \"copy_gb_s\": {");
    for (size_t megabytes = 1; megabytes <= 256; megabytes *= 2) {
        size_t footprint = megabytes << 20;
        printf("%s\"%zu\": %.1f", megabytes > 1 ? ", " : "", footprint, copy_gb_s(footprint, most));
    }
    printf("}}\n");
    return 0;
}
