/* main.c: the `step` command: understands its arguments, runs one command, turns a failure into an event and a code. */
#include "commands.h"
#include "failure.h"
#include "help.h"
#include "run_events.h"
#include "stop.h"

static pf_status run_command(const pf_options *options, pf_step *step, const pf_data *data) {
    switch (options->command) {
    case PF_PROFILE: return pf_command_profile(options, step, data);
    case PF_TRAIN_COMMAND: return pf_command_train(options, step, data);
    case PF_EVAL: return pf_command_eval(step, data);
    case PF_INFER: return pf_command_infer(options, step, data);
    case PF_EXPORT: return pf_command_export(options, step);
    case PF_INFO: break;
    }
    return PF_OK;
}

/* The checkpoint of an unfinished run holds what training changed, over the weights that the run began with. */
static pf_status load(const pf_options *options, pf_step *step) {
    const char *files[PF_MAX_WEIGHTS];
    int count = options->weights_count;
    for (int i = 0; i < count; i++) files[i] = options->weights[i];
    if (options->resume) files[count++] = options->resume;
    return pf_load(step, files, count);
}

static pf_status run_with_step(const pf_options *options, pf_step *step) {
    static pf_data data;
    data.seed = options->seed;
    pf_set_seed(step, options->seed);
    data.sequential = options->sequential || options->command == PF_EVAL || options->command == PF_INFER;
    PF_TRY(load(options, step));
    for (int i = 0; i < options->weights_count; i++) pf_tell_match(options->weights[i], pf_loaded(step, i));
    if (options->command != PF_EXPORT) PF_TRY(pf_data_open(&data, options->inputs, options->command == PF_INFER ? NULL : options->labels));
    pf_status status = run_command(options, step, &data);
    if (options->command != PF_EXPORT) pf_data_close(&data);
    return status;
}

static pf_status run(int count, char **arguments) {
    pf_options options;
    pf_step *step;
    PF_TRY(pf_options_parse(&options, count, arguments));
    if (options.command == PF_INFO) return pf_command_info(), PF_OK;
    pf_settings settings = {(int)options.threads, options.pin ? options.pin : "auto", options.spare_core};
    PF_TRY(pf_create(settings, &step));
    pf_status status = run_with_step(&options, step);
    pf_destroy(step);
    return status;
}

int main(int count, char **arguments) {
    if (pf_asks_for_help(count, arguments)) return pf_tell_help(), 0;
    pf_stop_on_signals();
    return run(count, arguments) == PF_OK ? 0 : pf_report_failure();
}
