/* checkpoint_load.h: tensors of one open checkpoint into their places, by all threads. */
#ifndef POCKFARM_CHECKPOINT_LOAD_H
#define POCKFARM_CHECKPOINT_LOAD_H

#include "image.h"

typedef struct {
    const char *path;
    int descriptor;
    unsigned char *memory;
    uint64_t data_offset;   /* of the file's tensors */
    const int64_t *begins;  /* by state: where its bytes begin behind `data_offset`; -1: not in this file */
    bool *mapped; /* set for what is mapped and not read */
} pf_checkpoint_tensors;

/* Copy every tensor that the file has, transposed where memory's layout is another. Refuses NaN and Inf. */
pf_status pf_checkpoint_load(const pf_checkpoint_tensors *tensors);

#endif
