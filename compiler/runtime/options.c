#include "options.h"

#include <string.h>

#include "explosion.h"
#include "failure.h"
#include "training_options.h"

const char pf_usage[] =
    "step info\n"
    "step profile --weights W [data] [--steps N] [--warmup K] [--order O] [--batch-seed S] [cores]\n"
    "step train   --weights W data --steps N [--batch-seed S] [--order O] [--learning-rate R] [schedule] [validation]\n"
    "             [--explosion-factor E] [--save F] [checkpoints] [cores]\n"
    "step eval    --weights W data [cores]\n"
    "step infer   --weights W data --out F.npy [cores]\n"
    "step export  --weights W --out F\n"
    "data: --input NAME=FILE.npy (once per model input) --labels FILE.npy (not for infer)\n"
    "      of several arrays of labels each: --labels NAME=FILE.npy\n"
    "schedule: [--schedule constant|cosine|linear] [--warmup-steps K] [--schedule-steps N] [--final-ratio R]: K steps up to\n"
    "          the learning rate, then down to R times it at step N (default: the run's last); checkpoints' steps count\n"
    "validation: --validation SHARE (of the samples, the last) or --eval-input NAME=FILE.npy --eval-labels FILE.npy,\n"
    "            [--eval-every N] [--patience K] [--min-delta D] [--save-best]: every N steps (default: once an epoch);\n"
    "            ends after K in a row whose loss is not lower by more than D; --save-best: what had the lowest loss\n"
    "--explosion-factor: a run whose loss is above E times what it was has diverged (default 100; 0: only if no number)\n"
    "checkpoints: [--checkpoint F [--checkpoint-every S] [--checkpoint-key K]] [--resume F]: all that the run needs to go on, in F\n"
    "             every S seconds (default 300) and when stopped; --resume goes on from one, of the same key, data and options\n"
    "cores: [--threads T] [--pin auto|off|LIST] [--spare-core]: auto keeps to the fastest cores where cores differ,\n"
    "       a LIST such as 4-7 or 0,2 gives each thread its own; --spare-core leaves one core to the rest of the system\n"
    "--weights may be repeated: a tensor comes from the last file that has it. --order is shuffled or sequential.\n";

static const char *const command_names[] = {"info", "profile", "train", "eval", "infer", "export"};
enum { COMMANDS = sizeof command_names / sizeof *command_names };

#define ON PF_ON
enum {
    RUNS = ON(PF_PROFILE) | ON(PF_TRAIN_COMMAND) | ON(PF_EVAL) | ON(PF_INFER),
    LOADS = RUNS | ON(PF_EXPORT),
    STEPS = ON(PF_PROFILE) | ON(PF_TRAIN_COMMAND),
};

static pf_status take_weights(pf_options *options, const char *name, const char *value) {
    if (options->weights_count == PF_MAX_WEIGHTS) return pf_bad_usage("%s is given more than eight times%s", name, "");
    return pf_take_once(&options->weights[options->weights_count++], name, value);
}

static pf_status take_input(pf_options *options, const char *name, const char *value) {
    return pf_take_input(options->inputs, name, value);
}
static pf_status take_labels(pf_options *options, const char *name, const char *value) {
    return pf_take_labels(options->labels, name, value);
}
static pf_status take_out(pf_options *options, const char *name, const char *value) {
    return pf_take_once(&options->out, name, value);
}
static pf_status take_steps(pf_options *options, const char *name, const char *value) {
    return pf_take_integer(&options->steps, name, value, 1, 1000000000);
}
static pf_status take_warmup(pf_options *options, const char *name, const char *value) {
    return pf_take_integer(&options->warmup, name, value, 0, 1000000000);
}
static pf_status take_threads(pf_options *options, const char *name, const char *value) {
    return pf_take_integer(&options->threads, name, value, 1, pf_image_data.threads);
}

static pf_status take_pin(pf_options *options, const char *name, const char *value) {
    return pf_take_once(&options->pin, name, value);
}

static pf_status take_spare(pf_options *options, const char *name, const char *value) {
    (void)name, (void)value;
    options->spare_core = true;
    return PF_OK;
}

