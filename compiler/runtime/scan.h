/* scan.h: a strict JSON scanner over a byte range, for headers whose grammar is fixed. It never reads past the end,
 * never recurses and never allocates. Every function is false on malformed text. */
#ifndef POCKFARM_SCAN_H
#define POCKFARM_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *next, *end;
} pf_scan;

/* Take `character` after white space. `pf_scan_maybe` leaves it if it is another one. */
bool pf_scan_expect(pf_scan *scan, char character);
bool pf_scan_maybe(pf_scan *scan, char character);

/* A string, unescaped to UTF-8 and zero-terminated, of at most `size - 1` bytes; a zero byte inside is malformed. */
bool pf_scan_string(pf_scan *scan, char *text, size_t size);

/* A whole number 0 .. 2^63-1, without sign, fraction or exponent. */
bool pf_scan_integer(pf_scan *scan, int64_t *value);

/* Only white space is left. */
bool pf_scan_finished(pf_scan *scan);

#endif
