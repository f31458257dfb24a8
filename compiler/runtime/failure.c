#include "failure.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Each thread has its own: one that fails in a parallel loop does not write over another. Made when it first fails, and shared
 * where there is no memory for one: thread-local data of a library that is loaded late would end the process there. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;
static pf_error shared;

static void make_key(void) { has_key = pthread_key_create(&key, free) == 0; }

static pf_error *last_error(void) {
    pthread_once(&once, make_key);
    pf_error *own = has_key ? pthread_getspecific(key) : NULL;
    if (own || !has_key) return own ? own : &shared;
    own = calloc(1, sizeof *own);
    if (own && pthread_setspecific(key, own) == 0) return own;
    free(own);
    return &shared;
}

const pf_error *pf_last_error(void) { return last_error(); }

pf_status pf_fail(pf_status status, const char *code, const char *format, ...) {
    va_list arguments;
    pf_error *error = last_error();
    error->status = status;
    error->code = code;
    error->step = 0;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return status;
}

void pf_failed_at(int64_t step) { last_error()->step = step; }

const char *pf_shape_text(char *text, size_t size, const int64_t *shape, int rank) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int axis = 0; axis < rank && used + 24 < size; axis++)
        used += (size_t)snprintf(text + used, size - used, axis ? ", %" PRId64 : "%" PRId64, shape[axis]);
    snprintf(text + used, size - used, "]");
    return text;
}
