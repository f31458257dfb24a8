/* data.h: where batches come from: .npy files, or seeded synthetic values. */
#ifndef POCKFARM_DATA_H
#define POCKFARM_DATA_H

#include "npy.h"
#include "session.h"

typedef struct {
    bool synthetic, sequential;
    uint64_t seed;
    int64_t first, samples; /* of the files: which samples these are */
    const pf_npy *counted; /* the file that says how many */
    pf_npy inputs[PF_MAX_INPUTS], labels[PF_MAX_LABELS];
} pf_data;

/* Open one file per model input (`input_paths[i]` may be NULL only if all are: then synthetic) and, if
 * `label_paths`, one per array of labels. Checks element types, shapes and that sample counts agree.
 *
 * Files have their samples first, wherever the model has them; what is the same for every sample has one, [1, ...]. */
pf_status pf_data_open(pf_data *data, const char *const *input_paths, const char *const *label_paths);
void pf_data_close(pf_data *data);

/* Part the samples: the last `fraction` of them (to the nearest whole number) are `last`, in file order, those before `data`. Both share the
 * open files. Refuses a part without a sample. */
pf_status pf_data_part(pf_data *data, double fraction, pf_data *last);

/* The sample at a place of the endless sequence of epochs: file order, or a seeded permutation per epoch. */
int64_t pf_data_sample(const pf_data *data, int64_t position);

/* Fill a program's inputs (and, for the train program, the labels) with samples position .. position + batch - 1.
 * Positions at or past `end` repeat the last sample before it (a padded part-batch). */
pf_status pf_data_fill(const pf_data *data, pf_step *step, pf_program_kind program, int64_t position, int64_t end);

/* Add to the scores, one per loss, how the last forward run did on the batch's sample `slot`, which is sample `sample` of
 * the files. Losses that the graph itself computes are not of samples. */
pf_status pf_data_score(const pf_data *data, const pf_step *step, int64_t slot, int64_t sample, pf_score *scores);

#endif
