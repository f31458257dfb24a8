/* trials.h: the tables of a tuning binary (compiler/codegen/linking/trials.py writes them): kernels, each in several schedules
 * that compute the same. */
#ifndef POCKFARM_TRIALS_H
#define POCKFARM_TRIALS_H

#include "image.h"

typedef struct {
    int64_t count;
    pf_dtype dtype;
} pf_extent;

/* One schedule; `workspace_bytes` of scratch are its last operand, if any. */
typedef struct {
    pf_kernel_fn *kernel;
    uint64_t workspace_bytes;
} pf_variant;

/* One kernel: variant 0 is the default that the others are compared with. */
typedef struct {
    const pf_extent *operands; /* inputs, then outputs */
    uint32_t operand_count, input_count;
    const pf_variant *variants;
    uint32_t variant_count;
    double weight; /* expected share of the step's time */
} pf_trial;

typedef struct {
    const pf_trial *trials; /* heaviest first */
    uint32_t count;
    uint64_t pool_bytes; /* operands are taken from copies spread over this much, as a step's come from its arena */
} pf_trials;

extern const pf_trials pf_trials_data;

#endif
