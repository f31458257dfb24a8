#include "npy.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "failure.h"
#include "files.h"
#include "finite.h"

enum { MAX_HEADER_BYTES = 8192 };
static const int64_t MAX_EXTENT = INT64_MAX / 100;

static pf_status bad_header(const pf_npy *file, const char *what) {
    return pf_fail(PF_DATA, "data.format", "%s: not a usable .npy file: %s; write it with numpy.save", file->path, what);
}

/* The text after `'key':` in the header's Python dict, or NULL unless the key is there exactly once. */
static const char *dict_value(const char *header, const char *key) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s'", key);
    const char *found = strstr(header, quoted);
    if (!found || strstr(found + 1, quoted)) return NULL;
    found += strlen(quoted);
    found += strspn(found, " ");
    if (*found != ':') return NULL;
    found++;
    return found + strspn(found, " ");
}

/* `'<f4'`: byte order, kind, bytes per element. */
static pf_status parse_dtype(pf_npy *file, const char *header) {
    const char *text = dict_value(header, "descr");
    if (!text || strlen(text) < 5 || text[0] != '\'' || text[4] != '\'' || text[3] < '1' || text[3] > '9')
        return bad_header(file, "its 'descr' is not a plain element type");
    char order = text[1], kind = text[2];
    int bytes = text[3] - '0';
    if (order == '>' && bytes > 1) return bad_header(file, "it is big-endian");
    if (!strchr("<|=>", order)) return bad_header(file, "its 'descr' has no byte order");
    file->kind = kind;
    file->item_bytes = bytes;
    bool known = (kind == 'f' && (bytes == 4 || bytes == 8)) || (kind == 'u' && bytes == 1) || (kind == 'b' && bytes == 1) ||
                 (kind == 'i' && (bytes == 4 || bytes == 8));
    if (!known)
        return pf_fail(PF_DATA, "data.dtype", "%s: elements are '%c%d'; use float32, float64, int64, int32, uint8 or bool",
                       file->path, kind, bytes);
    return PF_OK;
}

static pf_status parse_shape(pf_npy *file, const char *header) {
    const char *text = dict_value(header, "shape");
    file->rank = 0;
    file->sample_count = 1;
    if (!text || *text++ != '(') return bad_header(file, "its 'shape' is not a tuple");
    for (;;) {
        int64_t extent = 0;
        text += strspn(text, " ");
        if (*text == ')') return PF_OK;
        if (*text < '0' || *text > '9') return bad_header(file, "its 'shape' holds something other than sizes");
        for (; *text >= '0' && *text <= '9'; text++) {
            if (extent > MAX_EXTENT) return bad_header(file, "its 'shape' overflows");
            extent = extent * 10 + (*text - '0');
        }
        if (file->rank == PF_MAX_RANK) return bad_header(file, "it has more than 8 axes");
        if (file->rank > 0 && extent > 0 && file->sample_count > (INT64_MAX >> 4) / extent)
            return bad_header(file, "its 'shape' overflows");
        if (file->rank > 0) file->sample_count *= extent;
        file->shape[file->rank++] = extent;
        text += strspn(text, " ");
        if (*text == ',') text++;
        else if (*text != ')') return bad_header(file, "its 'shape' is not closed");
    }
}

static pf_status check_size(const pf_npy *file, uint64_t file_bytes) {
    uint64_t sample_bytes = (uint64_t)file->sample_count * (uint64_t)file->item_bytes;
    uint64_t have = file_bytes - file->data_offset;
    if (file->rank == 0) return bad_header(file, "it holds a scalar, not samples along the first axis");
    if (file->shape[0] == 0 || sample_bytes == 0) return pf_fail(PF_DATA, "data.empty", "%s: holds no samples", file->path);
    if (have % sample_bytes != 0 || have / sample_bytes != (uint64_t)file->shape[0])
        return pf_fail(PF_DATA, "data.truncated", "%s: its header says %" PRId64 " samples of %" PRIu64 " bytes, it holds %" PRIu64
                       " bytes; write it again", file->path, file->shape[0], sample_bytes, have);
    return PF_OK;
}

static pf_status read_header(pf_npy *file, uint64_t file_bytes, char *header) {
    unsigned char start[12];
    size_t start_bytes, header_bytes;
    if (file_bytes < sizeof start) return bad_header(file, "it is too short");
    PF_TRY(pf_read_at(PF_DATA, file->path, file->descriptor, start, sizeof start, 0));
    if (memcmp(start, "\x93NUMPY", 6) != 0) return bad_header(file, "it does not start with \\x93NUMPY");
    if (start[6] != 1 && start[6] != 2) return bad_header(file, "its format version is neither 1 nor 2");
    start_bytes = start[6] == 1 ? 10 : 12;
    header_bytes = (size_t)start[8] | (size_t)start[9] << 8;
    if (start[6] == 2) header_bytes |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
    if (header_bytes >= MAX_HEADER_BYTES || start_bytes + header_bytes > file_bytes)
        return bad_header(file, "its header is longer than the file or than 8191 bytes");
    PF_TRY(pf_read_at(PF_DATA, file->path, file->descriptor, header, header_bytes, start_bytes));
    header[header_bytes] = 0;
    if (strlen(header) != header_bytes) return bad_header(file, "its header holds a zero byte");
    file->data_offset = start_bytes + header_bytes;
    return PF_OK;
}

