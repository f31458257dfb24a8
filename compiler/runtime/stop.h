/* stop.h: a polite end. SIGTERM and SIGINT ask for it; whoever loops looks between its steps. */
#ifndef POCKFARM_STOP_H
#define POCKFARM_STOP_H

#include <signal.h>

/* Nonzero: end after the current step. */
extern volatile sig_atomic_t pf_stop_requested;

/* Take SIGTERM and SIGINT as requests to stop. */
void pf_stop_on_signals(void);

#endif
