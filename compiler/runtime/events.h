/* events.h: JSON Lines on stdout. One line is begun, filled and ended; keys are ours, values are escaped. */
#ifndef POCKFARM_EVENTS_H
#define POCKFARM_EVENTS_H

#include <stdint.h>

void pf_event(const char *name);
void pf_event_end(void);
void pf_text(const char *key, const char *value);
void pf_integer(const char *key, int64_t value);
void pf_number(const char *key, double value); /* null if not finite; 9 significant digits */
void pf_exact(const char *key, double value);  /* the same with 17, which are the value: for what a reader compares */
void pf_object(const char *key);               /* key NULL inside an array */
void pf_object_end(void);
void pf_array(const char *key);
void pf_array_end(void);
void pf_element(int64_t value); /* of an array */

/* Write `count` bytes of `text` as the inside of a JSON string with `put`; bytes that are not UTF-8 become "?". */
void pf_escape(const char *text, void (*put)(void *sink, const char *bytes, uint64_t count), void *sink);

#endif
