/* library.c: pockfarm.h over pockfarm_step.h: what an app gives is checked here, whatever the commands check elsewhere. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "arrays.h"
#include "failure.h"
#include "parameters.h"
#include "pockfarm.h"

/* Files of all steps go through one staging buffer. */
static pthread_mutex_t files = PTHREAD_MUTEX_INITIALIZER;

_Static_assert((int)POCKFARM_INTERNAL == (int)PF_INTERNAL && (int)POCKFARM_LIMITS == (int)PF_LIMITS &&
                   (int)POCKFARM_WEIGHTS == (int)PF_WEIGHTS && (int)POCKFARM_DATA == (int)PF_DATA && (int)POCKFARM_USER == (int)PF_USER,
               "the two headers mean the same by a status");
_Static_assert((int)POCKFARM_BOOL == (int)PF_BOOL && (int)POCKFARM_I32 == (int)PF_I32 && (int)POCKFARM_I64 == (int)PF_I64,
               "and by a type");
_Static_assert(POCKFARM_MAX_RANK == PF_MAX_RANK, "and by a shape");

static pf_step *inner(const pockfarm_step *step) { return (pf_step *)step; }

static pockfarm_status outer(pf_status status) { return (pockfarm_status)status; }

static pf_status check_step(const pockfarm_step *step) {
    return step ? PF_OK : pf_fail(PF_USER, "user.step", "there is no step: create one first");
}

static pf_status check_ready(const pockfarm_step *step) {
    PF_TRY(check_step(step));
    if (inner(step)->ready) return PF_OK;
    return pf_fail(PF_USER, "weights.missing", "the step has no weights: load the bundle's weights.safetensors first");
}

/* ---------------------------------------------------------------------------------------------- what the library is */

int32_t pockfarm_abi_version(void) { return POCKFARM_ABI_VERSION; }

void pockfarm_about(pockfarm_build *build) {
    const pf_image *image = &pf_image_data;
    *build = (pockfarm_build){
        .batch = image->batch, .micro_batches = image->micro_batches, .weights_bytes = image->sizes.weights_bytes,
        .optimizer_bytes = image->sizes.optimizer_bytes, .arena_bytes = image->sizes.arena_bytes,
        .memory_bytes = image->total_bytes, .learning_rate = image->learning_rate,
        .loss = image->term_count == 1 ? image->terms[0].name : "sum", .optimizer = image->optimizer, .threads = image->threads};
}

const char *pockfarm_identity(const char *key) {
    for (uint32_t i = 0; key && i < pf_image_data.identity_count; i++)
        if (strcmp(pf_image_data.identity[i].key, key) == 0) return pf_image_data.identity[i].value;
    return NULL;
}

/* A model whose only output is its loss has none. */
static int32_t output_count(void) { return pf_logits_tensor()->rank > 0; }

int32_t pockfarm_count(pockfarm_kind kind) {
    switch (kind) {
    case POCKFARM_INPUT: return pf_input_count();
    case POCKFARM_LABEL: return pf_label_count();
    case POCKFARM_OUTPUT: return output_count();
    case POCKFARM_PARAMETER: return pf_parameter_count();
    }
    return 0;
}

static pockfarm_tensor of_data(const pf_tensor *tensor) {
    pockfarm_tensor told = {.name = tensor->name, .dtype = (int32_t)tensor->dtype, .classes = tensor->index_limit,
                            .ignored = tensor->ignored, .is_shared = tensor->batch_axis < 0};
    for (int axis = 0; axis < tensor->rank; axis++)
        if (axis != tensor->batch_axis) told.shape[told.rank++] = tensor->shape[axis];
    told.bytes = pf_sample_count(tensor) * (int64_t)pf_item_bytes(tensor->dtype);
    return told;
}

static pockfarm_tensor of_parameter(const pf_state *state) {
    pockfarm_tensor told = {.name = state->file_name, .dtype = (int32_t)state->dtype, .rank = state->file_rank,
                            .is_trained = state->trained};
    memcpy(told.shape, state->file_shape, sizeof told.shape);
    told.bytes = state->count * (int64_t)pf_item_bytes(state->dtype);
    return told;
}

pockfarm_status pockfarm_describe(pockfarm_kind kind, int32_t index, pockfarm_tensor *tensor) {
    if (index < 0 || index >= pockfarm_count(kind))
        return outer(pf_fail(PF_USER, "user.index", "there is no tensor %" PRId32 " of kind %d; there are %" PRId32, index, (int)kind,
                             pockfarm_count(kind)));
    *tensor = kind == POCKFARM_PARAMETER ? of_parameter(pf_parameter(index))
                                         : of_data(kind == POCKFARM_INPUT   ? pf_input(index)
                                                   : kind == POCKFARM_LABEL ? pf_label(index)
                                                                            : pf_logits_tensor());
    return POCKFARM_OK;
}

/* ------------------------------------------------------------------------------------------------------------- steps */

