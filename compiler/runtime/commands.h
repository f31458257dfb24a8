/* commands.h: what `step` does once its arguments are understood. Each writes its events to stdout. */
#ifndef POCKFARM_COMMANDS_H
#define POCKFARM_COMMANDS_H

#include <signal.h>

#include "data.h"
#include "options.h"

/* Set by SIGTERM and SIGINT: end after the current step. */
extern volatile sig_atomic_t pf_stop_requested;

/* The events that several commands share. */
void pf_event_start(const pf_step *step);
void pf_event_finish(int64_t steps); /* `done`, or `stopped` if asked to stop */

/* An event and a line for a checkpoint that fits in part; nothing for one that fits. */
void pf_tell_match(const char *path, const pf_match *match);

void pf_command_info(void);
pf_status pf_command_profile(const pf_options *options, pf_step *step, const pf_data *data);
pf_status pf_command_train(const pf_options *options, pf_step *step, const pf_data *data);
pf_status pf_command_eval(pf_step *step, const pf_data *data);
pf_status pf_command_infer(const pf_options *options, pf_step *step, const pf_data *data);
pf_status pf_command_export(const pf_options *options, pf_step *step);

#endif
