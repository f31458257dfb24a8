#include "run_position.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"

enum { VERSION = 1, MOST_STEPS = 1000000000 };

void pf_position_tell(const pf_run_position *position, pf_unfinished *unfinished) {
    snprintf(unfinished->position, sizeof unfinished->position, "%d %" PRId64 " %d %.17g %" PRId64 " %.17g %.17g %" PRId64, VERSION,
             position->done, position->explosion.high, position->explosion.start, position->best_step, position->best_loss,
             position->bar, position->waited);
}

static bool take_integer(const char **text, int64_t least, int64_t most, int64_t *value) {
    char *end;
    *value = strtoll(*text, &end, 10);
    bool good = end != *text && *value >= least && *value <= most;
    *text = end;
    return good;
}

static bool take_number(const char **text, double *value) {
    char *end;
    *value = strtod(*text, &end);
    bool good = end != *text && isfinite(*value);
    *text = end;
    return good;
}

pf_status pf_position_read(pf_run_position *position, const pf_unfinished *unfinished, const char *path, const char *key) {
    const char *text = unfinished->position;
    int64_t version, high;
    if (!*text) return pf_fail(PF_WEIGHTS, "checkpoint.format", "%s: not the checkpoint of an unfinished run", path);
    if (strcmp(unfinished->key, key) != 0)
        return pf_fail(PF_WEIGHTS, "checkpoint.key", "%s: of another run: its key is '%.128s', this run's '%.128s'", path,
                       unfinished->key, key);
    memset(position, 0, sizeof *position);
    if (take_integer(&text, VERSION, VERSION, &version) && take_integer(&text, 1, MOST_STEPS, &position->done) &&
        take_integer(&text, 0, UINT16_MAX, &high) && take_number(&text, &position->explosion.start) &&
        take_integer(&text, 0, position->done, &position->best_step) && take_number(&text, &position->best_loss) &&
        take_number(&text, &position->bar) && take_integer(&text, 0, position->done, &position->waited) && !*text) {
        position->explosion.seen = position->done;
        position->explosion.high = (uint16_t)high;
        return PF_OK;
    }
    return pf_fail(PF_WEIGHTS, "checkpoint.format", "%s: where the run stands cannot be read: '%.200s'", path,
                   unfinished->position);
}
