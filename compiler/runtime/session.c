#include "session.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "denormals.h"
#include "failure.h"
#include "threads.h"

const pf_program *pf_next_program(const pf_step *step) {
    return step->micro_batch + 1 < pf_image_data.micro_batches ? &pf_image_data.accumulate : &pf_image_data.train;
}

static const pf_program *program_of(const pf_step *step, pf_program_kind kind) {
    return kind == PF_TRAIN ? pf_next_program(step) : &pf_image_data.forward;
}

int pf_input_count(void) { return pf_image_data.input_count; }
const pf_tensor *pf_input(int index) { return &pf_image_data.inputs[index]; }
int pf_label_count(void) { return pf_image_data.label_count; }
const pf_tensor *pf_label(int index) { return &pf_image_data.labels[index]; }
int64_t pf_batch(void) { return pf_image_data.batch; }
int64_t pf_step_samples(void) { return pf_image_data.batch * pf_image_data.micro_batches; }
int pf_term_count(void) { return pf_image_data.term_count; }
const pf_tensor *pf_logits_tensor(void) { return &pf_image_data.logits; }
pf_sizes pf_planned_sizes(void) { return pf_image_data.sizes; }
int64_t pf_steps_done(const pf_step *step) { return step->steps_done; }
void pf_set_learning_rate(pf_step *step, double learning_rate) { step->learning_rate = learning_rate; }
void pf_set_seed(pf_step *step, uint64_t seed) { step->seed = seed; }

/* Every operand lies inside the mapping: what the compiler planned is what this process may touch. */
static pf_status check_program(const pf_program *program) {
    for (uint32_t i = 0; i < program->call_count; i++) {
        const pf_call *call = &program->calls[i];
        for (uint32_t k = 0; k < call->operand_count; k++) {
            const pf_operand *operand = &program->operands[call->first_operand + k];
            uint64_t bytes = (uint64_t)operand->count * pf_item_bytes(operand->dtype);
            if (operand->offset % PF_ALIGNMENT || operand->offset > pf_image_data.total_bytes ||
                bytes > pf_image_data.total_bytes - operand->offset)
                return pf_fail(PF_INTERNAL, "internal.plan", "operand %" PRIu32 " of kernel %" PRIu32 " (%s) lies outside the plan",
                               k, i, call->name);
        }
    }
    return PF_OK;
}

static pf_status set_up(pf_step *step, pf_settings settings) {
    PF_TRY(pf_cores_choose(&step->placement, "/sys/devices/system/cpu", settings.pin ? settings.pin : "off", settings.threads,
                           pf_image_data.threads, settings.spare_core != 0));
    step->memory = calloc(1, sizeof *step->memory);
    if (!step->memory) return pf_fail(PF_LIMITS, "limits.memory", "no memory for a step");
    PF_TRY(pf_device_open(&step->device));
    PF_TRY(pf_device_allocate(step->device, pf_image_data.total_bytes));
    PF_TRY(pf_device_load(step->device));
    step->memory->device = step->device;
    step->memory->memory = pf_device_memory(step->device);
    return pf_threads_start(&step->pool, &step->placement);
}

pf_status pf_create(pf_settings settings, pf_step **step) {
    const pf_image *image = &pf_image_data;
    if (settings.threads < 0 || settings.threads > image->threads)
        return pf_fail(PF_USER, "user.threads", "this build runs with 1 to %d threads, not %d", image->threads, settings.threads);
    PF_TRY(check_program(&image->train));
    PF_TRY(check_program(&image->forward));
    PF_TRY(check_program(&image->accumulate));
    pf_step *made = calloc(1, sizeof *made);
    if (!made) return pf_fail(PF_LIMITS, "limits.memory", "no memory for a step");
    made->learning_rate = image->learning_rate;
    pf_status status = set_up(made, settings);
    if (status != PF_OK) return pf_destroy(made), status;
    *step = made;
    return PF_OK;
}

void pf_destroy(pf_step *step) {
    if (!step) return;
    pf_threads_stop(step->pool);
    pf_device_close(step->device);
    free(step->memory);
    free(step);
}

static pf_status check_found(const bool *found) {
    for (uint32_t i = 0; i < pf_image_data.state_count; i++) {
        const pf_state *state = &pf_image_data.states[i];
        if (state->role == PF_OPTIMIZER || found[i]) continue;
        return pf_fail(PF_WEIGHTS, "weights.missing", "no checkpoint has '%s'%s", state->file_name,
                       state->role == PF_CONSTANT ? "; give the bundle's weights.safetensors first, then yours" : "");
    }
    return PF_OK;
}

