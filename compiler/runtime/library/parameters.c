/* parameters.c: parameters by name, between the layout of files and that of memory. */
#include <inttypes.h>
#include <string.h>

#include "failure.h"
#include "finite.h"
#include "layout.h"
#include "parameters.h"

static bool is_parameter(const pf_state *state) { return state->role == PF_PARAMETER && !state->copy; }

int32_t pf_parameter_count(void) {
    int32_t count = 0;
    for (uint32_t i = 0; i < pf_image_data.state_count; i++) count += is_parameter(&pf_image_data.states[i]);
    return count;
}

const pf_state *pf_parameter(int32_t index) {
    for (uint32_t i = 0; i < pf_image_data.state_count; i++)
        if (is_parameter(&pf_image_data.states[i]) && index-- == 0) return &pf_image_data.states[i];
    return NULL;
}

/* Its size must be `bytes`. */
static pf_status find(const char *name, size_t bytes, const pf_state **found) {
    char shape[160];
    for (int32_t i = 0; (*found = pf_parameter(i)); i++)
        if (name && strcmp((*found)->file_name, name) == 0) break;
    if (!*found)
        return pf_fail(PF_USER, "user.parameter", "there is no parameter '%.200s'; there are %" PRId32 ", the first is '%.200s'",
                       name ? name : "", pf_parameter_count(), pf_parameter_count() ? pf_parameter(0)->file_name : "");
    size_t needed = (size_t)(*found)->count * pf_item_bytes((*found)->dtype);
    if (bytes == needed) return PF_OK;
    return pf_fail(PF_WEIGHTS, "weights.shape", "parameter '%.200s' has %zu bytes (%s shaped %s), not %zu", name, needed,
                   pf_dtype_name((*found)->dtype), pf_shape_text(shape, sizeof shape, (*found)->file_shape, (*found)->file_rank),
                   bytes);
}

pf_status pf_parameter_read(const pf_step *step, const char *name, void *data, size_t bytes) {
    const pf_state *state;
    pf_walk walk;
    PF_TRY(find(name, bytes, &state));
    if (!state->permuted) return pf_device_download(step->device, state->offset, data, bytes);
    const void *memory = pf_reach(step->memory, state->offset, bytes, PF_READ);
    pf_walk_start(&walk, state);
    if (memory) pf_walk_gather(&walk, pf_item_bytes(state->dtype), memory, data, state->count);
    return pf_let_go(step->memory);
}

static void put(unsigned char *memory, const pf_state *state, const char *data) {
    size_t item_bytes = pf_item_bytes(state->dtype);
    if (!state->permuted) {
        memcpy(memory, data, (size_t)state->count * item_bytes);
        return;
    }
    for (int64_t first = 0, count; first < state->count; first += count) {
        count = pf_box_elements(state, first, state->count);
        pf_box_scatter(state, first, count, data + (size_t)first * item_bytes, memory);
    }
}

pf_status pf_parameter_write(pf_step *step, const char *name, const void *data, size_t bytes) {
    const pf_state *state;
    PF_TRY(find(name, bytes, &state));
    if (state->dtype == PF_F32 && !pf_all_finite(data, state->count))
        return pf_fail(PF_WEIGHTS, "weights.not_finite", "what is written to parameter '%.200s' holds NaN or Inf", name);
    /* Where a parameter lies in memory twice, both are written. */
    for (uint32_t i = 0; i < pf_image_data.state_count; i++) {
        const pf_state *other = &pf_image_data.states[i];
        if (strcmp(other->file_name, state->file_name) != 0) continue;
        void *memory = pf_reach(step->memory, other->offset, bytes, PF_WRITE);
        if (memory) put(memory, other, data);
    }
    return pf_let_go(step->memory);
}
