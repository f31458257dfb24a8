/* whole_step.h: one step of training on data: all of its micro-batches. */
#ifndef POCKFARM_WHOLE_STEP_H
#define POCKFARM_WHOLE_STEP_H

#include "data.h"

/* Fill and run the micro-batches from sample `position` on. `*loss` is that of the step, which need not be finite; `*us` is
 * the time that they ran. */
pf_status pf_whole_step(const pf_data *data, pf_step *step, int64_t position, float *loss, double *us);

#endif
