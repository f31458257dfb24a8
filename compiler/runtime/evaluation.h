/* evaluation.h: the loss and accuracy of a whole data set. */
#ifndef POCKFARM_EVALUATION_H
#define POCKFARM_EVALUATION_H

#include "data.h"

typedef struct {
    int64_t samples, batches;
    double loss;     /* the weighted sum of the terms' means; NaN if no label of a term counts */
    double accuracy; /* of the first cross-entropy, else NaN */
    bool finite;     /* whether the logits are numbers */
} pf_evaluation;

/* Forward passes over all samples in file order. A loss that the graph itself computes is of a whole batch: what is left at
 * the end of the data is not scored. Ends early, with fewer samples, when asked to stop. */
pf_status pf_evaluate(pf_step *step, const pf_data *data, pf_evaluation *result);

/* Refuses data that is too small to be scored (`data.count`); `*samples` that will be. */
pf_status pf_evaluated_samples(const pf_data *data, int64_t *samples);

/* Samples position .. position + batch - 1 through the forward program; `pf_batch_end` is where they end. */
pf_status pf_forward_batch(const pf_data *data, pf_step *step, int64_t position);
int64_t pf_batch_end(const pf_data *data, int64_t position);

/* The members of an event that tells of it. */
void pf_put_evaluation(const pf_evaluation *evaluation);

#endif
