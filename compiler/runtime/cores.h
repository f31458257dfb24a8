/* cores.h: which cores the threads of a step run on. */
#ifndef POCKFARM_CORES_H
#define POCKFARM_CORES_H

#include <sched.h>
#include <stdbool.h>

#include "pockfarm_step.h"

enum { PF_MAX_CORES = 1024 };

/* `count` 0: wherever the system puts them. `one_each`: thread t on `cores[t]`, else any thread on any of them. */
typedef struct {
    int threads;
    cpu_set_t at_start; /* what the thread that chose was allowed */
    int allowed; /* cores that this process may use; 0: the system does not say */
    int count;
    bool one_each;
    int cores[PF_MAX_CORES];
} pf_placement;

/* Choose from the cores that this process may use. `pin` is `off`, `auto` or a list such as `4-7,2`; auto keeps to the
 * fastest cores of a machine whose cores differ. `threads` are wanted, or (0) at most `most` and one per core;
 * `spare_core` gives one up where they would take every core. `system` is where Linux describes its cores,
 * /sys/devices/system/cpu. */
pf_status pf_cores_choose(pf_placement *placement, const char *system, const char *pin, int threads, int most,
                          bool spare_core);

/* Put the calling thread, which is thread `thread` of the step, where it belongs. A system that refuses is obeyed. */
void pf_cores_settle(const pf_placement *placement, int thread);

/* What `pf_cores_settle` changed for the calling thread, undone. */
void pf_cores_release(const pf_placement *placement);

#endif
