/* layout.h: a tensor's elements between file order and memory's order; see `pf_state`. */
#ifndef POCKFARM_LAYOUT_H
#define POCKFARM_LAYOUT_H

#include "image.h"

typedef struct {
    int rank;
    int64_t extents[PF_MAX_RANK], strides[PF_MAX_RANK], index[PF_MAX_RANK];
    const int64_t *offsets[PF_MAX_RANK]; /* in place of strides, or NULL */
    int64_t offset; /* of the current element, in elements */
} pf_walk;

/* Start at the first element: file = view order; memory = view.transpose(perm), row-major, or as `axes` says. */
void pf_walk_start(pf_walk *walk, const pf_state *state);

/* Copy the next `count` elements, in file order, from memory to `file`. */
void pf_walk_gather(pf_walk *walk, size_t item_bytes, const void *memory, void *file, int64_t count);

/* The most elements, `most` or fewer, that from element `first` of the file on form a box of the tensor: whole steps of
 * one axis. A tensor is cut into such boxes by starting at 0 and going on where the last one ended. */
int64_t pf_box_elements(const pf_state *state, int64_t first, int64_t most);

/* Copy a box of `count` elements, from element `first` of the file on, from `file` to their places in `memory`. */
void pf_box_scatter(const pf_state *state, int64_t first, int64_t count, const void *file, void *memory);

#endif