static pf_status parse_file(pf_npy *file, uint64_t file_bytes) {
    static char header[MAX_HEADER_BYTES];
    const char *order;
    PF_TRY(read_header(file, file_bytes, header));
    PF_TRY(parse_dtype(file, header));
    order = dict_value(header, "fortran_order");
    if (!order || strncmp(order, "False", 5) != 0)
        return bad_header(file, "it is in Fortran order (save numpy.ascontiguousarray(x))");
    PF_TRY(parse_shape(file, header));
    return check_size(file, file_bytes);
}

pf_status pf_npy_open(pf_npy *file, const char *path) {
    uint64_t file_bytes;
    pf_status status;
    file->path = path;
    file->infinite = false;
    PF_TRY(pf_open_file(PF_DATA, path, &file->descriptor, &file_bytes));
    status = parse_file(file, file_bytes);
    if (status != PF_OK) pf_npy_close(file);
    return status;
}

void pf_npy_close(pf_npy *file) {
    if (file->descriptor >= 0) close(file->descriptor);
    file->descriptor = -1;
}

bool pf_npy_converts(const pf_npy *file, pf_dtype to) {
    switch (to) {
    case PF_F32: return true;
    case PF_I64:
    case PF_I32: return file->kind != 'f';
    case PF_BOOL: return file->kind == 'b' || file->kind == 'u';
    case PF_F16:
    case PF_BF16:
    case PF_I8: break;
    }
    return false;
}

static double as_double(const pf_npy *file, const unsigned char *item) {
    float narrow;
    double wide;
    if (file->item_bytes == 4) return memcpy(&narrow, item, 4), (double)narrow;
    return memcpy(&wide, item, 8), wide;
}

static int64_t as_integer(const pf_npy *file, const unsigned char *item) {
    int32_t narrow;
    int64_t wide;
    if (file->item_bytes == 1) return *item;
    if (file->item_bytes == 4) return memcpy(&narrow, item, 4), narrow;
    return memcpy(&wide, item, 8), wide;
}

/* False if a float is not finite as f32 or an integer does not fit. */
static bool convert(const pf_npy *file, const unsigned char *item, pf_dtype to, void *out) {
    if (to == PF_F32) {
        float value = file->kind == 'f' ? (float)as_double(file, item) : (float)as_integer(file, item);
        memcpy(out, &value, sizeof value);
        return isfinite(value) || (file->infinite && !isnan(value));
    }
    int64_t value = as_integer(file, item);
    int32_t narrow = (int32_t)value;
    if (to == PF_I64) memcpy(out, &value, sizeof value);
    else if (to == PF_I32) memcpy(out, &narrow, sizeof narrow);
    else *(unsigned char *)out = value != 0;
    return to != PF_I32 || narrow == value;
}

static pf_status bad_value(const pf_npy *file, int64_t sample, int64_t element, pf_dtype to) {
    const char *what = to == PF_F32 ? "NaN, Inf or beyond float32" : "an integer beyond int32";
    return pf_fail(PF_DATA, to == PF_F32 ? "data.not_finite" : "data.range",
                   "%s: sample %" PRId64 ", element %" PRId64 " is %s; clean the data", file->path, sample, element, what);
}

static pf_status read_elements(const pf_npy *file, int64_t sample, int64_t element, int64_t count, void *to) {
    size_t item_bytes = (size_t)file->item_bytes;
    uint64_t offset = file->data_offset + (uint64_t)(sample * file->sample_count + element) * item_bytes;
    return pf_read_at(PF_DATA, file->path, file->descriptor, to, (size_t)count * item_bytes, offset);
}

/* Convert one after the other; names the first that does not fit. */
static pf_status convert_all(const pf_npy *file, int64_t sample, int64_t element, int64_t count, pf_dtype to,
                             const unsigned char *from, char *out) {
    size_t item_bytes = (size_t)file->item_bytes, out_bytes = pf_item_bytes(to);
    for (int64_t i = 0; i < count; i++)
        if (!convert(file, from + (size_t)i * item_bytes, to, out + (size_t)i * out_bytes))
            return bad_value(file, sample, element + i, to);
    return PF_OK;
}

/* Elements that need no conversion go straight to their place. */
static pf_status read_as_is(const pf_npy *file, int64_t sample, int64_t first, int64_t count, pf_dtype to, void *out) {
    PF_TRY(read_elements(file, sample, first, count, out));
    if (to != PF_F32 || pf_all_finite(out, count)) return PF_OK;
    return convert_all(file, sample, first, count, to, out, out);
}

static void bytes_to_floats(const unsigned char *from, int64_t count, char *out) {
    for (int64_t i = 0; i < count; i++) {
        float value = from[i];
        memcpy(out + 4 * i, &value, 4);
    }
}

static bool is_same(const pf_npy *file, pf_dtype to) {
    return (to == PF_F32 && file->kind == 'f' && file->item_bytes == 4) ||
           (to == PF_I64 && file->kind == 'i' && file->item_bytes == 8) ||
           (to == PF_I32 && file->kind == 'i' && file->item_bytes == 4);
}

pf_status pf_npy_read(const pf_npy *file, int64_t sample, int64_t first, int64_t count, pf_dtype to, void *out) {
    int64_t step = PF_STAGING_BYTES / file->item_bytes;
    if (is_same(file, to)) return read_as_is(file, sample, first, count, to, out);
    for (int64_t done = 0; done < count; done += step) {
        int64_t now = count - done < step ? count - done : step;
        char *place = (char *)out + (size_t)done * pf_item_bytes(to);
        PF_TRY(read_elements(file, sample, first + done, now, pf_staging));
        if (file->item_bytes == 1 && to == PF_F32) bytes_to_floats(pf_staging, now, place);
        else PF_TRY(convert_all(file, sample, first + done, now, to, pf_staging, place));
    }
    return PF_OK;
}
