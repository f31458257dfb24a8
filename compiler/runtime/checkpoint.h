/* checkpoint.h: safetensors files to and from the weights and optimizer regions. */
#ifndef POCKFARM_CHECKPOINT_H
#define POCKFARM_CHECKPOINT_H

#include "image.h"

/* Take from `path` every state tensor it has; sets `found` of those. `*steps` becomes the file's `step`, if it has one;
 * `*match` says how it fits. Refuses malformed, overlapping, gapped or duplicated entries, wrong types and shapes, NaN and
 * Inf, and a file without any of the build's parameters. */
pf_status pf_checkpoint_read(unsigned char *memory, const char *path, bool *found, int64_t *steps, pf_match *match);

/* Write every state tensor, or only parameters, as one file that replaces `path` when complete. Refuses to write
 * parameters or optimizer state that are not finite (`train.diverged`). */
pf_status pf_checkpoint_write(const unsigned char *memory, const char *path, pf_save_set what, int64_t steps);

#endif