/* State of zeros is new, however many steps its weights have seen; 0 where no number of the optimizer's counts steps. */
static int64_t optimizer_start(const pf_progress *progress) {
    bool counts = false;
    for (uint32_t i = 0; i < pf_image_data.train.hyper_count; i++) counts |= pf_image_data.train.hyper[i].kind != PF_RATE;
    return !counts ? 0 : progress->optimizer_start >= 0 ? progress->optimizer_start : progress->steps;
}

/* Weights and optimizer state, until they are let go; NULL where the device fails. */
static unsigned char *state_of(const pf_step *step, pf_access access) {
    return pf_reach(step->memory, 0, pf_image_data.arena_offset, access);
}

pf_status pf_load(pf_step *step, const char *const *paths, int count) {
    bool *found = calloc(pf_image_data.state_count + 1, sizeof *found);
    pf_status status = PF_OK;
    pf_threads_use(step->pool);
    if (!found) return pf_fail(PF_LIMITS, "limits.memory", "no memory to load checkpoints");
    if (count > PF_MAX_WEIGHTS) status = pf_fail(PF_USER, "user.weights", "%d checkpoints; at most %d", count, PF_MAX_WEIGHTS);
    /* New memory is zero: writing zeros there would only take its page faults on one thread, before any work. */
    if (step->loaded && status == PF_OK)
        status = pf_clear(step->memory, pf_image_data.optimizer_offset, pf_image_data.sizes.optimizer_bytes);
    step->loaded = true;
    step->micro_batch = 0;
    pf_progress progress = {step->steps_done, -1};
    unsigned char *memory = state_of(step, PF_READ_WRITE);
    for (int i = 0; i < count && memory && status == PF_OK; i++)
        status = pf_checkpoint_read(memory, paths[i], found, &progress, &step->matches[i], &step->unfinished);
    pf_status handed_over = pf_let_go(step->memory);
    if (status == PF_OK) status = handed_over;
    step->steps_done = progress.steps;
    step->optimizer_start = optimizer_start(&progress);
    if (status == PF_OK) status = check_found(found);
    step->ready = status == PF_OK;
    free(found);
    return status;
}

const pf_match *pf_loaded(const pf_step *step, int file) { return &step->matches[file]; }

pf_status pf_save(pf_step *step, const char *path, pf_save_set what) {
    const unsigned char *memory = state_of(step, PF_READ);
    pf_progress progress = {step->steps_done, step->optimizer_start};
    pf_status status = memory ? pf_checkpoint_write(memory, path, what, progress) : PF_OK;
    pf_status let_go = pf_let_go(step->memory);
    return status == PF_OK ? let_go : status;
}

pf_status pf_save_unfinished(pf_step *step, const char *path, const pf_unfinished *unfinished, const char *best) {
    const unsigned char *memory = state_of(step, PF_READ);
    pf_progress progress = {step->steps_done, step->optimizer_start};
    pf_status status = memory ? pf_checkpoint_write_unfinished(memory, path, progress, unfinished, best) : PF_OK;
    pf_status let_go = pf_let_go(step->memory);
    return status == PF_OK ? let_go : status;
}

static uint64_t bytes_of(const pf_tensor *tensor) { return (uint64_t)tensor->count * pf_item_bytes(tensor->dtype); }

void *pf_input_buffer(pf_step *step, pf_program_kind program, int input) {
    return pf_reach(step->memory, program_of(step, program)->inputs[input], bytes_of(pf_input(input)), PF_WRITE);
}

void *pf_label_buffer(pf_step *step, int label) {
    return pf_reach(step->memory, pf_next_program(step)->labels[label], bytes_of(pf_label(label)), PF_WRITE);
}

static pf_status bind(void *buffer, const pf_tensor *tensor, const void *data, size_t bytes) {
    size_t needed = (size_t)tensor->count * pf_item_bytes(tensor->dtype);
    if (bytes != needed)
        return pf_fail(PF_DATA, "data.shape", "'%s' needs %zu bytes, not %zu", tensor->name, needed, bytes);
    if (buffer) memcpy(buffer, data, bytes);
    return PF_OK;
}

