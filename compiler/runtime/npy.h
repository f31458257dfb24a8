/* npy.h: reads samples from NumPy .npy files (format 1.0 and 2.0, C order, little-endian) with pread. */
#ifndef POCKFARM_NPY_H
#define POCKFARM_NPY_H

#include "image.h"

typedef struct {
    const char *path;
    int descriptor;
    char kind; /* NumPy's: f i u b */
    int item_bytes;
    int rank;
    int64_t shape[PF_MAX_RANK];
    int64_t sample_count; /* elements of one sample: everything but the first axis */
    uint64_t data_offset;
    bool infinite; /* infinities are meant, as in a mask */
} pf_npy;

/* Open a file and check its header; samples are its first axis. */
pf_status pf_npy_open(pf_npy *file, const char *path);
void pf_npy_close(pf_npy *file);

/* Whether elements of this file may become `to` without losing meaning (any number -> f32, integers -> integers). */
bool pf_npy_converts(const pf_npy *file, pf_dtype to);

/* Elements first .. first+count-1 of one sample, converted. Refuses NaN, Inf and integers that do not fit, naming the
 * sample. */
pf_status pf_npy_read(const pf_npy *file, int64_t sample, int64_t first, int64_t count, pf_dtype to, void *out);

#endif
