#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* What goes into one file. */
typedef struct {
    enum { ALL, PARAMETERS, CHANGED } what; /* CHANGED: by training, which is all that a run has to bring along */
    pf_progress progress;
    const pf_unfinished *unfinished; /* NULL: of no run */
    int best;                        /* descriptor of the best so far, `unfinished->best_bytes` long */
    const char *best_path;
} content;

static bool is_kept(const pf_state *state, const content *kept) {
    if (state->copy) return false;
    return kept->what == ALL || (kept->what == CHANGED ? state->trained : state->role == PF_PARAMETER);
}

static uint64_t state_bytes(const pf_state *state) { return (uint64_t)state->count * pf_item_bytes(state->dtype); }

static void put_entry(sink *out, const pf_state *state, uint64_t begin) {
    static const char *const dtypes[] = {"F32", "I64", "I32", "BOOL", "F16", "BF16", "I8"};
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

static void put_unfinished(sink *out, const pf_unfinished *unfinished) {
    put_text(out, ",\"key\":\"");
    pf_escape(unfinished->key, put, out);
    put_text(out, "\",\"position\":\"");
    pf_escape(unfinished->position, put, out);
    put_text(out, "\"");
}

static void put_best(sink *out, uint64_t begin, uint64_t bytes) {
    char text[160];
    snprintf(text, sizeof text, ",\"" PF_BEST_NAME "\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 "],\"data_offsets\":[%" PRIu64
             ",%" PRIu64 "]}", bytes, begin, begin + bytes);
    put_text(out, text);
}

static void put_header(sink *out, const content *kept) {
    char text[64];
    uint64_t begin = 0;
    snprintf(text, sizeof text, "{\"__metadata__\":{\"step\":\"%" PRId64 "\"", kept->progress.steps);
    put_text(out, text);
    snprintf(text, sizeof text, ",\"optimizer_start\":\"%" PRId64 "\"", kept->progress.optimizer_start);
    if (kept->what != PARAMETERS && kept->progress.optimizer_start > 0) put_text(out, text);
    snprintf(text, sizeof text, ",\"channels\":\"%s\"", pf_image_data.channels);
    if (kept->what != PARAMETERS && *pf_image_data.channels) put_text(out, text);
    if (kept->unfinished) put_unfinished(out, kept->unfinished);
    put_text(out, "}");
    for (uint32_t i = 0; i < pf_image_data.state_count; i++) {
        const pf_state *state = &pf_image_data.states[i];
        if (!is_kept(state, kept)) continue;
        put_entry(out, state, begin);
        begin += state_bytes(state);
    }
    if (kept->best >= 0) put_best(out, begin, kept->unfinished->best_bytes);
    put_text(out, "}");
    while (out->bytes % 8) put_text(out, " ");
}

static pf_status write_header(pf_new_file *file, const content *kept) {
    sink counter = {0}, out = {.file = file};
    char length[8];
    put_header(&counter, kept);
    for (int i = 0; i < 8; i++) length[i] = (char)(counter.bytes >> (8 * i));
    put(&out, length, sizeof length);
    put_header(&out, kept);
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

static pf_status write_best(pf_new_file *file, const content *kept) {
    for (uint64_t done = 0; done < kept->unfinished->best_bytes; done += PF_STAGING_BYTES) {
        uint64_t left = kept->unfinished->best_bytes - done;
        size_t now = left < PF_STAGING_BYTES ? (size_t)left : PF_STAGING_BYTES;
        PF_TRY(pf_read_at(PF_WEIGHTS, kept->best_path, kept->best, pf_staging, now, done));
        PF_TRY(pf_new_file_write(file, pf_staging, now));
    }
    return PF_OK;
}

static pf_status write_all(pf_new_file *file, const unsigned char *memory, const content *kept) {
    PF_TRY(write_header(file, kept));
    for (uint32_t i = 0; i < pf_image_data.state_count; i++)
        if (is_kept(&pf_image_data.states[i], kept)) PF_TRY(write_state(file, memory, &pf_image_data.states[i]));
    if (kept->best >= 0) PF_TRY(write_best(file, kept));
    return kept->unfinished ? pf_new_file_place(file) : pf_new_file_commit(file);
}

static pf_status write_file(const unsigned char *memory, const char *path, const content *kept) {
    pf_new_file file;
    PF_TRY(pf_new_file_open(&file, path));
    pf_status status = write_all(&file, memory, kept);
    if (status != PF_OK) pf_new_file_discard(&file);
    return status;
}

pf_status pf_checkpoint_write(const unsigned char *memory, const char *path, pf_save_set what, pf_progress progress) {
    content kept = {what == PF_SAVE_ALL ? ALL : PARAMETERS, progress, NULL, -1, NULL};
    return write_file(memory, path, &kept);
}

pf_status pf_checkpoint_write_unfinished(const unsigned char *memory, const char *path, pf_progress progress,
                                         const pf_unfinished *unfinished, const char *best) {
    pf_unfinished own = *unfinished;
    content kept = {CHANGED, progress, &own, -1, best};
    if (best) PF_TRY(pf_open_file(PF_WEIGHTS, best, &kept.best, &own.best_bytes));
    pf_status status = write_file(memory, path, &kept);
    if (best) close(kept.best);
    return status;
}
