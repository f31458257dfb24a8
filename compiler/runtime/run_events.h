/* run_events.h: the events that every command shares: how a run began, how it ended, what failed. */
#ifndef POCKFARM_RUN_EVENTS_H
#define POCKFARM_RUN_EVENTS_H

#include "session.h"

void pf_event_start(const pf_step *step);
void pf_event_finish(int64_t steps); /* `done`, or `stopped` if asked to stop */
void pf_event_finish_open(int64_t steps); /* the same, to be ended by who has more to say of it */

/* An event and a line for a checkpoint that fits in part; nothing for one that fits. */
void pf_tell_match(const char *path, const pf_match *match);

/* An event and a line for what failed last; returns the process's exit code. */
int pf_report_failure(void);

#endif
