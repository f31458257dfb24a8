/* denormals.h: while a kernel runs, numbers below 1.2e-38 are zero. Momentum and activations decay into them, and x86
 * computes with them a hundred times slower; a difference that small is far below float32 rounding of anything else. */
#ifndef POCKFARM_DENORMALS_H
#define POCKFARM_DENORMALS_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* Flush from now on, in this thread; returns what `pf_denormals_restore` takes. */
static inline uint64_t pf_denormals_flush(void) {
#if defined(__x86_64__)
    uint32_t mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040); /* FTZ: results; DAZ: operands */
    return mode;
#elif defined(__aarch64__)
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"(mode | (uint64_t)1 << 24)); /* FZ: both */
    return mode;
#else
    return 0;
#endif
}

static inline void pf_denormals_restore(uint64_t mode) {
#if defined(__x86_64__)
    _mm_setcsr((uint32_t)mode);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
    (void)mode;
#endif
}

#endif
