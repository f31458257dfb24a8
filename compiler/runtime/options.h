/* options.h: the command line of `step`. */
#ifndef POCKFARM_OPTIONS_H
#define POCKFARM_OPTIONS_H

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
} pf_options;

/* Fill `options` from the arguments; PF_USER with code `user.usage` if they make no sense. */
pf_status pf_options_parse(pf_options *options, int count, char **arguments);

/* What `step --help` prints. */
extern const char pf_usage[];

#endif
