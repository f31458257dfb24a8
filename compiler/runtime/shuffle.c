#include "shuffle.h"

uint64_t pf_mix(uint64_t value) {
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return value ^ value >> 31;
}

/* Six Feistel rounds permute the power of four at or above `count`; walking on until the result is below `count`
 * permutes 0 .. count-1 (under four rounds of walking on average). */
int64_t pf_shuffled(uint64_t seed, int64_t epoch, int64_t index, int64_t count) {
    uint64_t key = pf_mix(pf_mix(seed) + (uint64_t)epoch), value = (uint64_t)index;
    int half_bits = 1;
    while (half_bits < 31 && (uint64_t)count > (uint64_t)1 << 2 * half_bits) half_bits++;
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    do {
        uint64_t left = value >> half_bits, right = value & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t mixed = left ^ (pf_mix(key ^ right ^ round << 56) & mask);
            left = right;
            right = mixed;
        }
        value = left << half_bits | right;
    } while (value >= (uint64_t)count);
    return (int64_t)value;
}
