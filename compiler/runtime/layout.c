#include "layout.h"

#include <string.h>

void pf_walk_start(pf_walk *walk, const pf_state *state) {
    int64_t stride = 1;
    memset(walk, 0, sizeof *walk);
    walk->rank = state->view_rank;
    for (int axis = state->view_rank - 1; axis >= 0; axis--) {
        int view_axis = state->perm[axis];
        walk->strides[view_axis] = stride;
        stride *= state->view_shape[view_axis];
    }
    for (int axis = 0; axis < state->view_rank; axis++) walk->extents[axis] = state->view_shape[axis];
}

static void advance(pf_walk *walk) {
    for (int axis = walk->rank - 1; axis >= 0; axis--) {
        walk->offset += walk->strides[axis];
        if (++walk->index[axis] < walk->extents[axis]) return;
        walk->offset -= walk->strides[axis] * walk->extents[axis];
        walk->index[axis] = 0;
    }
}

void pf_walk_gather(pf_walk *walk, size_t item_bytes, const void *memory, void *file, int64_t count) {
    for (int64_t i = 0; i < count; i++, advance(walk))
        memcpy((char *)file + (size_t)i * item_bytes, (const char *)memory + (size_t)walk->offset * item_bytes, item_bytes);
}

void pf_walk_scatter(pf_walk *walk, size_t item_bytes, void *memory, const void *file, int64_t count) {
    for (int64_t i = 0; i < count; i++, advance(walk))
        memcpy((char *)memory + (size_t)walk->offset * item_bytes, (const char *)file + (size_t)i * item_bytes, item_bytes);
}
