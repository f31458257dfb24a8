/* help.h: what `step --help` says. */
#ifndef POCKFARM_HELP_H
#define POCKFARM_HELP_H

#include <stdbool.h>

bool pf_asks_for_help(int count, char **arguments);

/* On stderr: what this very step is, then the commands and exit codes. */
void pf_tell_help(void);

#endif
