/* options.h: the command line of `step`. */
#ifndef POCKFARM_OPTIONS_H
#define POCKFARM_OPTIONS_H

#include "option.h"

/* Fill `options` from the arguments; PF_USER with code `user.usage` if they make no sense. */
pf_status pf_options_parse(pf_options *options, int count, char **arguments);

/* What `step --help` prints. */
extern const char pf_usage[];

#endif
