/* shuffle.h: a seeded permutation of 0 .. count-1 that needs no memory, and a small random generator. */
#ifndef POCKFARM_SHUFFLE_H
#define POCKFARM_SHUFFLE_H

#include <stdint.h>

/* SplitMix64's output function: a good 64-bit hash. */
uint64_t pf_mix(uint64_t value);

/* Element `index` of the permutation that (seed, epoch) choose. */
int64_t pf_shuffled(uint64_t seed, int64_t epoch, int64_t index, int64_t count);

#endif
