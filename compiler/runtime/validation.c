#include "validation.h"

#include <inttypes.h>
#include <math.h>

#include "evaluation.h"
#include "events.h"
#include "failure.h"
#include "stop.h"

bool pf_validation_is_due(const pf_validation *validation, int64_t done, int64_t steps) {
    return validation->data && (done % validation->every == 0 || done == steps);
}

static void put_validation(const pf_evaluation *evaluation, int64_t done) {
    pf_event("validation");
    pf_integer("step", done);
    pf_put_evaluation(evaluation);
    pf_event_end();
}

/* `eval` draws as seed 0 does, whatever the seed of training. */
static pf_status evaluate(const pf_validation *validation, pf_step *step, pf_evaluation *evaluation) {
    uint64_t seed = step->seed;
    pf_set_seed(step, 0);
    pf_status status = pf_evaluate(step, validation->data, evaluation);
    pf_set_seed(step, seed);
    return status;
}

static pf_status check(const pf_evaluation *evaluation, const pf_validation *validation, int64_t done) {
    if (!evaluation->finite) {
        pf_fail(PF_USER, "train.diverged", "the logits of the validation after step %" PRId64 " are NaN or infinite; lower the "
                "learning rate", done);
        return pf_failed_at(done), PF_USER;
    }
    if (isfinite(evaluation->loss)) return PF_OK;
    return pf_fail(PF_DATA, "data.label", "%s: none of the %" PRId64 " validation samples has a label that counts",
                   validation->data->counted->path, evaluation->samples);
}

static pf_status take(pf_validation *validation, pf_step *step, double loss, int64_t done) {
    bool first = validation->best_step == 0;
    if (first || loss < validation->best_loss) {
        if (validation->save_best) PF_TRY(pf_save(step, validation->save_best, PF_SAVE_ALL));
        validation->best_loss = loss;
        validation->best_step = done;
    }
    bool better = first || loss < validation->bar - validation->min_delta;
    if (better) validation->bar = loss;
    validation->waited = better ? 0 : validation->waited + 1;
    return PF_OK;
}

pf_status pf_validate(pf_validation *validation, pf_step *step, int64_t done) {
    pf_evaluation evaluation;
    PF_TRY(evaluate(validation, step, &evaluation));
    if (pf_stop_requested) return PF_OK; /* some samples were not scored */
    PF_TRY(check(&evaluation, validation, done));
    put_validation(&evaluation, done);
    return take(validation, step, evaluation.loss, done);
}

bool pf_is_out_of_patience(const pf_validation *validation) {
    return validation->patience > 0 && validation->waited >= validation->patience;
}