pockfarm_status pockfarm_create(const pockfarm_settings *settings, pockfarm_step **step) {
    pf_settings own = {0};
    pf_step *made = NULL;
    if (settings) own = (pf_settings){settings->threads, settings->pin, settings->spare_core};
    pf_status status = pf_create(own, &made);
    *step = (pockfarm_step *)made;
    return outer(status);
}

void pockfarm_destroy(pockfarm_step *step) { pf_destroy(inner(step)); }

pockfarm_status pockfarm_load(pockfarm_step *step, const char *const *paths, int32_t count) {
    if (check_step(step) != PF_OK) return POCKFARM_USER;
    if (count < 1 || !paths) return outer(pf_fail(PF_USER, "user.weights", "give one checkpoint or more to load"));
    pthread_mutex_lock(&files);
    pf_status status = pf_load(inner(step), paths, count);
    pthread_mutex_unlock(&files);
    return outer(status);
}

pockfarm_status pockfarm_loaded(const pockfarm_step *step, int32_t file, pockfarm_match *match) {
    if (check_step(step) != PF_OK) return POCKFARM_USER;
    if (file < 0 || file >= PF_MAX_WEIGHTS)
        return outer(pf_fail(PF_USER, "user.index", "there is no loaded file %" PRId32, file));
    const pf_match *found = pf_loaded(inner(step), file);
    *match = (pockfarm_match){found->taken, found->parameters, found->ignored};
    return POCKFARM_OK;
}

pockfarm_status pockfarm_save(pockfarm_step *step, const char *path, pockfarm_content what) {
    if (check_ready(step) != PF_OK) return POCKFARM_USER;
    if (!path || !*path) return outer(pf_fail(PF_USER, "user.output", "a checkpoint needs a path"));
    pthread_mutex_lock(&files);
    pf_status status = pf_save(inner(step), path, what == POCKFARM_ALL ? PF_SAVE_ALL : PF_SAVE_PARAMETERS);
    pthread_mutex_unlock(&files);
    return outer(status);
}

static pf_status train(pf_step *step, const pockfarm_array *given, int32_t count, double *loss) {
    pf_arrays arrays;
    double sum = 0.0;
    float last = 0.0f;
    PF_TRY(pf_arrays_take(&arrays, given, count, pf_step_samples(), true));
    step->micro_batch = 0; /* also after a step that failed */
    for (int64_t i = 0; i < pf_image_data.micro_batches; i++) {
        pf_arrays_fill(&arrays, step, PF_TRAIN, i * pf_batch());
        PF_TRY(pf_run_train(step, &last));
        sum += (double)last;
    }
    *loss = pf_step_loss(sum, last);
    if (isfinite(*loss)) return PF_OK;
    return pf_fail(PF_USER, "train.diverged", "the loss of step %" PRId64 " is %s; lower the learning rate (now %g) or check the data",
                   step->steps_done, isnan(*loss) ? "NaN" : "infinite", step->learning_rate);
}

pockfarm_status pockfarm_train(pockfarm_step *step, const pockfarm_array *arrays, int32_t count, double *loss) {
    double own;
    if (check_ready(step) != PF_OK) return POCKFARM_USER;
    return outer(train(inner(step), arrays, count, loss ? loss : &own));
}

static int64_t batch_end(int64_t first, int64_t samples) { return samples - first < pf_batch() ? samples : first + pf_batch(); }

/* How many of the samples can be scored: a loss that the graph itself computes is of whole batches. */
static pf_status scored_samples(int64_t samples, int64_t *scored) {
    *scored = samples;
    for (int i = 0; i < pf_term_count(); i++)
        if (pf_image_data.terms[i].kind == PF_GRAPH) *scored = samples - samples % pf_batch();
    if (*scored > 0) return PF_OK;
    return pf_fail(PF_DATA, "data.count", "%" PRId64 " samples; the model's own loss is of a whole batch, of %" PRId64, samples,
                   pf_batch());
}

static void sum_up(const pf_score *scores, int64_t samples, pockfarm_score *score) {
    *score = (pockfarm_score){samples, pf_score_loss(scores, samples), (double)NAN};
    for (int i = pf_term_count() - 1; i >= 0; i--)
        if (pf_image_data.terms[i].kind == PF_CROSS_ENTROPY) score->accuracy = (double)scores[i].correct / (double)scores[i].terms;
}

