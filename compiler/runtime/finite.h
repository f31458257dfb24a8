/* finite.h: whether floats are numbers, without a branch for each, so that compilers make vector code of it. */
#ifndef POCKFARM_FINITE_H
#define POCKFARM_FINITE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline bool pf_all_finite(const void *floats, int64_t count) {
    uint32_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, (const char *)floats + 4 * i, 4);
        found |= (uint32_t)((bits & 0x7F800000) == 0x7F800000);
    }
    return !found;
}

static inline bool pf_any_nan(const void *floats, int64_t count) {
    uint32_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, (const char *)floats + 4 * i, 4);
        found |= (uint32_t)((bits & 0x7FFFFFFF) > 0x7F800000);
    }
    return found;
}

#endif
