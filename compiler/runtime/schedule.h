/* schedule.h: the learning rate of each step of a run. */
#ifndef POCKFARM_SCHEDULE_H
#define POCKFARM_SCHEDULE_H

#include <stdint.h>

typedef enum { PF_RATE_CONSTANT, PF_RATE_COSINE, PF_RATE_LINEAR } pf_schedule_kind;

/* As `get_constant_schedule_with_warmup`, `get_cosine_schedule_with_warmup` and `get_linear_schedule_with_warmup` of
 * transformers 5 define them; `final_ratio` is their `min_lr_rate` and LinearLR's `end_factor`. */
typedef struct {
    pf_schedule_kind kind;
    int64_t warmup_steps; /* the rate rises from 0 in as many steps */
    int64_t steps;        /* done when the rate is the final one, which it then keeps; warm-up counts */
    double final_ratio;   /* 0 .. 1, of the learning rate */
} pf_schedule;

/* The learning rate of the step after `done` steps, those of earlier runs included. */
double pf_scheduled_rate(const pf_schedule *schedule, double learning_rate, int64_t done);

#endif