static pf_status evaluate(pf_step *step, const pockfarm_array *given, int32_t count, int64_t samples, pockfarm_score *score) {
    pf_score scores[PF_MAX_TERMS] = {0};
    pf_arrays arrays;
    int64_t scored;
    PF_TRY(pf_arrays_take(&arrays, given, count, samples, true));
    PF_TRY(scored_samples(samples, &scored));
    for (int64_t first = 0; first < scored; first = batch_end(first, scored)) {
        pf_arrays_fill(&arrays, step, PF_FORWARD, first);
        PF_TRY(pf_forward(step));
        for (int64_t at = first; at < batch_end(first, scored); at++) pf_arrays_score(&arrays, step, at - first, at, scores);
        for (int i = 0; i < pf_term_count(); i++)
            if (pf_image_data.terms[i].kind == PF_GRAPH) pf_score_batch(step, i, &scores[i]);
    }
    for (int i = 0; i < pf_term_count(); i++)
        if (!isfinite(scores[i].loss_sum))
            return pf_fail(PF_WEIGHTS, "weights.diverged", "the outputs are NaN or infinite; these weights cannot be evaluated");
    sum_up(scores, scored, score);
    return PF_OK;
}

pockfarm_status pockfarm_evaluate(pockfarm_step *step, const pockfarm_array *arrays, int32_t count, int64_t samples,
                                  pockfarm_score *score) {
    if (check_ready(step) != PF_OK) return POCKFARM_USER;
    uint64_t seed = inner(step)->seed;
    inner(step)->seed = 0; /* as the command: what a model draws does not depend on the training's seed */
    pf_status status = evaluate(inner(step), arrays, count, samples, score);
    inner(step)->seed = seed;
    return outer(status);
}

/* The batch's first samples, one after the other, wherever the model has them. */
static void copy_output(const pf_step *step, int64_t samples, float *output) {
    const pf_tensor *tensor = pf_logits_tensor();
    int64_t count = pf_sample_count(tensor), run = pf_sample_run(tensor);
    for (int64_t sample = 0; sample < samples; sample++)
        for (int64_t first = 0; first < count; first += run, output += run)
            memcpy(output, pf_logits(step) + pf_sample_place(tensor, sample, first), (size_t)run * sizeof(float));
}

static pf_status infer(pf_step *step, const pockfarm_array *given, int32_t count, int64_t samples, float *output, size_t bytes) {
    pf_arrays arrays;
    if (!output_count())
        return pf_fail(PF_USER, "user.infer", "this step's only output is its loss; let the model return its logits too");
    PF_TRY(pf_arrays_take(&arrays, given, count, samples, false));
    size_t one = (size_t)pf_sample_count(pf_logits_tensor()) * sizeof(float);
    if (!output || (uint64_t)samples > SIZE_MAX / one || bytes != (size_t)samples * one)
        return pf_fail(PF_USER, "user.output", "the place for the output has %zu bytes; %" PRId64 " samples have %zu each", bytes,
                       samples, one);
    for (int64_t first = 0; first < samples; first = batch_end(first, samples)) {
        pf_arrays_fill(&arrays, step, PF_FORWARD, first);
        PF_TRY(pf_forward(step));
        copy_output(step, batch_end(first, samples) - first, output + (size_t)first * (one / sizeof(float)));
    }
    return PF_OK;
}

pockfarm_status pockfarm_infer(pockfarm_step *step, const pockfarm_array *arrays, int32_t count, int64_t samples, float *output,
                               size_t bytes) {
    if (check_ready(step) != PF_OK) return POCKFARM_USER;
    uint64_t seed = inner(step)->seed;
    inner(step)->seed = 0;
    pf_status status = infer(inner(step), arrays, count, samples, output, bytes);
    inner(step)->seed = seed;
    return outer(status);
}

pockfarm_status pockfarm_read(pockfarm_step *step, const char *name, void *data, size_t bytes) {
    if (check_ready(step) != PF_OK) return POCKFARM_USER;
    if (!data) return outer(pf_fail(PF_USER, "user.output", "there is no place to read the parameter to"));
    return outer(pf_parameter_read(inner(step), name, data, bytes));
}

pockfarm_status pockfarm_write(pockfarm_step *step, const char *name, const void *data, size_t bytes) {
    if (check_ready(step) != PF_OK) return POCKFARM_USER;
    if (!data) return outer(pf_fail(PF_USER, "user.array", "there is nothing to write to the parameter"));
    return outer(pf_parameter_write(inner(step), name, data, bytes));
}

pockfarm_status pockfarm_set_learning_rate(pockfarm_step *step, double learning_rate) {
    if (check_step(step) != PF_OK) return POCKFARM_USER;
    if (!isfinite(learning_rate) || learning_rate < 0)
        return outer(pf_fail(PF_USER, "user.learning-rate", "the learning rate is %g; give a number that is zero or more",
                             learning_rate));
    pf_set_learning_rate(inner(step), learning_rate);
    return POCKFARM_OK;
}

void pockfarm_set_seed(pockfarm_step *step, uint64_t seed) {
    if (step) pf_set_seed(inner(step), seed);
}

int64_t pockfarm_steps_done(const pockfarm_step *step) { return step ? pf_steps_done(inner(step)) : 0; }

/* ------------------------------------------------------------------------------------------------------------ errors */

const char *pockfarm_error_code(void) { return pf_last_error()->code ? pf_last_error()->code : ""; }
const char *pockfarm_error_message(void) { return pf_last_error()->message; }
