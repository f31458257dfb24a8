#include "failure.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* Each thread has its own: one that fails in a parallel loop does not write over another. */
static _Thread_local pf_error last_error;

const pf_error *pf_last_error(void) { return &last_error; }

pf_status pf_fail(pf_status status, const char *code, const char *format, ...) {
    va_list arguments;
    last_error.status = status;
    last_error.code = code;
    last_error.step = 0;
    va_start(arguments, format);
    vsnprintf(last_error.message, sizeof last_error.message, format, arguments);
    va_end(arguments);
    return status;
}

void pf_failed_at(int64_t step) { last_error.step = step; }

const char *pf_shape_text(char *text, size_t size, const int64_t *shape, int rank) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int axis = 0; axis < rank && used + 24 < size; axis++)
        used += (size_t)snprintf(text + used, size - used, axis ? ", %" PRId64 : "%" PRId64, shape[axis]);
    snprintf(text + used, size - used, "]");
    return text;
}
