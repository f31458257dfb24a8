#include "layout.h"

#include <string.h>

static int64_t offset_at(const pf_walk *walk, int axis, int64_t index) {
    return walk->offsets[axis] ? walk->offsets[axis][index] : index * walk->strides[axis];
}

static void start_at_axes(pf_walk *walk, const pf_state *state) {
    walk->rank = state->axis_count;
    for (int axis = 0; axis < walk->rank; axis++) {
        walk->extents[axis] = state->axes[axis].extent;
        walk->strides[axis] = state->axes[axis].stride;
        walk->offsets[axis] = state->axes[axis].offsets;
        walk->offset += offset_at(walk, axis, 0);
    }
}

void pf_walk_start(pf_walk *walk, const pf_state *state) {
    int64_t stride = 1;
    memset(walk, 0, sizeof *walk);
    if (state->axes) {
        start_at_axes(walk, state);
        return;
    }
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
        walk->offset -= offset_at(walk, axis, walk->index[axis]);
        if (++walk->index[axis] == walk->extents[axis]) walk->index[axis] = 0;
        walk->offset += offset_at(walk, axis, walk->index[axis]);
        if (walk->index[axis]) return;
    }
}

/* Go on to element `first` of the file. */
static void seek(pf_walk *walk, int64_t first) {
    for (int axis = walk->rank - 1; axis >= 0; axis--) {
        walk->offset -= offset_at(walk, axis, walk->index[axis]);
        walk->index[axis] = first % walk->extents[axis];
        first /= walk->extents[axis];
        walk->offset += offset_at(walk, axis, walk->index[axis]);
    }
}

void pf_walk_gather(pf_walk *walk, size_t item_bytes, const void *memory, void *file, int64_t count) {
    for (int64_t i = 0; i < count; i++, advance(walk))
        memcpy((char *)file + (size_t)i * item_bytes, (const char *)memory + (size_t)walk->offset * item_bytes, item_bytes);
}

/* A box of a tensor, walked in memory's order, so that writes follow one another: axis 0 is memory's outermost. */
typedef struct {
    int rank;
    int64_t extents[PF_MAX_RANK], file_strides[PF_MAX_RANK], memory_strides[PF_MAX_RANK], index[PF_MAX_RANK];
    int64_t file_offset, memory_offset;
} box;

/* The outermost axis of the file of which one step is at most `most` elements, and how many it is. */
static int axis_within(const pf_state *state, int64_t most, int64_t *step) {
    int axis = state->view_rank - 1;
    *step = 1;
    while (axis > 0 && *step * state->view_shape[axis] <= most) *step *= state->view_shape[axis--];
    return axis;
}

int64_t pf_box_elements(const pf_state *state, int64_t first, int64_t most) {
    int64_t step, left;
    if (state->view_rank == 0) return 1;
    if (state->axes) return most < state->count - first ? most : state->count - first;
    int axis = axis_within(state, most, &step);
    left = state->view_shape[axis] - first / step % state->view_shape[axis];
    return (most / step < left ? most / step : left) * step;
}

static void box_of(box *part, const pf_state *state, int64_t first, int64_t count) {
    int64_t file_strides[PF_MAX_RANK], extents[PF_MAX_RANK], step, file_stride = 1, memory_stride = 1;
    int cut = axis_within(state, count, &step);
    memset(part, 0, sizeof *part);
    part->rank = state->view_rank;
    for (int axis = state->view_rank - 1; axis >= 0; axis--) {
        extents[axis] = axis > cut ? state->view_shape[axis] : axis == cut ? count / step : 1;
        file_strides[axis] = file_stride;
        file_stride *= state->view_shape[axis];
    }
    for (int axis = state->view_rank - 1; axis >= 0; axis--) {
        int view_axis = state->perm[axis];
        int64_t index = first / file_strides[view_axis] % state->view_shape[view_axis];
        part->extents[axis] = extents[view_axis];
        part->file_strides[axis] = file_strides[view_axis];
        part->memory_strides[axis] = memory_stride;
        if (view_axis <= cut) part->memory_offset += index * memory_stride;
        memory_stride *= state->view_shape[view_axis];
    }
}

/* Step the axes outside the innermost; false at the end. */
static bool next_run(box *part) {
    for (int axis = part->rank - 2; axis >= 0; axis--) {
        part->file_offset += part->file_strides[axis];
        part->memory_offset += part->memory_strides[axis];
        if (++part->index[axis] < part->extents[axis]) return true;
        part->file_offset -= part->file_strides[axis] * part->extents[axis];
        part->memory_offset -= part->memory_strides[axis] * part->extents[axis];
        part->index[axis] = 0;
    }
    return false;
}

static void copy_run4(const char *file, int64_t stride, char *memory, int64_t count) {
    for (int64_t i = 0; i < count; i++) memcpy(memory + 4 * i, file + 4 * i * stride, 4);
}

static void copy_run(const char *file, int64_t stride, char *memory, int64_t count, size_t item_bytes) {
    for (int64_t i = 0; i < count; i++)
        memcpy(memory + (size_t)i * item_bytes, file + (size_t)(i * stride) * item_bytes, item_bytes);
}

static void scatter_along(const pf_state *state, int64_t first, int64_t count, const char *file, char *memory) {
    size_t item_bytes = pf_item_bytes(state->dtype);
    pf_walk walk;
    pf_walk_start(&walk, state);
    seek(&walk, first);
    for (int64_t i = 0; i < count; i++, advance(&walk))
        memcpy(memory + (size_t)walk.offset * item_bytes, file + (size_t)i * item_bytes, item_bytes);
}

void pf_box_scatter(const pf_state *state, int64_t first, int64_t count, const void *file, void *memory) {
    size_t item_bytes = pf_item_bytes(state->dtype);
    box part;
    if (state->view_rank == 0) {
        memcpy(memory, file, item_bytes);
        return;
    }
    if (state->axes) {
        scatter_along(state, first, count, file, memory);
        return;
    }
    box_of(&part, state, first, count);
    int inner = part.rank - 1;
    do {
        const char *from = (const char *)file + (size_t)part.file_offset * item_bytes;
        char *to = (char *)memory + (size_t)part.memory_offset * item_bytes;
        if (item_bytes == 4) copy_run4(from, part.file_strides[inner], to, part.extents[inner]);
        else copy_run(from, part.file_strides[inner], to, part.extents[inner], item_bytes);
    } while (next_run(&part));
}
