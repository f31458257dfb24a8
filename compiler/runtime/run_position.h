/* run_position.h: where an unfinished run stands, beside its tensors, as its checkpoint says it. */
#ifndef POCKFARM_RUN_POSITION_H
#define POCKFARM_RUN_POSITION_H

#include "checkpoint.h"
#include "explosion.h"
#include "validation.h"

/* The order of samples and what is drawn at random follow from the seed and the step's number: neither has more state. */
typedef struct {
    int64_t done; /* steps of the run; each was seen by `explosion` */
    pf_explosion explosion;
    double best_loss, bar; /* of the validation */
    int64_t best_step, waited;
} pf_run_position;

/* Write it as text into `unfinished`. */
void pf_position_tell(const pf_run_position *position, pf_unfinished *unfinished);

/* Read it back. `checkpoint.format` for what no run has written, `checkpoint.key` if it is of another run than `key`. */
pf_status pf_position_read(pf_run_position *position, const pf_unfinished *unfinished, const char *path, const char *key);

#endif
