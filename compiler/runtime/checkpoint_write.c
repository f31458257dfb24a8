#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint.h"
#include "events.h"
#include "failure.h"
#include "files.h"
#include "finite.h"
#include "layout.h"

/* The header is written twice: once to count its bytes, once to the file, through the staging buffer. */
typedef struct {
    pf_new_file *file; /* NULL: count only */
    uint64_t bytes;
    size_t staged;
    pf_status status;
} sink;

static void flush(sink *out) {
    if (out->file && out->status == PF_OK) out->status = pf_new_file_write(out->file, pf_staging, out->staged);
    out->staged = 0;
}

static void put(void *to, const char *bytes, uint64_t count) {
    sink *out = to;
    out->bytes += count;
    if (!out->file) return;
    for (uint64_t i = 0; i < count; i++) {
        if (out->staged == PF_STAGING_BYTES) flush(out);
        pf_staging[out->staged++] = (unsigned char)bytes[i];
    }
}

static void put_text(sink *out, const char *text) { put(out, text, strlen(text)); }

static bool is_kept(const pf_state *state, pf_save_set what) {
    return !state->copy && (what == PF_SAVE_ALL || state->role == PF_PARAMETER);
}

static uint64_t state_bytes(const pf_state *state) { return (uint64_t)state->count * pf_item_bytes(state->dtype); }

static void put_entry(sink *out, const pf_state *state, uint64_t begin) {
    static const char *const dtypes[] = {"F32", "I64", "I32", "BOOL"};
    char text[96];
    put_text(out, ",\"");
    pf_escape(state->file_name, put, out);
    snprintf(text, sizeof text, "\":{\"dtype\":\"%s\",\"shape\":[", dtypes[state->dtype]);
    put_text(out, text);
    for (int axis = 0; axis < state->file_rank; axis++) {
        snprintf(text, sizeof text, axis ? ",%" PRId64 : "%" PRId64, state->file_shape[axis]);
        put_text(out, text);
    }
    snprintf(text, sizeof text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + state_bytes(state));
    put_text(out, text);
}

static void put_header(sink *out, pf_save_set what, pf_progress progress) {
    char text[64];
    uint64_t begin = 0;
    snprintf(text, sizeof text, "{\"__metadata__\":{\"step\":\"%" PRId64 "\"", progress.steps);
    put_text(out, text);
    snprintf(text, sizeof text, ",\"optimizer_start\":\"%" PRId64 "\"", progress.optimizer_start);
    if (what == PF_SAVE_ALL && progress.optimizer_start > 0) put_text(out, text);
    snprintf(text, sizeof text, ",\"channels\":\"%s\"", pf_image_data.channels);
    if (what == PF_SAVE_ALL && *pf_image_data.channels) put_text(out, text);
    put_text(out, "}");
    for (uint32_t i = 0; i < pf_image_data.state_count; i++) {
        const pf_state *state = &pf_image_data.states[i];
        if (!is_kept(state, what)) continue;
        put_entry(out, state, begin);
        begin += state_bytes(state);
    }
    put_text(out, "}");
    while (out->bytes % 8) put_text(out, " ");
}

static pf_status write_header(pf_new_file *file, pf_save_set what, pf_progress progress) {
    sink counter = {0}, out = {.file = file};
    char length[8];
    put_header(&counter, what, progress);
    for (int i = 0; i < 8; i++) length[i] = (char)(counter.bytes >> (8 * i));
    put(&out, length, sizeof length);
    put_header(&out, what, progress);
    flush(&out);
    return out.status;
}

static pf_status check_finite(const pf_state *state, const float *values, int64_t count) {
    if (state->role == PF_CONSTANT || pf_all_finite(values, count)) return PF_OK; /* no step writes a constant */
    return pf_fail(PF_USER, "train.diverged", "'%s' holds NaN or Inf after training; lower the learning rate",
                   state->file_name);
}

static pf_status write_state(pf_new_file *file, const unsigned char *memory, const pf_state *state) {
    pf_walk walk;
    size_t item_bytes = pf_item_bytes(state->dtype);
    int64_t step = (int64_t)(PF_STAGING_BYTES / item_bytes);
    if (state->dtype == PF_F32) PF_TRY(check_finite(state, (const float *)(const void *)(memory + state->offset), state->count));
    if (!state->permuted) return pf_new_file_write(file, memory + state->offset, (size_t)state_bytes(state));
    pf_walk_start(&walk, state);
    for (int64_t done = 0; done < state->count; done += step) {
        int64_t now = state->count - done < step ? state->count - done : step;
        pf_walk_gather(&walk, item_bytes, memory + state->offset, pf_staging, now);
        PF_TRY(pf_new_file_write(file, pf_staging, (size_t)now * item_bytes));
    }
    return PF_OK;
}

static pf_status write_all(pf_new_file *file, const unsigned char *memory, pf_save_set what, pf_progress progress) {
    PF_TRY(write_header(file, what, progress));
    for (uint32_t i = 0; i < pf_image_data.state_count; i++)
        if (is_kept(&pf_image_data.states[i], what)) PF_TRY(write_state(file, memory, &pf_image_data.states[i]));
    return pf_new_file_commit(file);
}

pf_status pf_checkpoint_write(const unsigned char *memory, const char *path, pf_save_set what, pf_progress progress) {
    static pf_new_file file;
    PF_TRY(pf_new_file_open(&file, path));
    pf_status status = write_all(&file, memory, what, progress);
    if (status != PF_OK) pf_new_file_discard(&file);
    return status;
}
