#include "scan.h"

static void skip_space(pf_scan *scan) {
    while (scan->next < scan->end && (*scan->next == ' ' || *scan->next == '\n' || *scan->next == '\t' || *scan->next == '\r'))
        scan->next++;
}

bool pf_scan_maybe(pf_scan *scan, char character) {
    skip_space(scan);
    if (scan->next == scan->end || *scan->next != character) return false;
    scan->next++;
    return true;
}

bool pf_scan_expect(pf_scan *scan, char character) { return pf_scan_maybe(scan, character); }

bool pf_scan_finished(pf_scan *scan) {
    skip_space(scan);
    return scan->next == scan->end;
}

static bool hex4(pf_scan *scan, uint32_t *code) {
    *code = 0;
    if (scan->end - scan->next < 4) return false;
    for (int i = 0; i < 4; i++) {
        char c = *scan->next++;
        uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : (c | 32) >= 'a' && (c | 32) <= 'f'
                       ? (uint32_t)((c | 32) - 'a' + 10) : 16;
        if (digit == 16) return false;
        *code = *code << 4 | digit;
    }
    return true;
}

static bool unicode(pf_scan *scan, uint32_t *code) {
    uint32_t low;
    if (!hex4(scan, code) || *code == 0) return false;
    if (*code < 0xD800 || *code > 0xDFFF) return true;
    if (*code > 0xDBFF || scan->end - scan->next < 6 || scan->next[0] != '\\' || scan->next[1] != 'u') return false;
    scan->next += 2;
    if (!hex4(scan, &low) || low < 0xDC00 || low > 0xDFFF) return false;
    *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    return true;
}

static size_t encode_utf8(uint32_t code, char *out) {
    if (code < 0x80) return out[0] = (char)code, 1;
    if (code < 0x800) return out[0] = (char)(0xC0 | code >> 6), out[1] = (char)(0x80 | (code & 63)), 2;
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12), out[1] = (char)(0x80 | (code >> 6 & 63)), out[2] = (char)(0x80 | (code & 63));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18), out[1] = (char)(0x80 | (code >> 12 & 63));
    out[2] = (char)(0x80 | (code >> 6 & 63)), out[3] = (char)(0x80 | (code & 63));
    return 4;
}

/* One character after a backslash; its length in `out`, or 0 if malformed. */
static size_t escape(pf_scan *scan, char *out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    uint32_t code;
    if (scan->next == scan->end) return 0;
    char name = *scan->next++;
    if (name == 'u') return unicode(scan, &code) ? encode_utf8(code, out) : 0;
    for (int i = 0; names[i]; i++)
        if (names[i] == name) return out[0] = values[i], 1;
    return 0;
}

bool pf_scan_string(pf_scan *scan, char *text, size_t size) {
    size_t used = 0;
    if (!pf_scan_expect(scan, '"')) return false;
    while (scan->next < scan->end) {
        char c = *scan->next++;
        if (c == '"') return text[used] = 0, true;
        if ((unsigned char)c < 0x20 || used + 5 > size) return false;
        size_t length = 1;
        if (c == '\\') length = escape(scan, text + used);
        else text[used] = c;
        if (length == 0) return false;
        used += length;
    }
    return false;
}

bool pf_scan_integer(pf_scan *scan, int64_t *value) {
    const char *start;
    *value = 0;
    skip_space(scan);
    for (start = scan->next; scan->next < scan->end && *scan->next >= '0' && *scan->next <= '9'; scan->next++) {
        if (*value > (INT64_MAX - 9) / 10) return false;
        *value = *value * 10 + (*scan->next - '0');
    }
    return scan->next > start && (*start != '0' || scan->next == start + 1);
}
