/* layout.h: walks a tensor in file order and tells where each element is in memory. */
#ifndef POCKFARM_LAYOUT_H
#define POCKFARM_LAYOUT_H

#include "image.h"

typedef struct {
    int rank;
    int64_t extents[PF_MAX_RANK], strides[PF_MAX_RANK], index[PF_MAX_RANK];
    int64_t offset; /* of the current element, in elements */
} pf_walk;

/* Start at the first element: file = view order; memory = view.transpose(perm), row-major. */
void pf_walk_start(pf_walk *walk, const pf_state *state);

/* Copy the next `count` elements, in file order, from memory to `file` or back. */
void pf_walk_gather(pf_walk *walk, size_t item_bytes, const void *memory, void *file, int64_t count);
void pf_walk_scatter(pf_walk *walk, size_t item_bytes, void *memory, const void *file, int64_t count);

#endif
