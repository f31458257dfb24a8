#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"

const char pf_usage[] =
    "step info\n"
    "step profile --weights W [data] [--steps N] [--warmup K] [--order O] [--batch-seed S] [cores]\n"
    "step train   --weights W data --steps N [--batch-seed S] [--order O] [--learning-rate R] [--save F] [cores]\n"
    "step eval    --weights W data [cores]\n"
    "step infer   --weights W data --out F.npy [cores]\n"
    "step export  --weights W --out F\n"
    "data: --input NAME=FILE.npy (once per model input) --labels FILE.npy (not for infer)\n"
    "      of several arrays of labels each: --labels NAME=FILE.npy\n"
    "cores: [--threads T] [--pin auto|off|LIST] [--spare-core]: auto keeps to the fastest cores where cores differ,\n"
    "       a LIST such as 4-7 or 0,2 gives each thread its own; --spare-core leaves one core to the rest of the system\n"
    "--weights may be repeated: a tensor comes from the last file that has it. --order is shuffled or sequential.\n";

static const char *const command_names[] = {"info", "profile", "train", "eval", "infer", "export"};
enum { COMMANDS = sizeof command_names / sizeof *command_names };

#define ON(command) (1u << (command))
enum {
    RUNS = ON(PF_PROFILE) | ON(PF_TRAIN_COMMAND) | ON(PF_EVAL) | ON(PF_INFER),
    LOADS = RUNS | ON(PF_EXPORT),
    STEPS = ON(PF_PROFILE) | ON(PF_TRAIN_COMMAND),
};

typedef struct {
    const char *name;
    unsigned commands;
    pf_status (*take)(pf_options *options, const char *name, const char *value);
    bool is_flag; /* stands alone, without a value */
} option;

static pf_status usage(const char *format, const char *what, const char *more) {
    return pf_fail(PF_USER, "user.usage", format, what, more);
}

static pf_status integer(int64_t *to, const char *name, const char *value, int64_t least, int64_t most) {
    char *end;
    errno = 0;
    *to = strtoll(value, &end, 10);
    if (errno == 0 && end != value && !*end && *to >= least && *to <= most) return PF_OK;
    return pf_fail(PF_USER, "user.usage", "%s is '%.80s'; give a whole number from %" PRId64 " to %" PRId64, name, value, least, most);
}

static pf_status once(const char **to, const char *name, const char *value) {
    if (*to) return usage("%s is given twice%s", name, "");
    if (!*value) return usage("%s is empty%s", name, "; give a path");
    *to = value;
    return PF_OK;
}

static pf_status take_weights(pf_options *options, const char *name, const char *value) {
    if (options->weights_count == PF_MAX_WEIGHTS) return usage("%s is given more than eight times%s", name, "");
    return once(&options->weights[options->weights_count++], name, value);
}

/* The tensor that `NAME=FILE` names: of `a` and `a=b`, `a=b=FILE` means the second; `a=./b=FILE` means the first. */
static int named(const char *value, int count, const pf_tensor *(*tensor)(int), const char **path) {
    int found = -1;
    size_t longest = 0;
    for (int i = 0; i < count; i++) {
        size_t length = strlen(tensor(i)->name);
        if (strncmp(value, tensor(i)->name, length) != 0 || value[length] != '=') continue;
        if (found >= 0 && length < longest) continue;
        found = i;
        longest = length;
    }
    *path = found < 0 ? NULL : value + longest + 1;
    return found;
}

static pf_status take_input(pf_options *options, const char *name, const char *value) {
    const char *path;
    int found = named(value, pf_input_count(), pf_input, &path);
    if (found >= 0) return once(&options->inputs[found], pf_input(found)->name, path);
    return pf_fail(PF_USER, "user.usage", "%s '%.200s' names no model input; write %s=FILE.npy", name, value,
                   pf_input_count() ? pf_input(0)->name : "NAME");
}

static pf_status take_labels(pf_options *options, const char *name, const char *value) {
    const char *path;
    int count = pf_label_count();
    if (count == 0) return usage("this step takes no labels: its loss is the model's own output%s%s", "", "");
    if (count == 1) return once(&options->labels[0], name, value);
    int found = named(value, count, pf_label, &path);
    if (found >= 0) return once(&options->labels[found], pf_label(found)->name, path);
    return pf_fail(PF_USER, "user.usage", "%s '%.200s' names no array of labels; write %s=FILE.npy", name, value, pf_label(0)->name);
}
static pf_status take_save(pf_options *options, const char *name, const char *value) {
    return once(&options->save, name, value);
}
static pf_status take_out(pf_options *options, const char *name, const char *value) {
    return once(&options->out, name, value);
}
static pf_status take_steps(pf_options *options, const char *name, const char *value) {
    return integer(&options->steps, name, value, 1, 1000000000);
}
static pf_status take_warmup(pf_options *options, const char *name, const char *value) {
    return integer(&options->warmup, name, value, 0, 1000000000);
}
static pf_status take_threads(pf_options *options, const char *name, const char *value) {
    return integer(&options->threads, name, value, 1, pf_image_data.threads);
}

