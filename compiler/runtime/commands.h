/* commands.h: what `step` does once its arguments are understood. Each writes its events to stdout. */
#ifndef POCKFARM_COMMANDS_H
#define POCKFARM_COMMANDS_H

#include "data.h"
#include "options.h"

void pf_command_info(void);
pf_status pf_command_profile(const pf_options *options, pf_step *step, const pf_data *data);
pf_status pf_command_train(const pf_options *options, pf_step *step, const pf_data *data);
pf_status pf_command_eval(pf_step *step, const pf_data *data);
pf_status pf_command_infer(const pf_options *options, pf_step *step, const pf_data *data);
pf_status pf_command_export(const pf_options *options, pf_step *step);

#endif
