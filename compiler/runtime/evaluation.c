#include "evaluation.h"

#include <inttypes.h>
#include <math.h>

#include "events.h"
#include "failure.h"
#include "stop.h"

int64_t pf_batch_end(const pf_data *data, int64_t position) {
    int64_t end = position + pf_batch();
    return end < data->samples ? end : data->samples;
}

pf_status pf_forward_batch(const pf_data *data, pf_step *step, int64_t position) {
    PF_TRY(pf_data_fill(data, step, PF_FORWARD, position, data->samples));
    return pf_forward(step);
}

pf_status pf_evaluated_samples(const pf_data *data, int64_t *samples) {
    *samples = data->samples;
    for (int i = 0; i < pf_term_count(); i++)
        if (pf_image_data.terms[i].kind == PF_GRAPH) *samples = data->samples - data->samples % pf_batch();
    if (*samples > 0) return PF_OK;
    return pf_fail(PF_DATA, "data.count", "%s: has %" PRId64 " samples; the model's own loss is of a whole batch, of %" PRId64,
                   data->counted->path, data->samples, pf_batch());
}

static pf_status score_batch(const pf_data *data, const pf_step *step, int64_t position, pf_score *scores) {
    for (int64_t at = position; at < pf_batch_end(data, position); at++)
        PF_TRY(pf_data_score(data, step, at - position, pf_data_sample(data, at), scores));
    for (int i = 0; i < pf_term_count(); i++)
        if (pf_image_data.terms[i].kind == PF_GRAPH) pf_score_batch(step, i, &scores[i]);
    return PF_OK;
}

static void sum_up(const pf_score *scores, pf_evaluation *result) {
    result->loss = pf_score_loss(scores, result->samples);
    result->accuracy = NAN;
    result->finite = true;
    for (int i = pf_term_count() - 1; i >= 0; i--) {
        if (pf_image_data.terms[i].kind == PF_CROSS_ENTROPY) result->accuracy = (double)scores[i].correct / (double)scores[i].terms;
        if (!isfinite(scores[i].loss_sum)) result->finite = false;
    }
}

pf_status pf_evaluate(pf_step *step, const pf_data *data, pf_evaluation *result) {
    pf_score scores[PF_MAX_TERMS] = {0};
    int64_t position = 0, end = 0;
    result->batches = 0;
    PF_TRY(pf_evaluated_samples(data, &end));
    for (; position < end && !pf_stop_requested; position = pf_batch_end(data, position), result->batches++) {
        PF_TRY(pf_forward_batch(data, step, position));
        PF_TRY(score_batch(data, step, position, scores));
    }
    result->samples = position;
    sum_up(scores, result);
    return PF_OK;
}

void pf_put_evaluation(const pf_evaluation *evaluation) {
    pf_integer("samples", evaluation->samples);
    pf_exact("loss", evaluation->loss);
    pf_number("accuracy", evaluation->accuracy);
}