static pf_status take_seed(pf_options *options, const char *name, const char *value) {
    int64_t seed = 0;
    PF_TRY(pf_take_integer(&seed, name, value, 0, INT64_MAX));
    options->seed = (uint64_t)seed;
    return PF_OK;
}

static pf_status take_order(pf_options *options, const char *name, const char *value) {
    options->sequential = strcmp(value, "sequential") == 0;
    if (options->sequential || strcmp(value, "shuffled") == 0) return PF_OK;
    return pf_bad_usage("%s is '%s'; it is shuffled or sequential", name, value);
}

static const pf_option all_options[] = {
    {"--weights", LOADS, take_weights, false},
    {"--input", RUNS, take_input, false},
    {"--labels", STEPS | ON(PF_EVAL), take_labels, false},
    {"--steps", STEPS, take_steps, false},
    {"--warmup", ON(PF_PROFILE), take_warmup, false},
    {"--threads", RUNS, take_threads, false},
    {"--pin", RUNS, take_pin, false},
    {"--spare-core", RUNS, take_spare, true},
    {"--batch-seed", STEPS, take_seed, false},
    {"--order", STEPS, take_order, false},
    {"--out", ON(PF_INFER) | ON(PF_EXPORT), take_out, false},
};

static const pf_option *find_option(const char *name) {
    for (size_t i = 0; i < sizeof all_options / sizeof *all_options; i++)
        if (strcmp(all_options[i].name, name) == 0) return &all_options[i];
    for (size_t i = 0; i < pf_training_option_count; i++)
        if (strcmp(pf_training_options[i].name, name) == 0) return &pf_training_options[i];
    return NULL;
}

/* Take the option at `arguments[0]`; `*taken` becomes how many words it has. */
static pf_status take_option(pf_options *options, char **arguments, int left, int *taken) {
    const char *name = arguments[0];
    const pf_option *known = find_option(name);
    if (!known) return pf_bad_usage("no option '%.80s'%s", name, "; `step --help` lists them");
    if (!(known->commands & ON(options->command)))
        return pf_bad_usage("`%s` has no option %s", command_names[options->command], name);
    *taken = known->is_flag ? 1 : 2;
    if (*taken > left) return pf_bad_usage("%s needs a value%s", name, "");
    return known->take(options, name, known->is_flag ? NULL : arguments[1]);
}

static pf_status need_all(const pf_options *options) {
    const char *name = command_names[options->command];
    bool any_data = false;
    for (int i = 0; i < pf_label_count(); i++) any_data |= options->labels[i] != NULL;
    for (int i = 0; i < pf_input_count(); i++) any_data |= options->inputs[i] != NULL;
    if ((LOADS & ON(options->command)) && options->weights_count == 0) return pf_bad_usage("`%s` needs --weights F%s", name, "");
    if (options->command == PF_TRAIN_COMMAND && options->steps == 0) return pf_bad_usage("`%s` needs --steps N%s", name, "");
    if ((options->command == PF_INFER || options->command == PF_EXPORT) && !options->out)
        return pf_bad_usage("`%s` needs --out F%s", name, "");
    if (options->command == PF_PROFILE && !any_data) return PF_OK;
    if (!(RUNS & ON(options->command))) return PF_OK;
    PF_TRY(pf_need_data("--", options->inputs, options->command == PF_INFER ? NULL : options->labels));
    return options->command == PF_TRAIN_COMMAND ? pf_check_training_options(options) : PF_OK;
}

pf_status pf_options_parse(pf_options *options, int count, char **arguments) {
    int command = 0;
    *options = (pf_options){.learning_rate = -1.0, .warmup = -1, .schedule = -1, .warmup_steps = -1, .final_ratio = -1.0,
                            .explosion_factor = PF_EXPLOSION_FACTOR, .checkpoint_every_s = -1.0};
    if (count < 2) return pf_bad_usage("no command%s%s", "; `step --help` lists them", "");
    while (command < COMMANDS && strcmp(arguments[1], command_names[command]) != 0) command++;
    if (command == COMMANDS) return pf_bad_usage("no command '%.80s'%s", arguments[1], "; `step --help` lists them");
    options->command = (pf_command)command;
    for (int i = 2, taken = 0; i < count; i += taken) PF_TRY(take_option(options, arguments + i, count - i, &taken));
    return need_all(options);
}