static pf_status take_pin(pf_options *options, const char *name, const char *value) {
    return once(&options->pin, name, value);
}

static pf_status take_spare(pf_options *options, const char *name, const char *value) {
    (void)name, (void)value;
    options->spare_core = true;
    return PF_OK;
}

static pf_status take_seed(pf_options *options, const char *name, const char *value) {
    int64_t seed = 0;
    PF_TRY(integer(&seed, name, value, 0, INT64_MAX));
    options->seed = (uint64_t)seed;
    return PF_OK;
}

static pf_status take_rate(pf_options *options, const char *name, const char *value) {
    char *end;
    options->learning_rate = strtod(value, &end);
    if (end != value && !*end && isfinite(options->learning_rate) && options->learning_rate >= 0) return PF_OK;
    return usage("%s is '%s'; give a number that is zero or more", name, value);
}

static pf_status take_order(pf_options *options, const char *name, const char *value) {
    options->sequential = strcmp(value, "sequential") == 0;
    if (options->sequential || strcmp(value, "shuffled") == 0) return PF_OK;
    return usage("%s is '%s'; it is shuffled or sequential", name, value);
}

static const option all_options[] = {
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
    {"--learning-rate", ON(PF_TRAIN_COMMAND), take_rate, false},
    {"--save", ON(PF_TRAIN_COMMAND), take_save, false},
    {"--out", ON(PF_INFER) | ON(PF_EXPORT), take_out, false},
};

/* Take the option at `arguments[0]`; `*taken` becomes how many words it has. */
static pf_status take_option(pf_options *options, char **arguments, int left, int *taken) {
    const char *name = arguments[0];
    for (size_t i = 0; i < sizeof all_options / sizeof *all_options; i++) {
        const option *known = &all_options[i];
        if (strcmp(known->name, name) != 0) continue;
        if (!(known->commands & ON(options->command)))
            return usage("`%s` has no option %s", command_names[options->command], name);
        *taken = known->is_flag ? 1 : 2;
        if (*taken > left) return usage("%s needs a value%s", name, "");
        return known->take(options, name, known->is_flag ? NULL : arguments[1]);
    }
    return usage("no option '%.80s'%s", name, "; `step --help` lists them");
}

static pf_status need_data(const pf_options *options) {
    for (int i = 0; i < pf_input_count(); i++)
        if (!options->inputs[i]) return usage("give --input %s=FILE.npy%s", pf_input(i)->name, "");
    for (int i = 0; options->command != PF_INFER && i < pf_label_count(); i++)
        if (!options->labels[i])
            return usage("give --labels %s%sFILE.npy", pf_label_count() > 1 ? pf_label(i)->name : "", pf_label_count() > 1 ? "=" : "");
    return PF_OK;
}

static pf_status need_all(const pf_options *options) {
    const char *name = command_names[options->command];
    bool any_data = false;
    for (int i = 0; i < pf_label_count(); i++) any_data |= options->labels[i] != NULL;
    for (int i = 0; i < pf_input_count(); i++) any_data |= options->inputs[i] != NULL;
    if ((LOADS & ON(options->command)) && options->weights_count == 0) return usage("`%s` needs --weights F%s", name, "");
    if (options->command == PF_TRAIN_COMMAND && options->steps == 0) return usage("`%s` needs --steps N%s", name, "");
    if ((options->command == PF_INFER || options->command == PF_EXPORT) && !options->out)
        return usage("`%s` needs --out F%s", name, "");
    if (options->command == PF_PROFILE && !any_data) return PF_OK;
    return RUNS & ON(options->command) ? need_data(options) : PF_OK;
}

pf_status pf_options_parse(pf_options *options, int count, char **arguments) {
    int command = 0;
    *options = (pf_options){.learning_rate = -1.0, .warmup = -1};
    if (count < 2) return usage("no command%s%s", "; `step --help` lists them", "");
    while (command < COMMANDS && strcmp(arguments[1], command_names[command]) != 0) command++;
    if (command == COMMANDS) return usage("no command '%.80s'%s", arguments[1], "; `step --help` lists them");
    options->command = (pf_command)command;
    for (int i = 2, taken = 0; i < count; i += taken) PF_TRY(take_option(options, arguments + i, count - i, &taken));
    return need_all(options);
}
