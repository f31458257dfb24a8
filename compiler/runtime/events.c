#include "events.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char line[16384];
static size_t used;
static bool first_member;

static void flush(void) {
    for (size_t done = 0; done < used;) {
        ssize_t wrote = write(STDOUT_FILENO, line + done, used - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) _exit(5); /* nobody reads: there is no one to tell */
        done += (size_t)wrote;
    }
    used = 0;
}

static void put(void *sink, const char *bytes, uint64_t count) {
    (void)sink;
    for (uint64_t i = 0; i < count; i++) {
        if (used == sizeof line) flush();
        line[used++] = bytes[i];
    }
}

static void put_text(const char *text) { put(NULL, text, strlen(text)); }

/* Length of the UTF-8 sequence at `text`, or 0 if it is not one. */
static int utf8_length(const unsigned char *text) {
    int length = text[0] < 0x80 ? 1 : text[0] >= 0xC2 && text[0] < 0xE0 ? 2 : (text[0] & 0xF0) == 0xE0 ? 3
               : text[0] >= 0xF0 && text[0] < 0xF5 ? 4 : 0;
    for (int i = 1; i < length; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    if (text[0] == 0xE0 && text[1] < 0xA0) return 0;
    if (text[0] == 0xED && text[1] > 0x9F) return 0; /* surrogates */
    if (text[0] == 0xF0 && text[1] < 0x90) return 0;
    if (text[0] == 0xF4 && text[1] > 0x8F) return 0;
    return length;
}

void pf_escape(const char *text, void (*sink_put)(void *, const char *, uint64_t), void *sink) {
    char code[8];
    while (*text) {
        int length = utf8_length((const unsigned char *)text);
        if (*text == '"' || *text == '\\') {
            code[0] = '\\', code[1] = *text;
            sink_put(sink, code, 2);
        } else if ((unsigned char)*text < 0x20) {
            sink_put(sink, code, (uint64_t)snprintf(code, sizeof code, "\\u%04x", *text));
        } else if (length == 0) {
            sink_put(sink, "?", 1);
        } else {
            sink_put(sink, text, (uint64_t)length);
        }
        text += length ? length : 1;
    }
}

static void put_key(const char *key) {
    if (!first_member) put_text(",");
    first_member = false;
    if (!key) return;
    put_text("\"");
    put_text(key);
    put_text("\":");
}

void pf_event(const char *name) {
    put_text("{");
    first_member = true;
    pf_text("event", name);
}

void pf_event_end(void) {
    put_text("}\n");
    flush();
}

void pf_text(const char *key, const char *value) {
    put_key(key);
    put_text("\"");
    pf_escape(value, put, NULL);
    put_text("\"");
}

void pf_integer(const char *key, int64_t value) {
    char text[24];
    put_key(key);
    snprintf(text, sizeof text, "%" PRId64, value);
    put_text(text);
}

static void put_number(const char *key, double value, int digits) {
    char text[32];
    put_key(key);
    snprintf(text, sizeof text, "%.*g", digits, value);
    put_text(isfinite(value) ? text : "null");
}

void pf_number(const char *key, double value) { put_number(key, value, 9); }
void pf_exact(const char *key, double value) { put_number(key, value, 17); }

static void open_bracket(const char *key, const char *bracket) {
    put_key(key);
    put_text(bracket);
    first_member = true;
}

static void close_bracket(const char *bracket) {
    put_text(bracket);
    first_member = false;
}

void pf_object(const char *key) { open_bracket(key, "{"); }
void pf_object_end(void) { close_bracket("}"); }
void pf_array(const char *key) { open_bracket(key, "["); }
void pf_array_end(void) { close_bracket("]"); }
void pf_element(int64_t value) { pf_integer(NULL, value); }
