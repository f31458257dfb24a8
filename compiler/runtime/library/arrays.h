/* arrays.h: what an app hands in, checked, and put where the programs read it. */
#ifndef POCKFARM_ARRAYS_H
#define POCKFARM_ARRAYS_H

#include "pockfarm.h"
#include "session.h"

typedef struct {
    const unsigned char *inputs[PF_MAX_INPUTS], *labels[PF_MAX_LABELS];
    int64_t samples;
} pf_arrays;

/* Take `count` arrays of `samples` samples: every input and, if `with_labels`, every array of labels, once each. Checks
 * names, sizes and every value. */
pf_status pf_arrays_take(pf_arrays *arrays, const pockfarm_array *given, int32_t count, int64_t samples, bool with_labels);

/* Fill a program's inputs (the train program's labels too) with the samples from `first` on; past the end the last repeats. */
void pf_arrays_fill(const pf_arrays *arrays, pf_step *step, pf_program_kind program, int64_t first);

/* Add to the scores, one per loss, how the last forward run did on its sample `slot`, which is sample `sample` here. */
void pf_arrays_score(const pf_arrays *arrays, const pf_step *step, int64_t slot, int64_t sample, pf_score *scores);

#endif
