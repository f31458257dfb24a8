/* session.h: the inside of a pf_step, for the commands (timing per kernel, checks) and not for apps. */
#ifndef POCKFARM_SESSION_H
#define POCKFARM_SESSION_H

#include "checkpoint.h"
#include "cores.h"
#include "image.h"
#include "reach.h"
#include "threads.h"

struct pf_step {
    pf_device *device;
    pf_reachable *memory; /* weights, optimizer state, arena */
    pf_placement placement; /* of the threads on cores */
    pf_pool *pool;
    bool loaded; /* a checkpoint was, whose optimizer state the next one replaces */
    bool ready;  /* the last load found all that a run needs */
    int64_t steps_done, optimizer_start; /* the optimizer counts from its own first step */
    int64_t micro_batch; /* of the step at hand, from 0: all but the last add up gradients */
    double learning_rate;
    uint64_t seed; /* of random generators */
    pf_match matches[PF_MAX_WEIGHTS]; /* of the last load, by file */
    pf_unfinished unfinished; /* what the last file of the last load says of its run */
};

/* The program that trains on the next micro-batch. */
const pf_program *pf_next_program(const pf_step *step);

/* Before a run of `pf_next_program`: what the host wrote is handed over; the hyper-parameters of the step to come and what its
 * random generators draw by are written into the arena, and what gradients are added to is cleared. */
pf_status pf_prepare(pf_step *step);

/* After it: the next micro-batch's turn, or the next step's. */
void pf_advance(pf_step *step);

/* Run call `index` of a program on the bound memory. */
pf_status pf_run_call(pf_step *step, const pf_program *program, uint32_t index);

/* `pf_train_step` that takes a loss that is not finite as it comes: a profile measures time, not learning. */
pf_status pf_run_train(pf_step *step, float *loss);

/* That of a whole step, of the sum of its micro-batches' losses and the last of them. */
double pf_step_loss(double sum, float last);

/* Write a checkpoint of the unfinished run at hand; see `pf_checkpoint_write_unfinished`. */
pf_status pf_save_unfinished(pf_step *step, const char *path, const pf_unfinished *unfinished, const char *best);

#endif
