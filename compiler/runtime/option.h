/* option.h: one option of the command line, and what takes its value. */
#ifndef POCKFARM_OPTION_H
#define POCKFARM_OPTION_H

#include "options.h"

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

/* Of `train` alone (training_options.c). */
extern const pf_option pf_training_options[];
extern const size_t pf_training_option_count;

/* That they go together. */
pf_status pf_check_training_options(const pf_options *options);

/* A file for each input, and (unless NULL) for each array of labels; `prefix` begins the options' names: `--`, `--eval-`. */
pf_status pf_need_data(const char *prefix, const char *const *inputs, const char *const *labels);

#endif
