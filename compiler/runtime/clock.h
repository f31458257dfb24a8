/* clock.h: how time is measured here. */
#ifndef POCKFARM_CLOCK_H
#define POCKFARM_CLOCK_H

/* Monotonic time in microseconds. */
double pf_now_us(void);

#endif
