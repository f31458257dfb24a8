#include "arrays.h"

#include <inttypes.h>
#include <string.h>

#include "failure.h"
#include "finite.h"

enum { CHUNK = 512 };

static const char *kind_name(bool is_label) { return is_label ? "labels" : "input"; }

static size_t sample_bytes(const pf_tensor *tensor) { return (size_t)pf_sample_count(tensor) * pf_item_bytes(tensor->dtype); }

static int64_t integer_at(const pf_tensor *tensor, const unsigned char *data, int64_t element) {
    int64_t wide;
    int32_t narrow;
    if (tensor->dtype == PF_I64) return memcpy(&wide, data + 8 * element, 8), wide;
    return memcpy(&narrow, data + 4 * element, 4), narrow;
}

/* Positions beyond a table, or classes beyond the logits, would be read and written outside of them. */
static pf_status check_integers(const pf_tensor *tensor, bool is_label, const unsigned char *data, int64_t count) {
    int64_t limit = tensor->index_limit, least = is_label ? 0 : -limit;
    for (int64_t i = 0; limit > 0 && i < count; i++) {
        int64_t value = integer_at(tensor, data, i);
        if ((value >= least && value < limit) || (is_label && value == tensor->ignored)) continue;
        return pf_fail(PF_DATA, is_label ? "data.label" : "data.range", "%s '%s': element %" PRId64 " is %" PRId64
                       "; values are %" PRId64 " to %" PRId64, kind_name(is_label), tensor->name, i, value, least, limit - 1);
    }
    return PF_OK;
}

/* What is the same for every sample may hide things by an infinity. */
static pf_status check_floats(const pf_tensor *tensor, bool is_label, const unsigned char *data, int64_t count) {
    bool good = tensor->batch_axis < 0 && !is_label ? !pf_any_nan(data, count) : pf_all_finite(data, count);
    if (good) return PF_OK;
    return pf_fail(PF_DATA, "data.not_finite", "%s '%s' holds NaN or Inf; clean the data", kind_name(is_label), tensor->name);
}

static pf_status check_values(const pf_tensor *tensor, bool is_label, const unsigned char *data, int64_t count) {
    switch (tensor->dtype) {
    case PF_F32: return check_floats(tensor, is_label, data, count);
    case PF_I64:
    case PF_I32: return check_integers(tensor, is_label, data, count);
    case PF_BOOL: break;
    case PF_F16:
    case PF_BF16:
    case PF_I8: return pf_fail(PF_INTERNAL, "internal.dtype", "%s '%s' is of no type that arrays have", kind_name(is_label), tensor->name);
    }
    for (int64_t i = 0; i < count; i++)
        if (data[i] > 1)
            return pf_fail(PF_DATA, "data.range", "%s '%s': element %" PRId64 " is %d; a bool is 0 or 1", kind_name(is_label),
                           tensor->name, i, data[i]);
    return PF_OK;
}

static pf_status check(const pf_tensor *tensor, bool is_label, const pockfarm_array *given, int64_t samples) {
    char shape[160];
    int64_t own[PF_MAX_RANK], count = tensor->batch_axis < 0 ? 1 : samples;
    int rank = 0;
    for (int axis = 0; axis < tensor->rank; axis++)
        if (axis != tensor->batch_axis) own[rank++] = tensor->shape[axis];
    size_t one = sample_bytes(tensor);
    if (!given->data || (one && (uint64_t)count > SIZE_MAX / one) || given->bytes != (size_t)count * one)
        return pf_fail(PF_DATA, "data.shape", "%s '%s' has %zu bytes; %" PRId64 " samples, each %s shaped %s, have %zu",
                       kind_name(is_label), tensor->name, given->data ? given->bytes : 0, count, pf_dtype_name(tensor->dtype),
                       pf_shape_text(shape, sizeof shape, own, rank), (size_t)count * one);
    return check_values(tensor, is_label, given->data, count * pf_sample_count(tensor));
}

/* Which of `count` tensors has the name; -1: none. */
static int named(const char *name, int count, const pf_tensor *(*tensor)(int)) {
    for (int i = 0; name && i < count; i++)
        if (strcmp(tensor(i)->name, name) == 0) return i;
    return -1;
}

