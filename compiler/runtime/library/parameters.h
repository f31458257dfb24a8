/* parameters.h: the parameters of a step, those that are kept in checkpoints, by number and by name. */
#ifndef POCKFARM_PARAMETERS_H
#define POCKFARM_PARAMETERS_H

#include "session.h"

int32_t pf_parameter_count(void);
const pf_state *pf_parameter(int32_t index); /* NULL: there is none */

/* Copy one, in the order of its file's shape, from and to memory; `bytes` must be its size, and floats finite. */
pf_status pf_parameter_read(const pf_step *step, const char *name, void *data, size_t bytes);
pf_status pf_parameter_write(pf_step *step, const char *name, const void *data, size_t bytes);

#endif
