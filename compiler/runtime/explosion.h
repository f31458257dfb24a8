/* explosion.h: whether a training run is beyond hope although its losses are still numbers. */
#ifndef POCKFARM_EXPLOSION_H
#define POCKFARM_EXPLOSION_H

#include <stdbool.h>
#include <stdint.h>

#define PF_EXPLOSION_FACTOR 100.0

/* Losses explode when half of the last 16 steps lie above `factor` times where the run began. It began at its first loss; a
 * mean of fewer than 16 errors (mse, l1, huber) may be near 0 by luck, so there it is the largest of the first steps that hold
 * 16, eight at most, and of eight where the graph computes its loss; at 1 if that is less. So neither noise nor a start near 0
 * is an explosion, and a rise that goes on, or stays, is one. */
typedef struct {
    double factor; /* 0: never */
    double start;  /* where the run began: all zero is a new run */
    int64_t seen;
    uint16_t high; /* of the last 16 steps: a bit for each that lies above */
} pf_explosion;

/* Take the finite loss of one more step; true if the losses have exploded. */
bool pf_explodes(pf_explosion *explosion, double loss);

#endif
