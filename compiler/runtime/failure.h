/* failure.h: the one record of what went wrong; every function that can fail returns its status. */
#ifndef POCKFARM_FAILURE_H
#define POCKFARM_FAILURE_H

#include "pockfarm_step.h"

/* Keep the failure and return its status. */
pf_status pf_fail(pf_status status, const char *code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Say of the failure at which step of training it happened. */
void pf_failed_at(int64_t step);

/* "[8, 3, 224, 224]" into `text`, cut to fit; returns `text`. */
const char *pf_shape_text(char *text, size_t size, const int64_t *shape, int rank);

#define PF_TRY(expression)                       \
    do {                                         \
        pf_status try_status = (expression);     \
        if (try_status != PF_OK) return try_status; \
    } while (0)

#endif
