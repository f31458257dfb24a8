#include "data.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "failure.h"
#include "shuffle.h"

enum { IGNORED_LABEL = -100, SCORE_CHUNK = 512 };

static pf_status check_file(const pf_npy *file, const pf_tensor *tensor) {
    char have[160], want[160];
    bool same = file->rank == tensor->rank;
    for (int axis = 1; same && axis < file->rank; axis++) same = file->shape[axis] == tensor->shape[axis];
    if (!same)
        return pf_fail(PF_DATA, "data.shape", "%s: shape is %s; '%s' needs [samples, ...] with samples shaped %s", file->path,
                       pf_shape_text(have, sizeof have, file->shape, file->rank), tensor->name,
                       pf_shape_text(want, sizeof want, tensor->shape + 1, tensor->rank - 1));
    if (!pf_npy_converts(file, tensor->dtype))
        return pf_fail(PF_DATA, "data.dtype", "%s: elements are '%c%d'; '%s' needs %s", file->path, file->kind,
                       file->item_bytes, tensor->name, pf_dtype_name(tensor->dtype));
    return PF_OK;
}

static pf_status open_checked(pf_data *data, pf_npy *file, const char *path, const pf_tensor *tensor) {
    PF_TRY(pf_npy_open(file, path));
    PF_TRY(check_file(file, tensor));
    if (data->samples == 0) data->samples = file->shape[0];
    if (data->samples == file->shape[0]) return PF_OK;
    return pf_fail(PF_DATA, "data.count", "%s: has %" PRId64 " samples, %s has %" PRId64 "; every file needs the same number", path,
                   file->shape[0], data->inputs[0].path, data->samples);
}

pf_status pf_data_open(pf_data *data, const char *const *input_paths, const char *const *label_paths) {
    data->samples = 0;
    for (int i = 0; i < PF_MAX_INPUTS; i++) data->inputs[i].descriptor = -1;
    for (int i = 0; i < PF_MAX_LABELS; i++) data->labels[i].descriptor = -1;
    data->synthetic = pf_input_count() > 0 && !input_paths[0];
    if (data->synthetic) return PF_OK;
    for (int i = 0; i < pf_input_count(); i++)
        PF_TRY(open_checked(data, &data->inputs[i], input_paths[i], pf_input(i)));
    for (int i = 0; label_paths && i < pf_label_count(); i++)
        PF_TRY(open_checked(data, &data->labels[i], label_paths[i], pf_label(i)));
    return PF_OK;
}

void pf_data_close(pf_data *data) {
    for (int i = 0; i < PF_MAX_INPUTS; i++) pf_npy_close(&data->inputs[i]);
    for (int i = 0; i < PF_MAX_LABELS; i++) pf_npy_close(&data->labels[i]);
}

pf_status pf_data_part(pf_data *data, double fraction, pf_data *last) {
    int64_t before = data->samples - (int64_t)floor((double)data->samples * fraction + 0.5);
    if (before < 1 || before >= data->samples)
        return pf_fail(PF_DATA, "data.count", "%" PRId64 " samples cannot be parted: a share of %g for validation leaves %" PRId64
                       " to learn from", data->samples, fraction, before);
    *last = *data;
    last->first = before;
    last->samples = data->samples - before;
    last->sequential = true;
    data->samples = before;
    return PF_OK;
}

int64_t pf_data_sample(const pf_data *data, int64_t position) {
    if (data->synthetic) return position;
    int64_t index = position % data->samples;
    if (!data->sequential) index = pf_shuffled(data->seed, position / data->samples, index, data->samples);
    return data->first + index;
}

static pf_status check_indices(const char *path, const pf_tensor *tensor, int64_t sample, const void *values, int64_t count) {
    for (int64_t i = 0; tensor->index_limit > 0 && i < count; i++) {
        int64_t value = tensor->dtype == PF_I64 ? ((const int64_t *)values)[i] : ((const int32_t *)values)[i];
        if (value < -tensor->index_limit || value >= tensor->index_limit)
            return pf_fail(PF_DATA, "data.range", "%s: sample %" PRId64 ", element %" PRId64 " is %" PRId64 "; '%s' indexes a table "
                           "of %" PRId64 " rows", path, sample, i, value, tensor->name, tensor->index_limit);
    }
    return PF_OK;
}

/* `tensor` limits class indices, and nothing else. */
static pf_status check_labels(const char *path, const pf_tensor *tensor, int64_t sample, int64_t first, const int64_t *labels,
                              int64_t count) {
    int64_t classes = tensor->index_limit;
    for (int64_t i = 0; classes > 0 && i < count; i++)
        if ((labels[i] < 0 || labels[i] >= classes) && labels[i] != IGNORED_LABEL)
            return pf_fail(PF_DATA, "data.label", "%s: sample %" PRId64 ", label %" PRId64 " is %" PRId64 "; classes are 0 to %" PRId64
                           " (-100 is ignored)", path, sample, first + i, labels[i], classes - 1);
    return PF_OK;
}

