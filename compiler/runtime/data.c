#include "data.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "failure.h"
#include "shuffle.h"

enum { CHUNK = 512 };

/* A file's shape with its samples first, or what an input that is the same for every sample may have. */
static bool fits(const pf_npy *file, const pf_tensor *tensor) {
    int axis = tensor->batch_axis, first = file->rank - tensor->rank;
    bool same = axis < 0 ? first == 0 || (first == 1 && file->shape[0] == 1) : first == 0;
    for (int i = axis < 0 ? first : 1; same && i < file->rank; i++)
        same = file->shape[i] == tensor->shape[axis < 0 ? i - first : i <= axis ? i - 1 : i];
    return same;
}

static pf_status check_file(const pf_npy *file, const pf_tensor *tensor) {
    char have[160], want[160];
    int64_t sample[PF_MAX_RANK];
    int rank = 0;
    for (int axis = 0; axis < tensor->rank; axis++)
        if (axis != tensor->batch_axis) sample[rank++] = tensor->shape[axis];
    if (!fits(file, tensor))
        return pf_fail(PF_DATA, "data.shape", "%s: shape is %s; '%s' needs %s shaped %s", file->path,
                       pf_shape_text(have, sizeof have, file->shape, file->rank), tensor->name,
                       tensor->batch_axis < 0 ? "[1, ...], the same for every sample," : "[samples, ...] with samples",
                       pf_shape_text(want, sizeof want, sample, rank));
    if (!pf_npy_converts(file, tensor->dtype))
        return pf_fail(PF_DATA, "data.dtype", "%s: elements are '%c%d'; '%s' needs %s", file->path, file->kind,
                       file->item_bytes, tensor->name, pf_dtype_name(tensor->dtype));
    return PF_OK;
}

static pf_status open_checked(pf_data *data, pf_npy *file, const char *path, const pf_tensor *tensor) {
    PF_TRY(pf_npy_open(file, path));
    PF_TRY(check_file(file, tensor));
    file->infinite = tensor->batch_axis < 0;
    if (file->infinite) return PF_OK;
    if (!data->counted) data->counted = file;
    data->samples = data->counted->shape[0];
    if (data->samples == file->shape[0]) return PF_OK;
    return pf_fail(PF_DATA, "data.count", "%s: has %" PRId64 " samples, %s has %" PRId64 "; every file needs the same number", path,
                   file->shape[0], data->counted->path, data->samples);
}

pf_status pf_data_open(pf_data *data, const char *const *input_paths, const char *const *label_paths) {
    data->samples = 0;
    data->counted = NULL;
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

static pf_status check_indices(const char *path, const pf_tensor *tensor, int64_t sample, int64_t first, const void *values,
                               int64_t count) {
    for (int64_t i = 0; tensor->index_limit > 0 && i < count; i++) {
        int64_t value = tensor->dtype == PF_I64 ? ((const int64_t *)values)[i] : ((const int32_t *)values)[i];
        if (value < -tensor->index_limit || value >= tensor->index_limit)
            return pf_fail(PF_DATA, "data.range", "%s: sample %" PRId64 ", element %" PRId64 " is %" PRId64 "; '%s' indexes a table "
                           "of %" PRId64 " rows", path, sample, first + i, value, tensor->name, tensor->index_limit);
    }
    return PF_OK;
}

/* `tensor` limits class indices, and nothing else. */
static pf_status check_labels(const char *path, const pf_tensor *tensor, int64_t sample, int64_t first, const int64_t *labels,
                              int64_t count) {
    int64_t classes = tensor->index_limit;
    for (int64_t i = 0; classes > 0 && i < count; i++)
        if ((labels[i] < 0 || labels[i] >= classes) && labels[i] != tensor->ignored)
            return pf_fail(PF_DATA, "data.label", "%s: sample %" PRId64 ", label %" PRId64 " is %" PRId64 "; classes are 0 to %" PRId64
                           " (%" PRId64 " is ignored)", path, sample, first + i, labels[i], classes - 1, tensor->ignored);
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
        case PF_F16:
        case PF_BF16:
        case PF_I8: break;
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

typedef struct {
    const pf_npy *file;
    const pf_tensor *tensor;
    bool is_label;
} source;

/* Read some of a sample's elements and check them. */
static pf_status read_checked(source from, int64_t sample, int64_t first, int64_t count, void *out) {
    PF_TRY(pf_npy_read(from.file, sample, first, count, from.tensor->dtype, out));
    if (from.is_label) return check_labels(from.file->path, from.tensor, sample, first, out, count);
    return check_indices(from.file->path, from.tensor, sample, first, out, count);
}

/* Put a sample into its slot of a batch: straight to its place where it lies together, run by run where it does not. */
static pf_status fill(source from, char *buffer, int64_t slot, int64_t sample) {
    const pf_tensor *tensor = from.tensor;
    int64_t count = pf_sample_count(tensor), run = pf_sample_run(tensor), values[CHUNK];
    size_t item_bytes = pf_item_bytes(tensor->dtype);
    if (run == count) return read_checked(from, sample, 0, count, buffer + (size_t)(slot * count) * item_bytes);
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t now = count - first < CHUNK ? count - first : CHUNK;
        PF_TRY(read_checked(from, sample, first, now, values));
        for (int64_t i = 0, length; i < now; i += length) {
            int64_t left = run - (first + i) % run;
            length = left < now - i ? left : now - i;
            memcpy(buffer + (size_t)pf_sample_place(tensor, slot, first + i) * item_bytes, (char *)values + (size_t)i * item_bytes,
                   (size_t)length * item_bytes);
        }
    }
    return PF_OK;
}

/* What is the same for every sample is read with the first of a batch. */
static pf_status fill_slot(const pf_data *data, pf_step *step, pf_program_kind program, int64_t slot, int64_t sample) {
    for (int i = 0; i < pf_input_count(); i++) {
        void *buffer = pf_input_buffer(step, program, i);
        source from = {&data->inputs[i], pf_input(i), false};
        bool is_same = from.tensor->batch_axis < 0;
        if (buffer && (!is_same || slot == 0)) PF_TRY(fill(from, buffer, is_same ? 0 : slot, is_same ? 0 : sample));
    }
    for (int i = 0; program == PF_TRAIN && i < pf_label_count(); i++) {
        void *buffer = pf_label_buffer(step, i);
        if (buffer) PF_TRY(fill((source){&data->labels[i], pf_label(i), true}, buffer, slot, sample));
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

static pf_status score_term(const pf_data *data, const pf_step *step, int index, int64_t slot, int64_t sample, pf_score *score) {
    const pf_term *term = &pf_image_data.terms[index];
    bool is_own = term->own >= 0;
    const pf_npy *file = is_own ? &data->inputs[term->own] : &data->labels[term->label];
    pf_tensor labels = is_own ? *pf_input(term->own) : *pf_label(term->label);
    int64_t count = pf_sample_count(&labels), values[CHUNK];
    if (is_own) labels.dtype = PF_I64;
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t now = count - first < CHUNK ? count - first : CHUNK;
        PF_TRY(read_checked((source){file, &labels, !is_own}, sample, first, now, values));
        pf_score_labels(step, index, slot, first, now, values, score);
    }
    return PF_OK;
}

pf_status pf_data_score(const pf_data *data, const pf_step *step, int64_t slot, int64_t sample, pf_score *scores) {
    for (int term = 0; term < pf_term_count(); term++)
        if (pf_image_data.terms[term].kind != PF_GRAPH) PF_TRY(score_term(data, step, term, slot, sample, &scores[term]));
    return PF_OK;
}
