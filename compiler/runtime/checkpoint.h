/* checkpoint.h: safetensors files to and from the weights and optimizer regions. */
#ifndef POCKFARM_CHECKPOINT_H
#define POCKFARM_CHECKPOINT_H

#include "image.h"

/* How far training has come: steps done, and how many of them were before the optimizer's state began. */
typedef struct {
    int64_t steps, optimizer_start;
} pf_progress;

enum { PF_KEY_BYTES = 129, PF_POSITION_BYTES = 256 };

/* What the checkpoint of an unfinished run says beside its tensors: all empty in any other. */
typedef struct {
    char key[PF_KEY_BYTES];           /* whose run it is */
    char position[PF_POSITION_BYTES]; /* where it stands (run_position.c) */
    uint64_t best_offset, best_bytes; /* where in the file the checkpoint with the lowest loss lies, whole */
} pf_unfinished;

/* Take from `path` every state tensor it has; sets `found` of those. `progress` becomes the file's as far as it tells;
 * `*match` says how it fits. Refuses malformed, overlapping, gapped or duplicated entries, wrong types and shapes, NaN and
 * Inf, and a file without any of the build's parameters. `unfinished` becomes what the file says of its run. */
pf_status pf_checkpoint_read(unsigned char *memory, const char *path, bool *found, pf_progress *progress, pf_match *match,
                             pf_unfinished *unfinished);

/* Write every state tensor, or only parameters, as one file that replaces `path` when complete. Refuses to write
 * parameters or optimizer state that are not finite (`train.diverged`). */
pf_status pf_checkpoint_write(const unsigned char *memory, const char *path, pf_save_set what, pf_progress progress);

/* The same of an unfinished run: what training changes, where the run stands, and the file `best` (NULL: none) whole. The
 * rest comes from the weights that the run began with. Not flushed to the disk: whoever wants it copies it. */
pf_status pf_checkpoint_write_unfinished(const unsigned char *memory, const char *path, pf_progress progress,
                                         const pf_unfinished *unfinished, const char *best);

/* Copy what `unfinished` says is the best of the checkpoint `path` to the file `to`. */
pf_status pf_checkpoint_take_best(const char *path, const pf_unfinished *unfinished, const char *to);

#define PF_BEST_NAME "pockfarm.checkpoint.best"

#endif