/* Uniform in -1 .. 1; integers uniform below their table's rows, or 1 (a mask that keeps everything). */
static void synthesize(const pf_tensor *tensor, uint64_t key, void *out, int64_t limit) {
    for (int64_t i = 0; i < tensor->count; i++) {
        uint64_t random = pf_mix(key + (uint64_t)i);
        int64_t whole = limit > 0 ? (int64_t)(random >> 1) % limit : 1;
        switch (tensor->dtype) {
        case PF_F32: ((float *)out)[i] = (float)(random >> 40) * 0x1p-23f - 1.0f; break;
        case PF_I64: ((int64_t *)out)[i] = whole; break;
        case PF_I32: ((int32_t *)out)[i] = (int32_t)whole; break;
        case PF_BOOL: ((unsigned char *)out)[i] = 1; break;
        }
    }
}

static void fill_synthetic(const pf_data *data, pf_step *step, pf_program_kind program, int64_t position) {
    uint64_t key = pf_mix(data->seed ^ pf_mix((uint64_t)position));
    for (int i = 0; i < pf_input_count(); i++) {
        void *buffer = pf_input_buffer(step, program, i);
        if (buffer) synthesize(pf_input(i), pf_mix(key + (uint64_t)i), buffer, pf_input(i)->index_limit);
    }
    for (int i = 0; program == PF_TRAIN && i < pf_label_count(); i++) {
        void *label = pf_label_buffer(step, i);
        if (label) synthesize(pf_label(i), ~(key + (uint64_t)i), label, pf_label(i)->index_limit);
    }
}

static pf_status fill_input(const pf_npy *file, const pf_tensor *tensor, char *buffer, int64_t slot, int64_t sample) {
    int64_t count = tensor->count / tensor->shape[0];
    void *place = buffer + (size_t)(slot * count) * pf_item_bytes(tensor->dtype);
    PF_TRY(pf_npy_read(file, sample, 0, count, tensor->dtype, place));
    return check_indices(file->path, tensor, sample, place, count);
}

static pf_status fill_label(const pf_npy *file, const pf_tensor *label, char *buffer, int64_t slot, int64_t sample) {
    int64_t count = label->count / label->shape[0];
    void *place = buffer + (size_t)(slot * count) * pf_item_bytes(label->dtype);
    PF_TRY(pf_npy_read(file, sample, 0, count, label->dtype, place));
    return check_labels(file->path, label, sample, 0, place, count);
}

static pf_status fill_slot(const pf_data *data, pf_step *step, pf_program_kind program, int64_t slot, int64_t sample) {
    for (int i = 0; i < pf_input_count(); i++) {
        void *buffer = pf_input_buffer(step, program, i);
        if (buffer) PF_TRY(fill_input(&data->inputs[i], pf_input(i), buffer, slot, sample));
    }
    for (int i = 0; program == PF_TRAIN && i < pf_label_count(); i++) {
        void *buffer = pf_label_buffer(step, i);
        if (buffer) PF_TRY(fill_label(&data->labels[i], pf_label(i), buffer, slot, sample));
    }
    return PF_OK;
}

pf_status pf_data_fill(const pf_data *data, pf_step *step, pf_program_kind program, int64_t position, int64_t end) {
    if (data->synthetic) return fill_synthetic(data, step, program, position), PF_OK;
    for (int64_t slot = 0; slot < pf_batch(); slot++) {
        int64_t wanted = position + slot < end ? position + slot : end - 1;
        PF_TRY(fill_slot(data, step, program, slot, pf_data_sample(data, wanted)));
    }
    return PF_OK;
}

static pf_status score_term(const pf_data *data, const pf_step *step, int term, int64_t slot, int64_t sample, pf_score *score) {
    int index = pf_image_data.terms[term].label;
    const pf_npy *file = &data->labels[index];
    const pf_tensor *label = pf_label(index);
    int64_t count = label->count / label->shape[0], values[SCORE_CHUNK];
    for (int64_t first = 0; first < count; first += SCORE_CHUNK) {
        int64_t now = count - first < SCORE_CHUNK ? count - first : SCORE_CHUNK;
        PF_TRY(pf_npy_read(file, sample, first, now, label->dtype, values));
        PF_TRY(check_labels(file->path, label, sample, first, values, now));
        pf_score_labels(step, term, slot, first, now, values, score);
    }
    return PF_OK;
}

pf_status pf_data_score(const pf_data *data, const pf_step *step, int64_t slot, int64_t sample, pf_score *scores) {
    for (int term = 0; term < pf_term_count(); term++)
        if (pf_image_data.terms[term].label >= 0) PF_TRY(score_term(data, step, term, slot, sample, &scores[term]));
    return PF_OK;
}
