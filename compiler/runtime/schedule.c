#include "schedule.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

/* What share of the way from the full rate to the final one is left. */
static double left_of(const pf_schedule *schedule, int64_t done) {
    int64_t decay = schedule->steps - schedule->warmup_steps, passed = done - schedule->warmup_steps;
    if (passed >= decay) return 0.0;
    double progress = (double)passed / (double)decay;
    return schedule->kind == PF_RATE_LINEAR ? 1.0 - progress : 0.5 * (1.0 + cos(PI * progress));
}

double pf_scheduled_rate(const pf_schedule *schedule, double learning_rate, int64_t done) {
    if (done < schedule->warmup_steps) return learning_rate * ((double)done / (double)schedule->warmup_steps);
    if (schedule->kind == PF_RATE_CONSTANT) return learning_rate;
    return learning_rate * (schedule->final_ratio + (1.0 - schedule->final_ratio) * left_of(schedule, done));
}
