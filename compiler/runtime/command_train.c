#include "commands.h"

#include <inttypes.h>
#include <math.h>

#include "evaluation.h"
#include "events.h"
#include "explosion.h"
#include "failure.h"
#include "run_events.h"
#include "schedule.h"
#include "stop.h"
#include "validation.h"
#include "whole_step.h"

/* A run of `train`. `done` counts its steps; `rate` is that of the step at hand. */
typedef struct {
    const pf_options *options;
    pf_step *step;
    pf_data data, held_out;
    pf_schedule schedule;
    pf_validation validation;
    pf_explosion explosion;
    double learning_rate, rate;
    int64_t done;
} training;

static pf_schedule schedule_of(const pf_options *options, const pf_step *step) {
    pf_schedule schedule = pf_image_data.schedule;
    if (options->schedule >= 0) schedule.kind = (pf_schedule_kind)options->schedule;
    if (options->warmup_steps >= 0) schedule.warmup_steps = options->warmup_steps;
    if (options->final_ratio >= 0) schedule.final_ratio = options->final_ratio;
    schedule.steps = options->schedule_steps ? options->schedule_steps : pf_steps_done(step) + options->steps;
    return schedule;
}

/* What is held out of the data, or the files given for it. */
static pf_status open_validation(training *run) {
    const pf_options *options = run->options;
    int64_t scored;
    if (options->validation > 0) {
        PF_TRY(pf_data_part(&run->data, options->validation, &run->held_out));
    } else if (options->eval_inputs[0] || options->eval_labels[0]) {
        run->held_out.sequential = true;
        PF_TRY(pf_data_open(&run->held_out, options->eval_inputs, options->eval_labels));
    } else {
        return PF_OK;
    }
    PF_TRY(pf_evaluated_samples(&run->held_out, &scored));
    run->validation.data = &run->held_out;
    run->validation.every = options->eval_every ? options->eval_every : (run->data.samples + pf_step_samples() - 1) / pf_step_samples();
    run->validation.patience = options->patience;
    run->validation.min_delta = options->min_delta;
    run->validation.save_best = options->save_best ? options->save : NULL;
    return PF_OK;
}

static void put_step(const training *run, double loss, double us) {
    pf_event("step");
    pf_integer("step", run->done);
    pf_number("loss", loss);
    pf_number("learning_rate", run->rate);
    pf_number("us", us);
    pf_event_end();
}

static pf_status diverged_at(const training *run) { return pf_failed_at(run->done), PF_USER; }

static pf_status check_loss(training *run, double loss) {
    if (!isfinite(loss)) {
        pf_fail(PF_USER, "train.diverged", "the loss of step %" PRId64 " is %s; lower the learning rate (now %g) or check the data",
                run->done, isnan(loss) ? "NaN" : "infinite", run->rate);
        return diverged_at(run);
    }
    if (!pf_explodes(&run->explosion, loss)) return PF_OK;
    pf_fail(PF_USER, "train.diverged", "the loss of step %" PRId64 " is %g: half of the last 16 steps lie above %g times where the "
            "run began (%g); lower the learning rate (now %g), or --explosion-factor 0 to go on", run->done, loss,
            run->explosion.factor, run->explosion.start, run->rate);
    return diverged_at(run);
}

static pf_status train_step(training *run) {
    float loss = 0.0f;
    double us = 0.0;
    run->rate = pf_scheduled_rate(&run->schedule, run->learning_rate, pf_steps_done(run->step));
    pf_set_learning_rate(run->step, run->rate);
    PF_TRY(pf_whole_step(&run->data, run->step, run->done * pf_step_samples(), &loss, &us));
    run->done++;
    put_step(run, (double)loss, us);
    return check_loss(run, (double)loss);
}

static pf_status train(training *run, bool *stopped_early) {
    int64_t steps = run->options->steps;
    while (run->done < steps && !*stopped_early && !pf_stop_requested) {
        PF_TRY(train_step(run));
        if (!pf_validation_is_due(&run->validation, run->done, steps)) continue;
        PF_TRY(pf_validate(&run->validation, run->step, run->done));
        *stopped_early = run->done < steps && pf_is_out_of_patience(&run->validation);
    }
    return PF_OK;
}

/* The best was saved when it was found. */
static pf_status save(const training *run, int64_t *saved_step) {
    *saved_step = run->validation.save_best && run->validation.best_step ? run->validation.best_step : run->done;
    if (!run->options->save || *saved_step != run->done) return PF_OK;
    if (pf_save(run->step, run->options->save, PF_SAVE_ALL) == PF_OK) return PF_OK;
    return pf_last_error()->status == PF_USER ? diverged_at(run) : pf_last_error()->status;
}

static void put_end(const training *run, bool stopped_early, int64_t saved_step) {
    pf_event_finish_open(run->done);
    pf_text("outcome", pf_stop_requested ? "stopped" : stopped_early ? "stopped_early" : "completed");
    if (run->validation.best_step) {
        pf_integer("best_step", run->validation.best_step);
        pf_exact("best_loss", run->validation.best_loss);
    }
    if (run->options->save) pf_integer("saved_step", saved_step);
    pf_event_end();
}

static pf_status train_and_save(training *run) {
    bool stopped_early = false;
    int64_t saved_step = 0;
    PF_TRY(open_validation(run));
    pf_event_start(run->step);
    PF_TRY(train(run, &stopped_early));
    PF_TRY(save(run, &saved_step));
    put_end(run, stopped_early, saved_step);
    return PF_OK;
}

pf_status pf_command_train(const pf_options *options, pf_step *step, const pf_data *data) {
    static training run;
    run = (training){.options = options, .step = step, .data = *data, .schedule = schedule_of(options, step),
                     .explosion = {.factor = options->explosion_factor},
                     .learning_rate = options->learning_rate >= 0 ? options->learning_rate : pf_image_data.learning_rate};
    pf_status status = train_and_save(&run);
    if (run.validation.data && !(options->validation > 0)) pf_data_close(&run.held_out);
    return status;
}

pf_status pf_command_export(const pf_options *options, pf_step *step) {
    pf_event_start(step);
    PF_TRY(pf_save(step, options->out, PF_SAVE_PARAMETERS));
    pf_event_finish(0);
    return PF_OK;
}
