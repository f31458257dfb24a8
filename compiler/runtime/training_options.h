/* training_options.h: what only `train` can be told. */
#ifndef POCKFARM_TRAINING_OPTIONS_H
#define POCKFARM_TRAINING_OPTIONS_H

#include "option.h"

extern const pf_option pf_training_options[];
extern const size_t pf_training_option_count;

/* That they go together. */
pf_status pf_check_training_options(const pf_options *options);

#endif
