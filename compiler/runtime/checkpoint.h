/* checkpoint.h: safetensors files to and from the weights and optimizer regions. */
#ifndef POCKFARM_CHECKPOINT_H
#define POCKFARM_CHECKPOINT_H

#include "image.h"

/* How far training has come: steps done, and how many of them were before the optimizer's state began. */
typedef struct {
    int64_t steps, optimizer_start;
} pf_progress;

/* Take from `path` every state tensor it has; sets `found` of those. `progress` becomes the file's as far as it tells;
 * `*match` says how it fits. Refuses malformed, overlapping, gapped or duplicated entries, wrong types and shapes, NaN and
 * Inf, and a file without any of the build's parameters. */
pf_status pf_checkpoint_read(unsigned char *memory, const char *path, bool *found, pf_progress *progress, pf_match *match);

/* Write every state tensor, or only parameters, as one file that replaces `path` when complete. Refuses to write
 * parameters or optimizer state that are not finite (`train.diverged`). */
pf_status pf_checkpoint_write(const unsigned char *memory, const char *path, pf_save_set what, pf_progress progress);

#endif
