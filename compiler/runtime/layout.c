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

static int outermost(const pf_state *state) {
    int axis = 0;
    while (axis < state->view_rank - 1 && state->view_shape[axis] == 1) axis++;
    return axis;
}

int64_t pf_row_elements(const pf_state *state) {
    return state->view_rank == 0 || state->count == 0 ? 1 : state->count / state->view_shape[outermost(state)];
}

/* Some rows of a tensor, walked in memory's order, so that writes follow one another: axis 0 is memory's outermost. */
typedef struct {
    int rank;
    int64_t extents[PF_MAX_RANK], file_strides[PF_MAX_RANK], memory_strides[PF_MAX_RANK], index[PF_MAX_RANK];
    int64_t file_offset, memory_offset;
} box;

static void box_of_rows(box *rows, const pf_state *state, int64_t first, int64_t count) {
    int64_t file_strides[PF_MAX_RANK], file_stride = 1, memory_stride = 1;
    int outer = outermost(state);
    memset(rows, 0, sizeof *rows);
    rows->rank = state->view_rank;
    for (int axis = state->view_rank - 1; axis >= 0; axis--) {
        file_strides[axis] = file_stride;
        file_stride *= state->view_shape[axis];
    }
    for (int axis = state->view_rank - 1; axis >= 0; axis--) {
        int view_axis = state->perm[axis];
        rows->extents[axis] = view_axis == outer ? count : state->view_shape[view_axis];
        rows->file_strides[axis] = file_strides[view_axis];
        rows->memory_strides[axis] = memory_stride;
        if (view_axis == outer) rows->memory_offset = first * memory_stride;
        memory_stride *= state->view_shape[view_axis];
    }
}

/* Step the axes outside the innermost; false at the end. */
static bool next_run(box *rows) {
    for (int axis = rows->rank - 2; axis >= 0; axis--) {
        rows->file_offset += rows->file_strides[axis];
        rows->memory_offset += rows->memory_strides[axis];
        if (++rows->index[axis] < rows->extents[axis]) return true;
        rows->file_offset -= rows->file_strides[axis] * rows->extents[axis];
        rows->memory_offset -= rows->memory_strides[axis] * rows->extents[axis];
        rows->index[axis] = 0;
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

static void scatter_one_by_one(const pf_state *state, int64_t first, int64_t count, const char *file, char *memory) {
    size_t item_bytes = pf_item_bytes(state->dtype);
    pf_walk walk;
    pf_walk_start(&walk, state);
    for (int64_t left = first, axis = walk.rank - 1; axis >= 0; left /= walk.extents[axis--]) {
        walk.index[axis] = left % walk.extents[axis];
        walk.offset += walk.index[axis] * walk.strides[axis];
    }
    for (int64_t i = 0; i < count; i++, advance(&walk))
        memcpy(memory + (size_t)walk.offset * item_bytes, file + (size_t)i * item_bytes, item_bytes);
}

void pf_rows_scatter(const pf_state *state, int64_t first, int64_t count, const void *file, void *memory) {
    int64_t row = pf_row_elements(state);
    size_t item_bytes = pf_item_bytes(state->dtype);
    box rows;
    if (first % row || count % row) {
        scatter_one_by_one(state, first, count, file, memory);
        return;
    }
    box_of_rows(&rows, state, first / row, count / row);
    int inner = rows.rank - 1;
    do {
        const char *from = (const char *)file + (size_t)rows.file_offset * item_bytes;
        char *to = (char *)memory + (size_t)rows.memory_offset * item_bytes;
        if (item_bytes == 4) copy_run4(from, rows.file_strides[inner], to, rows.extents[inner]);
        else copy_run(from, rows.file_strides[inner], to, rows.extents[inner], item_bytes);
    } while (next_run(&rows));
}
