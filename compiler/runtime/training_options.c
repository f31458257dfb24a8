#include "training_options.h"

#include <math.h>
#include <string.h>

#include "checkpoint.h"
#include "failure.h"
#include "image.h"

enum { MOST_STEPS = 1000000000 };

static pf_status take_rate(pf_options *options, const char *name, const char *value) {
    return pf_take_number(&options->learning_rate, name, value, 0.0, INFINITY);
}

static pf_status take_save(pf_options *options, const char *name, const char *value) {
    return pf_take_once(&options->save, name, value);
}

static pf_status take_schedule(pf_options *options, const char *name, const char *value) {
    static const char *const names[] = {"constant", "cosine", "linear"};
    for (int kind = 0; kind < 3; kind++)
        if (strcmp(value, names[kind]) == 0) return options->schedule = kind, PF_OK;
    return pf_bad_usage("%s is '%.80s'; it is constant, cosine or linear", name, value);
}

static pf_status take_warmup_steps(pf_options *options, const char *name, const char *value) {
    return pf_take_integer(&options->warmup_steps, name, value, 0, MOST_STEPS);
}

static pf_status take_schedule_steps(pf_options *options, const char *name, const char *value) {
    return pf_take_integer(&options->schedule_steps, name, value, 1, MOST_STEPS);
}

static pf_status take_final_ratio(pf_options *options, const char *name, const char *value) {
    return pf_take_number(&options->final_ratio, name, value, 0.0, 1.0);
}

static pf_status take_validation(pf_options *options, const char *name, const char *value) {
    PF_TRY(pf_take_number(&options->validation, name, value, 0.0, 1.0));
    if (options->validation > 0.0 && options->validation < 1.0) return PF_OK;
    return pf_bad_usage("%s is '%.80s'; give a share between 0 and 1 of the samples", name, value);
}

static pf_status take_eval_input(pf_options *options, const char *name, const char *value) {
    return pf_take_input(options->eval_inputs, name, value);
}

static pf_status take_eval_labels(pf_options *options, const char *name, const char *value) {
    return pf_take_labels(options->eval_labels, name, value);
}

static pf_status take_eval_every(pf_options *options, const char *name, const char *value) {
    return pf_take_integer(&options->eval_every, name, value, 1, MOST_STEPS);
}

static pf_status take_patience(pf_options *options, const char *name, const char *value) {
    return pf_take_integer(&options->patience, name, value, 1, MOST_STEPS);
}

static pf_status take_min_delta(pf_options *options, const char *name, const char *value) {
    return pf_take_number(&options->min_delta, name, value, 0.0, INFINITY);
}

static pf_status take_save_best(pf_options *options, const char *name, const char *value) {
    (void)name, (void)value;
    options->save_best = true;
    return PF_OK;
}

static pf_status take_explosion_factor(pf_options *options, const char *name, const char *value) {
    return pf_take_number(&options->explosion_factor, name, value, 0.0, INFINITY);
}

static pf_status take_checkpoint(pf_options *options, const char *name, const char *value) {
    return pf_take_once(&options->checkpoint, name, value);
}

static pf_status take_checkpoint_key(pf_options *options, const char *name, const char *value) {
    if (strlen(value) >= PF_KEY_BYTES) return pf_bad_usage("%s is longer than 128 bytes%s", name, "");
    return pf_take_once(&options->checkpoint_key, name, value);
}

static pf_status take_checkpoint_every(pf_options *options, const char *name, const char *value) {
    return pf_take_number(&options->checkpoint_every_s, name, value, 0.0, 1e6);
}

static pf_status take_resume(pf_options *options, const char *name, const char *value) {
    return pf_take_once(&options->resume, name, value);
}

enum { TRAIN = PF_ON(PF_TRAIN_COMMAND) };

const pf_option pf_training_options[] = {
    {"--learning-rate", TRAIN, take_rate, false},
    {"--save", TRAIN, take_save, false},
    {"--schedule", TRAIN, take_schedule, false},
    {"--warmup-steps", TRAIN, take_warmup_steps, false},
    {"--schedule-steps", TRAIN, take_schedule_steps, false},
    {"--final-ratio", TRAIN, take_final_ratio, false},
    {"--validation", TRAIN, take_validation, false},
    {"--eval-input", TRAIN, take_eval_input, false},
    {"--eval-labels", TRAIN, take_eval_labels, false},
    {"--eval-every", TRAIN, take_eval_every, false},
    {"--patience", TRAIN, take_patience, false},
    {"--min-delta", TRAIN, take_min_delta, false},
    {"--save-best", TRAIN, take_save_best, true},
    {"--explosion-factor", TRAIN, take_explosion_factor, false},
    {"--checkpoint", TRAIN, take_checkpoint, false},
    {"--checkpoint-key", TRAIN, take_checkpoint_key, false},
    {"--checkpoint-every", TRAIN, take_checkpoint_every, false},
    {"--resume", TRAIN, take_resume, false},
};
const size_t pf_training_option_count = sizeof pf_training_options / sizeof *pf_training_options;

/* A constant rate has no end to come to; the build's kind counts where none is said. */
static pf_status check_schedule(const pf_options *options) {
    bool has_end = options->final_ratio >= 0 || options->schedule_steps;
    int kind = options->schedule >= 0 ? options->schedule : (int)pf_image_data.schedule.kind;
    if (!has_end || kind != PF_RATE_CONSTANT) return PF_OK;
    return pf_bad_usage("%s does nothing with a constant schedule; give --schedule cosine or linear%s",
                        options->final_ratio >= 0 ? "--final-ratio" : "--schedule-steps", "");
}

pf_status pf_check_training_options(const pf_options *options) {
    bool files = false;
    PF_TRY(check_schedule(options));
    if (options->checkpoint_every_s >= 0 && !options->checkpoint)
        return pf_bad_usage("%s needs --checkpoint F%s", "--checkpoint-every", "");
    if (options->resume && options->weights_count == PF_MAX_WEIGHTS)
        return pf_bad_usage("%s is one more file than the eight of --weights%s", "--resume", "; give fewer");
    for (int i = 0; i < PF_MAX_INPUTS; i++) files |= options->eval_inputs[i] != NULL;
    for (int i = 0; i < PF_MAX_LABELS; i++) files |= options->eval_labels[i] != NULL;
    if (files && options->validation > 0)
        return pf_bad_usage("%s and %s both say what to validate on; give one", "--validation", "--eval-input");
    if (options->save_best && !options->save) return pf_bad_usage("%s needs --save F%s", "--save-best", "");
    if (options->min_delta > 0 && !options->patience) return pf_bad_usage("%s is for --patience N; give it too%s", "--min-delta", "");
    if (files) return pf_need_data("--eval-", options->eval_inputs, options->eval_labels);
    if (options->validation > 0) return PF_OK;
    if (options->eval_every || options->patience || options->min_delta > 0 || options->save_best)
        return pf_bad_usage("there is nothing to validate on: give --validation SHARE or --eval-input NAME=FILE.npy%s%s", "", "");
    return PF_OK;
}
