/* data.h: where batches come from: .npy files, or seeded synthetic values. */
#ifndef POCKFARM_DATA_H
#define POCKFARM_DATA_H

#include "npy.h"
#include "session.h"

typedef struct {
    bool synthetic, has_labels, sequential;
    uint64_t seed;
    int64_t samples;
    pf_npy inputs[PF_MAX_INPUTS], labels;
} pf_data;

/* Open one file per model input (`input_paths[i]` may be NULL only if all are: then synthetic) and the labels. Checks
 * element types, shapes and that sample counts agree. */
pf_status pf_data_open(pf_data *data, const char *const *input_paths, const char *label_path);
void pf_data_close(pf_data *data);

/* The sample at a place of the endless sequence of epochs: file order, or a seeded permutation per epoch. */
int64_t pf_data_sample(const pf_data *data, int64_t position);

/* Fill a program's inputs (and, for the train program, the label) with samples position .. position + batch - 1.
 * Positions at or past `end` repeat the last sample before it (a padded part-batch). */
pf_status pf_data_fill(const pf_data *data, pf_step *step, pf_program_kind program, int64_t position, int64_t end);

/* Add to `score` how the last forward run did on the batch's sample `slot`, which is sample `sample` of the files. */
pf_status pf_data_score(const pf_data *data, const pf_step *step, int64_t slot, int64_t sample, pf_score *score);

#endif
