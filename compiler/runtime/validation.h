/* validation.h: scores between training steps, the best of them, and when it is time to stop. */
#ifndef POCKFARM_VALIDATION_H
#define POCKFARM_VALIDATION_H

#include "data.h"

typedef struct {
    const pf_data *data; /* NULL: there is none */
    int64_t every;       /* steps */
    int64_t patience;    /* validations in a row without a better loss; 0: any number */
    double min_delta;    /* a loss is better if it is lower than the best by more than this */
    const char *save_best; /* where the checkpoint of the lowest loss goes; NULL: nowhere */
    double best_loss;
    int64_t best_step; /* 0: none yet */
    double bar;        /* what counts as the best for `min_delta` */
    int64_t waited;    /* validations since the last better one */
} pf_validation;

/* Whether a validation follows step `done` of `steps`: each `every` steps, and after the last. */
bool pf_validation_is_due(const pf_validation *validation, int64_t done, int64_t steps);

/* Score the samples as `eval` does, tell of it, and save what is best. `train.diverged` if the logits are no numbers. */
pf_status pf_validate(pf_validation *validation, pf_step *step, int64_t done);

/* Whether the loss has not become better for as long as patience lasts. */
bool pf_is_out_of_patience(const pf_validation *validation);

#endif