static pf_status take(pf_arrays *arrays, const pockfarm_array *given, bool with_labels) {
    bool is_label = given->kind == POCKFARM_LABEL;
    if (!is_label && given->kind != POCKFARM_INPUT)
        return pf_fail(PF_USER, "user.array", "array '%.80s' is of kind %d; it is an input or labels", given->name ? given->name : "",
                       (int)given->kind);
    if (is_label && !with_labels) return pf_fail(PF_USER, "user.labels", "outputs are computed without labels");
    const pf_tensor *(*tensor)(int) = is_label ? pf_label : pf_input;
    int count = is_label ? pf_label_count() : pf_input_count(), found = named(given->name, count, tensor);
    if (found < 0)
        return pf_fail(PF_USER, is_label ? "user.labels" : "user.input", "there is no %s '%.80s'; there are %d, the first is '%s'",
                       kind_name(is_label), given->name ? given->name : "", count, count ? tensor(0)->name : "");
    const unsigned char **place = is_label ? &arrays->labels[found] : &arrays->inputs[found];
    if (*place) return pf_fail(PF_USER, "user.array", "%s '%s' is given twice", kind_name(is_label), given->name);
    PF_TRY(check(tensor(found), is_label, given, arrays->samples));
    *place = given->data;
    return PF_OK;
}

static pf_status check_all(const pf_arrays *arrays, bool with_labels) {
    for (int i = 0; i < pf_input_count(); i++)
        if (!arrays->inputs[i]) return pf_fail(PF_USER, "user.input", "input '%s' is missing", pf_input(i)->name);
    for (int i = 0; with_labels && i < pf_label_count(); i++)
        if (!arrays->labels[i]) return pf_fail(PF_USER, "user.labels", "labels '%s' are missing", pf_label(i)->name);
    return PF_OK;
}

pf_status pf_arrays_take(pf_arrays *arrays, const pockfarm_array *given, int32_t count, int64_t samples, bool with_labels) {
    *arrays = (pf_arrays){.samples = samples};
    if (samples < 1) return pf_fail(PF_DATA, "data.empty", "%" PRId64 " samples; there must be one or more", samples);
    for (int32_t i = 0; i < count; i++) PF_TRY(take(arrays, &given[i], with_labels));
    return check_all(arrays, with_labels);
}

/* A sample into its slot of a batch, run by run where its elements do not lie together. */
static void put(const pf_tensor *tensor, const unsigned char *data, int64_t sample, unsigned char *buffer, int64_t slot) {
    int64_t count = pf_sample_count(tensor), run = pf_sample_run(tensor);
    size_t item_bytes = pf_item_bytes(tensor->dtype);
    const unsigned char *from = data + (size_t)(sample * count) * item_bytes;
    for (int64_t first = 0; first < count; first += run)
        memcpy(buffer + (size_t)pf_sample_place(tensor, slot, first) * item_bytes, from + (size_t)first * item_bytes,
               (size_t)run * item_bytes);
}

static void fill(const pf_tensor *tensor, const unsigned char *data, int64_t samples, int64_t first, unsigned char *buffer) {
    if (!buffer) return;
    if (tensor->batch_axis < 0) {
        memcpy(buffer, data, sample_bytes(tensor));
        return;
    }
    for (int64_t slot = 0; slot < pf_batch(); slot++) {
        int64_t sample = first + slot < samples ? first + slot : samples - 1;
        put(tensor, data, sample, buffer, slot);
    }
}

void pf_arrays_fill(const pf_arrays *arrays, pf_step *step, pf_program_kind program, int64_t first) {
    for (int i = 0; i < pf_input_count(); i++)
        fill(pf_input(i), arrays->inputs[i], arrays->samples, first, pf_input_buffer(step, program, i));
    for (int i = 0; program == PF_TRAIN && i < pf_label_count(); i++)
        fill(pf_label(i), arrays->labels[i], arrays->samples, first, pf_label_buffer(step, i));
}

/* Labels as the scores read them: classes are i64, also where the model takes them as a narrower input. */
static void score_term(const pf_term *term, int index, const pf_arrays *arrays, const pf_step *step, int64_t slot, int64_t sample,
                       pf_score *score) {
    bool is_own = term->own >= 0;
    const pf_tensor *tensor = is_own ? pf_input(term->own) : pf_label(term->label);
    int64_t count = pf_sample_count(tensor), values[CHUNK];
    size_t item_bytes = pf_item_bytes(tensor->dtype);
    const unsigned char *data = (is_own ? arrays->inputs[term->own] : arrays->labels[term->label]) +
                                (size_t)((tensor->batch_axis < 0 ? 0 : sample) * count) * item_bytes;
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t now = count - first < CHUNK ? count - first : CHUNK;
        if (tensor->dtype == PF_I32)
            for (int64_t i = 0; i < now; i++) values[i] = integer_at(tensor, data, first + i);
        else memcpy(values, data + (size_t)first * item_bytes, (size_t)now * item_bytes);
        pf_score_labels(step, index, slot, first, now, values, score);
    }
}

void pf_arrays_score(const pf_arrays *arrays, const pf_step *step, int64_t slot, int64_t sample, pf_score *scores) {
    for (int index = 0; index < pf_term_count(); index++) {
        const pf_term *term = &pf_image_data.terms[index];
        if (term->kind != PF_GRAPH) score_term(term, index, arrays, step, slot, sample, &scores[index]);
    }
}
