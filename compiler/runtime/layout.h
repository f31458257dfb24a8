/* layout.h: a tensor's elements between file order and memory's order; see `pf_state`. */
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

/* Copy the next `count` elements, in file order, from memory to `file`. */
void pf_walk_gather(pf_walk *walk, size_t item_bytes, const void *memory, void *file, int64_t count);

/* Elements of one row of the file's outermost axis that is longer than one. */
int64_t pf_row_elements(const pf_state *state);

/* Copy `count` elements of the file, from element `first` on, from `file` to their places in `memory`. Fast for whole
 * rows. */
void pf_rows_scatter(const pf_state *state, int64_t first, int64_t count, const void *file, void *memory);

#endif
