/* option.h: what the command line can say, and what takes the value of one option. */
#ifndef POCKFARM_OPTION_H
#define POCKFARM_OPTION_H

#include "image.h"

typedef enum { PF_INFO, PF_PROFILE, PF_TRAIN_COMMAND, PF_EVAL, PF_INFER, PF_EXPORT } pf_command;

typedef struct {
    pf_command command;
    const char *weights[PF_MAX_WEIGHTS];
    int weights_count;
    const char *inputs[PF_MAX_INPUTS]; /* by model input; NULL: not given */
    const char *labels[PF_MAX_LABELS]; /* by array of labels */
    const char *save, *out, *pin;
    int64_t steps, warmup, threads; /* 0, -1, 0: not given */
    uint64_t seed;
    bool sequential, spare_core;
    double learning_rate; /* negative: the build's */
    int schedule;         /* a pf_schedule_kind; negative: the build's */
    int64_t warmup_steps, schedule_steps; /* -1, 0: not given */
    double final_ratio;                   /* negative: the build's */
    const char *eval_inputs[PF_MAX_INPUTS], *eval_labels[PF_MAX_LABELS];
    double validation;            /* share of the samples; 0: none */
    int64_t eval_every, patience; /* 0: not given */
    double min_delta, explosion_factor;
    bool save_best;
    const char *checkpoint, *checkpoint_key, *resume;
    double checkpoint_every_s; /* negative: not given */
} pf_options;

#define PF_ON(command) (1u << (command))

typedef struct {
    const char *name;
    unsigned commands;
    pf_status (*take)(pf_options *options, const char *name, const char *value);
    bool is_flag; /* stands alone, without a value */
} pf_option;

/* `user.usage`, in which `%s` are `what` and `more`. */
pf_status pf_bad_usage(const char *format, const char *what, const char *more);

pf_status pf_take_integer(int64_t *to, const char *name, const char *value, int64_t least, int64_t most);
pf_status pf_take_number(double *to, const char *name, const char *value, double least, double most);
pf_status pf_take_once(const char **to, const char *name, const char *value);

/* The path in `NAME=FILE` or (of labels, where there is one array) `FILE`. */
pf_status pf_take_input(const char **paths, const char *name, const char *value);
pf_status pf_take_labels(const char **paths, const char *name, const char *value);

/* A file for each input, and (unless NULL) for each array of labels; `prefix` begins the options' names: `--`, `--eval-`. */
pf_status pf_need_data(const char *prefix, const char *const *inputs, const char *const *labels);

#endif
