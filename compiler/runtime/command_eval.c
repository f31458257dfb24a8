/* command_eval.c: forward passes over a whole data set, in file order: scores (eval) or logits (infer). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "evaluation.h"
#include "events.h"
#include "failure.h"
#include "files.h"
#include "run_events.h"
#include "stop.h"

pf_status pf_command_eval(pf_step *step, const pf_data *data) {
    pf_evaluation evaluation;
    int64_t samples = 0;
    PF_TRY(pf_evaluated_samples(data, &samples));
    pf_event_start(step);
    PF_TRY(pf_evaluate(step, data, &evaluation));
    if (!evaluation.finite)
        return pf_fail(PF_WEIGHTS, "weights.diverged", "the logits are NaN or infinite; these weights cannot be evaluated");
    if (!pf_stop_requested) {
        pf_event("eval");
        pf_put_evaluation(&evaluation);
        pf_event_end();
    }
    pf_event_finish(evaluation.batches);
    return PF_OK;
}

/* A version 1.0 header, padded so that data starts at a multiple of 64. */
static pf_status write_npy_header(pf_new_file *file, int64_t samples) {
    const pf_tensor *logits = pf_logits_tensor();
    char header[512] = "\x93NUMPY\x01\x00";
    int used = 10 + snprintf(header + 10, sizeof header - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRId64 ",",
                             samples);
    for (int axis = 0; axis < logits->rank; axis++)
        if (axis != logits->batch_axis)
            used += snprintf(header + used, sizeof header - (size_t)used, " %" PRId64 ",", logits->shape[axis]);
    used += snprintf(header + used, sizeof header - (size_t)used, "), }");
    while (used % 64 != 63) header[used++] = ' ';
    header[used++] = '\n';
    header[8] = (char)((used - 10) & 255);
    header[9] = (char)((used - 10) >> 8);
    return pf_new_file_write(file, header, (size_t)used);
}

/* The batch's first samples, one after the other, wherever the model has them. */
static pf_status write_samples(pf_new_file *file, const float *logits, int64_t samples) {
    const pf_tensor *tensor = pf_logits_tensor();
    int64_t count = pf_sample_count(tensor), run = pf_sample_run(tensor);
    if (run == count) return pf_new_file_write(file, logits, (size_t)(samples * count) * sizeof(float));
    for (int64_t sample = 0; sample < samples; sample++)
        for (int64_t first = 0; first < count; first += run)
            PF_TRY(pf_new_file_write(file, logits + pf_sample_place(tensor, sample, first), (size_t)run * sizeof(float)));
    return PF_OK;
}

static pf_status write_logits(pf_new_file *file, pf_step *step, const pf_data *data, int64_t *batches) {
    PF_TRY(write_npy_header(file, data->samples));
    for (int64_t position = 0; position < data->samples; position = pf_batch_end(data, position), ++*batches) {
        if (pf_stop_requested) return PF_OK;
        PF_TRY(pf_forward_batch(data, step, position));
        PF_TRY(write_samples(file, pf_logits(step), pf_batch_end(data, position) - position));
    }
    return pf_new_file_commit(file);
}

pf_status pf_command_infer(const pf_options *options, pf_step *step, const pf_data *data) {
    static pf_new_file file;
    int64_t batches = 0;
    if (pf_logits_tensor()->rank == 0)
        return pf_fail(PF_USER, "user.infer", "this step's only output is its loss; let the model return its logits too");
    pf_event_start(step);
    PF_TRY(pf_new_file_open(&file, options->out));
    pf_status status = write_logits(&file, step, data, &batches);
    if (file.descriptor >= 0) pf_new_file_discard(&file); /* failed or stopped: no half file */
    if (status != PF_OK) return status;
    pf_event_finish(batches);
    return PF_OK;
}
