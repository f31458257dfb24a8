/* session.h: the inside of a pf_step, for the commands (timing per kernel, checks) and not for apps. */
#ifndef POCKFARM_SESSION_H
#define POCKFARM_SESSION_H

#include "cores.h"
#include "image.h"

struct pf_step {
    unsigned char *memory; /* weights, optimizer state, arena */
    void *mapping;         /* what `memory` lies in, from its first huge page on */
    size_t mapped_bytes;
    pf_placement placement; /* of the threads on cores */
    bool loaded; /* a checkpoint was, whose optimizer state the next one replaces */
    int64_t steps_done;
    double learning_rate;
    uint64_t seed; /* of random generators */
    pf_match matches[PF_MAX_WEIGHTS]; /* of the last load, by file */
};

const pf_program *pf_program_of(pf_program_kind kind);

/* Write hyper-parameters of the step to come into the arena, and what its random generators draw by. */
void pf_fill_hyper(pf_step *step);

/* Run call `index` of a program on the bound memory. */
pf_status pf_run_call(pf_step *step, const pf_program *program, uint32_t index);

/* `pf_train_step` that takes a loss that is not finite as it comes: a profile measures time, not learning. */
pf_status pf_run_train(pf_step *step, float *loss);

#endif