pf_status pf_bind_input(pf_step *step, pf_program_kind program, int input, const void *data, size_t bytes) {
    if (input < 0 || input >= pf_image_data.input_count)
        return pf_fail(PF_USER, "user.input", "there is no input %d", input);
    return bind(pf_input_buffer(step, program, input), pf_input(input), data, bytes);
}

pf_status pf_bind_label(pf_step *step, int label, const void *data, size_t bytes) {
    if (label < 0 || label >= pf_image_data.label_count)
        return pf_fail(PF_USER, "user.labels", "there is no array of labels %d", label);
    return bind(pf_label_buffer(step, label), pf_label(label), data, bytes);
}

static double power(double base, int64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

static pf_status put_scalar(pf_step *step, uint64_t offset, double value) {
    float narrow = (float)value;
    return pf_put(step->memory, offset, &narrow, sizeof narrow);
}

/* Micro-batches count from 1, over checkpoints too; 0 stands for a pass that trains nothing. */
static pf_status put_random(pf_step *step, const pf_program *program, int64_t number) {
    int64_t seed = (int64_t)step->seed;
    PF_TRY(pf_put(step->memory, program->random_seed, &seed, sizeof seed));
    return pf_put(step->memory, program->random_step, &number, sizeof number);
}

static double hyper(const pf_step *step, const pf_hyper *hyper) {
    int64_t t = step->steps_done - step->optimizer_start + 1;
    switch (hyper->kind) {
    case PF_RATE: return step->learning_rate;
    case PF_REST: return 1.0 - power(hyper->base, t);
    case PF_REST_ROOT: return sqrt(1.0 - power(hyper->base, t));
    case PF_STEP_POWER: return pow((double)t, hyper->base);
    }
    return 0.0;
}

pf_status pf_prepare(pf_step *step) {
    const pf_image *image = &pf_image_data;
    const pf_program *program = pf_next_program(step);
    PF_TRY(pf_let_go(step->memory));
    if (step->micro_batch == 0) PF_TRY(pf_clear(step->memory, image->accumulator_offset, image->accumulator_bytes));
    PF_TRY(put_random(step, program, step->steps_done * image->micro_batches + step->micro_batch + 1));
    for (uint32_t i = 0; i < program->hyper_count; i++)
        PF_TRY(put_scalar(step, program->hyper[i].offset, hyper(step, &program->hyper[i])));
    return PF_OK;
}

void pf_advance(pf_step *step) {
    step->micro_batch++;
    if (step->micro_batch < pf_image_data.micro_batches) return;
    step->micro_batch = 0;
    step->steps_done++;
}

pf_status pf_run_call(pf_step *step, const pf_program *program, uint32_t index) {
    pf_threads_use(step->pool);
    return pf_device_enqueue(step->device, program, index);
}

static pf_status run(pf_step *step, const pf_program *program) {
    uint64_t mode = pf_denormals_flush();
    pf_threads_use(step->pool);
    pf_status status = pf_device_enqueue_all(step->device, program);
    pf_denormals_restore(mode);
    return status == PF_OK ? pf_device_finish(step->device) : status;
}

pf_status pf_run_train(pf_step *step, float *loss) {
    const pf_program *program = pf_next_program(step);
    PF_TRY(pf_prepare(step));
    PF_TRY(run(step, program));
    PF_TRY(pf_device_download(step->device, program->loss, loss, sizeof *loss));
    pf_advance(step);
    return PF_OK;
}

double pf_step_loss(double sum, float last) {
    return pf_image_data.mean_of_labels ? (double)last : sum / (double)pf_image_data.micro_batches;
}

pf_status pf_train_step(pf_step *step, float *loss) {
    PF_TRY(pf_run_train(step, loss));
    if (isfinite(*loss)) return PF_OK;
    return pf_fail(PF_USER, "train.diverged", "the loss of step %" PRId64 " is %s; lower the learning rate (now %g) or check the data",
                   step->steps_done + (step->micro_batch > 0), isnan(*loss) ? "NaN" : "infinite", step->learning_rate);
}

pf_status pf_forward(pf_step *step) {
    PF_TRY(pf_let_go(step->memory));
    PF_TRY(put_random(step, &pf_image_data.forward, 0));
    return run(step, &pf_image_data.forward);
}

const float *pf_logits(const pf_step *step) {
    return pf_reach(step->memory, pf_image_data.forward.logits, bytes_of(pf_logits_tensor()), PF_READ);
}
