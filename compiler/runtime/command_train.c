#include "commands.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "clock.h"
#include "evaluation.h"
#include "events.h"
#include "explosion.h"
#include "failure.h"
#include "run_events.h"
#include "run_position.h"
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
    double checkpoint_due_us;
} training;

static const double CHECKPOINT_EVERY_S = 300.0;

/* `done`: the run's steps so far. */
static pf_schedule schedule_of(const pf_options *options, const pf_step *step, int64_t done) {
    pf_schedule schedule = pf_image_data.schedule;
    if (options->schedule >= 0) schedule.kind = (pf_schedule_kind)options->schedule;
    if (options->warmup_steps >= 0) schedule.warmup_steps = options->warmup_steps;
    if (options->final_ratio >= 0) schedule.final_ratio = options->final_ratio;
    schedule.steps = options->schedule_steps ? options->schedule_steps : pf_steps_done(step) - done + options->steps;
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

static const char *key_of(const pf_options *options) { return options->checkpoint_key ? options->checkpoint_key : ""; }

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

static void put_checkpoint(const training *run, double us) {
    pf_event("checkpoint");
    pf_integer("step", run->done);
    pf_number("us", us);
    pf_event_end();
}

static double next_checkpoint_us(const pf_options *options) {
    return pf_now_us() + 1e6 * (options->checkpoint_every_s < 0 ? CHECKPOINT_EVERY_S : options->checkpoint_every_s);
}

/* A run that cannot leave a checkpoint now can still end well. */
static void take_checkpoint(training *run) {
    const pf_validation *validation = &run->validation;
    double start = pf_now_us();
    pf_unfinished unfinished = {{0}, {0}, 0, 0};
    pf_run_position position = {run->done, run->explosion, validation->best_loss, validation->bar, validation->best_step,
                                validation->waited};
    snprintf(unfinished.key, sizeof unfinished.key, "%s", key_of(run->options));
    pf_position_tell(&position, &unfinished);
    const char *best = validation->best_step ? validation->save_best : NULL;
    if (pf_save_unfinished(run->step, run->options->checkpoint, &unfinished, best) == PF_OK)
        put_checkpoint(run, pf_now_us() - start);
    else
        fprintf(stderr, "step: no checkpoint after step %" PRId64 ": %s\n", run->done, pf_last_error()->message);
    run->checkpoint_due_us = next_checkpoint_us(run->options);
}

/* Whether one follows the step that was done: not when asked to stop, for then its validation may be cut short. */
static bool checkpoint_is_due(const training *run) {
    return run->options->checkpoint && run->done < run->options->steps && !pf_stop_requested &&
           pf_now_us() >= run->checkpoint_due_us;
}

static pf_status validate(training *run, bool *stopped_early) {
    PF_TRY(pf_validate(&run->validation, run->step, run->done));
    *stopped_early = run->done < run->options->steps && pf_is_out_of_patience(&run->validation);
    return PF_OK;
}

static pf_status train(training *run, bool *stopped_early) {
    int64_t steps = run->options->steps;
    while (run->done < steps && !*stopped_early && !pf_stop_requested) {
        PF_TRY(train_step(run));
        bool is_validated = pf_validation_is_due(&run->validation, run->done, steps);
        if (is_validated) PF_TRY(validate(run, stopped_early));
        if (!*stopped_early && checkpoint_is_due(run)) take_checkpoint(run);
        else if (run->options->checkpoint && pf_stop_requested && !is_validated) take_checkpoint(run);
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

/* Where another process left the run, whose tensors are loaded. */
static pf_status go_on(training *run) {
    const pf_unfinished *unfinished = &run->step->unfinished;
    const char *path = run->options->resume;
    pf_run_position position;
    PF_TRY(pf_position_read(&position, unfinished, path, key_of(run->options)));
    if (position.done > run->options->steps || position.done > pf_steps_done(run->step))
        return pf_fail(PF_WEIGHTS, "checkpoint.format", "%s: %" PRId64 " steps are done, of %" PRId64 " that were asked for", path,
                       position.done, run->options->steps);
    if (run->validation.save_best && position.best_step) {
        if (!unfinished->best_bytes) return pf_fail(PF_WEIGHTS, "checkpoint.format", "%s: its best is not in it", path);
        PF_TRY(pf_checkpoint_take_best(path, unfinished, run->validation.save_best));
    }
    run->done = position.done;
    run->explosion.start = position.explosion.start;
    run->explosion.seen = position.explosion.seen;
    run->explosion.high = position.explosion.high;
    run->validation.best_loss = position.best_loss;
    run->validation.bar = position.bar;
    run->validation.best_step = position.best_step;
    run->validation.waited = position.waited;
    return PF_OK;
}

static void put_resume(const training *run) {
    pf_event("resume");
    pf_integer("step", run->done);
    pf_event_end();
}

static pf_status train_and_save(training *run) {
    bool stopped_early = false;
    int64_t saved_step = 0;
    PF_TRY(open_validation(run));
    if (run->options->resume) PF_TRY(go_on(run));
    run->schedule = schedule_of(run->options, run->step, run->done);
    run->checkpoint_due_us = next_checkpoint_us(run->options);
    pf_event_start(run->step);
    if (run->options->resume) put_resume(run);
    PF_TRY(train(run, &stopped_early));
    PF_TRY(save(run, &saved_step));
    put_end(run, stopped_early, saved_step);
    return PF_OK;
}

pf_status pf_command_train(const pf_options *options, pf_step *step, const pf_data *data) {
    static training run;
    run = (training){.options = options, .step = step, .data = *data,
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
