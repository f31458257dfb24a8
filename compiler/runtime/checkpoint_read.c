/* checkpoint_read.c: the safetensors header is hostile until checked; no byte of a tensor moves before all of it is. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint.h"
#include "checkpoint_load.h"
#include "failure.h"
#include "files.h"
#include "scan.h"

enum { MAX_HEADER_BYTES = 16 << 20, MIN_ENTRY_BYTES = 32, MAX_NAME_BYTES = 2048, MAX_FILE_RANK = 32 };

typedef struct {
    int64_t begin, end;
    uint64_t name_hash;
} entry;

typedef struct {
    char dtype[16];
    int64_t shape[MAX_FILE_RANK];
    int rank;
    int64_t begin, end;
} description;

/* One open checkpoint: header text, entries and where each state tensor is lie in one temporary mapping. */
typedef struct {
    const char *path;
    int descriptor;
    uint64_t file_bytes, data_offset;
    size_t scratch_bytes;
    pf_scan scan;
    entry *entries;
    size_t entry_count, entry_room;
    int64_t *state_begin; /* -1: not in this file */
    bool *mapped;         /* whose pages are the file's own */
    pf_match *match;
    pf_unfinished *unfinished;
    char channels[32]; /* of its optimizer state, as its metadata says */
    char name[MAX_NAME_BYTES], text[MAX_NAME_BYTES];
} reader;

static pf_status malformed(const reader *file, const char *what) {
    return pf_fail(PF_WEIGHTS, "weights.format", "%s: not a valid safetensors file: %s", file->path, what);
}

static pf_status allocate(reader *file, size_t header_bytes) {
    file->entry_room = header_bytes / MIN_ENTRY_BYTES + 1;
    size_t state_bytes = pf_image_data.state_count * sizeof(int64_t);
    size_t mapped_bytes = pf_image_data.state_count * sizeof(bool);
    file->scratch_bytes = file->entry_room * sizeof(entry) + state_bytes + mapped_bytes + header_bytes;
    void *scratch = mmap(NULL, file->scratch_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (scratch == MAP_FAILED)
        return pf_fail(PF_LIMITS, "limits.memory", "%s: no memory for its header of %zu bytes", file->path, header_bytes);
    file->entries = scratch;
    file->state_begin = (int64_t *)(file->entries + file->entry_room);
    memset(file->state_begin, 0xFF, state_bytes);
    file->mapped = (bool *)(file->state_begin + pf_image_data.state_count);
    file->scan.next = (const char *)(file->mapped + pf_image_data.state_count);
    file->scan.end = file->scan.next + header_bytes;
    return PF_OK;
}

static pf_status read_header(reader *file) {
    unsigned char start[8];
    uint64_t header_bytes = 0;
    if (file->file_bytes < 8) return malformed(file, "it is shorter than 8 bytes");
    PF_TRY(pf_read_at(PF_WEIGHTS, file->path, file->descriptor, start, 8, 0));
    for (int i = 7; i >= 0; i--) header_bytes = header_bytes << 8 | start[i];
    if (header_bytes > file->file_bytes - 8) return malformed(file, "its header is longer than the file (cut?)");
    if (header_bytes > MAX_HEADER_BYTES) return malformed(file, "its header is longer than 16 MiB");
    PF_TRY(allocate(file, (size_t)header_bytes));
    file->data_offset = 8 + header_bytes;
    return pf_read_at(PF_WEIGHTS, file->path, file->descriptor, (void *)file->scan.next, (size_t)header_bytes, 8);
}

static bool scan_shape(pf_scan *scan, description *tensor) {
    tensor->rank = 0;
    if (!pf_scan_expect(scan, '[')) return false;
    if (pf_scan_maybe(scan, ']')) return true;
    do {
        if (tensor->rank == MAX_FILE_RANK || !pf_scan_integer(scan, &tensor->shape[tensor->rank++])) return false;
    } while (pf_scan_maybe(scan, ','));
    return pf_scan_expect(scan, ']');
}

static bool scan_offsets(pf_scan *scan, description *tensor) {
    return pf_scan_expect(scan, '[') && pf_scan_integer(scan, &tensor->begin) && pf_scan_expect(scan, ',') &&
           pf_scan_integer(scan, &tensor->end) && pf_scan_expect(scan, ']');
}

static bool scan_description(pf_scan *scan, description *tensor) {
    int seen = 0, bit;
    char key[16];
    if (!pf_scan_expect(scan, '{')) return false;
    do {
        if (!pf_scan_string(scan, key, sizeof key) || !pf_scan_expect(scan, ':')) return false;
        bool good = false;
        if (bit = 1, !strcmp(key, "dtype")) good = pf_scan_string(scan, tensor->dtype, sizeof tensor->dtype);
        else if (bit = 2, !strcmp(key, "shape")) good = scan_shape(scan, tensor);
        else if (bit = 4, !strcmp(key, "data_offsets")) good = scan_offsets(scan, tensor);
        if (!good || (seen & bit)) return false;
        seen |= bit;
    } while (pf_scan_maybe(scan, ','));
    return seen == 7 && pf_scan_expect(scan, '}');
}

/* One of the numbers that the metadata may hold, as text. */
static pf_status scan_count(const reader *file, int64_t *count) {
    pf_scan number = {file->text, file->text + strlen(file->text)};
    if (pf_scan_integer(&number, count) && pf_scan_finished(&number)) return PF_OK;
    return malformed(file, strcmp(file->name, "step") == 0 ? "its metadata `step` is not a whole number"
                                                           : "its metadata `optimizer_start` is not a whole number");
}

static pf_status scan_metadata(reader *file, pf_progress *progress) {
    pf_scan *scan = &file->scan;
    if (!pf_scan_expect(scan, '{')) return malformed(file, "__metadata__ is not an object");
    if (pf_scan_maybe(scan, '}')) return PF_OK;
    do {
        if (!pf_scan_string(scan, file->name, sizeof file->name) || !pf_scan_expect(scan, ':') ||
            !pf_scan_string(scan, file->text, sizeof file->text))
            return malformed(file, "__metadata__ does not map strings to strings (of at most 2 KB)");
        if (strcmp(file->name, "step") == 0) PF_TRY(scan_count(file, &progress->steps));
        if (strcmp(file->name, "channels") == 0) snprintf(file->channels, sizeof file->channels, "%s", file->text);
        if (strcmp(file->name, "optimizer_start") == 0) PF_TRY(scan_count(file, &progress->optimizer_start));
        if (strcmp(file->name, "key") == 0) snprintf(file->unfinished->key, PF_KEY_BYTES, "%s", file->text);
        if (strcmp(file->name, "position") == 0) snprintf(file->unfinished->position, PF_POSITION_BYTES, "%s", file->text);
    } while (pf_scan_maybe(scan, ','));
    return pf_scan_expect(scan, '}') ? PF_OK : malformed(file, "__metadata__ is not closed");
}

static const char *file_dtype(pf_dtype dtype) {
    static const char *const names[] = {"F32", "I64", "I32", "BOOL", "F16", "BF16", "I8"};
    return names[dtype];
}

static bool same_shape(const description *tensor, const pf_state *state) {
    if (tensor->rank != state->file_rank) return false;
    for (int axis = 0; axis < tensor->rank; axis++)
        if (tensor->shape[axis] != state->file_shape[axis]) return false;
    return true;
}

/* The tensor is one of ours: it must be exactly what the build expects. */
static pf_status check_state(const reader *file, const description *tensor, const pf_state *state) {
    char have[160], want[160];
    if (strcmp(tensor->dtype, file_dtype(state->dtype)) != 0)
        return pf_fail(PF_WEIGHTS, "weights.dtype", "%s: tensor '%s' is %s, this build needs %s", file->path, state->file_name,
                       tensor->dtype, file_dtype(state->dtype));
    if (!same_shape(tensor, state))
        return pf_fail(PF_WEIGHTS, "weights.shape", "%s: tensor '%s' has shape %s, this build needs %s%s", file->path,
                       state->file_name, pf_shape_text(have, sizeof have, tensor->shape, tensor->rank),
                       pf_shape_text(want, sizeof want, state->file_shape, state->file_rank),
                       state->role == PF_OPTIMIZER ? "; `export` writes a checkpoint without optimizer state" : "");
    if (tensor->end - tensor->begin != (int64_t)(state->count * (int64_t)pf_item_bytes(state->dtype)))
        return pf_fail(PF_WEIGHTS, "weights.format", "%s: tensor '%s' has %" PRId64 " bytes, its shape needs %" PRId64,
                       file->path, state->file_name, tensor->end - tensor->begin,
                       state->count * (int64_t)pf_item_bytes(state->dtype));
    return PF_OK;
}

static uint64_t hash(const char *text) {
    uint64_t value = 14695981039346656037u;
    while (*text) value = (value ^ (unsigned char)*text++) * 1099511628211u;
    return value;
}

/* Names come from whoever wrote the file, and are shown to people. */
static void copy_name(char *to, size_t size, const char *from) {
    size_t i = 0;
    for (; i + 1 < size && from[i]; i++) to[i] = (unsigned char)from[i] < 0x20 || from[i] == 0x7F ? '?' : from[i];
    to[i] = 0;
}

static void ignore_tensor(pf_match *match, const char *name) {
    if (match->ignored < PF_NAMED) copy_name(match->ignored_names[match->ignored], sizeof match->ignored_names[0], name);
    match->ignored++;
}

static bool is_parameter(const pf_state *state) { return state->role == PF_PARAMETER && !state->copy; }

static pf_status scan_tensor(reader *file) {
    description tensor = {0};
    bool is_ours = false;
    const pf_image *image = &pf_image_data;
    if (!scan_description(&file->scan, &tensor))
        return pf_fail(PF_WEIGHTS, "weights.format", "%s: not a valid safetensors file: entry '%s' is malformed", file->path,
                       file->name);
    if (tensor.begin > tensor.end || (uint64_t)tensor.end > file->file_bytes - file->data_offset)
        return pf_fail(PF_WEIGHTS, "weights.format", "%s: tensor '%s' lies outside the file (cut?)", file->path, file->name);
    if (file->entry_count == file->entry_room) return malformed(file, "its header is inconsistent");
    file->entries[file->entry_count++] = (entry){tensor.begin, tensor.end, hash(file->name)};
    for (uint32_t i = 0; i < image->state_count; i++) {
        if (strcmp(image->states[i].file_name, file->name) != 0) continue;
        PF_TRY(check_state(file, &tensor, &image->states[i]));
        file->state_begin[i] = tensor.begin;
        file->match->taken += is_parameter(&image->states[i]);
        is_ours = true;
    }
    if (!is_ours && strcmp(file->name, PF_BEST_NAME) == 0) {
        file->unfinished->best_offset = file->data_offset + (uint64_t)tensor.begin;
        file->unfinished->best_bytes = (uint64_t)(tensor.end - tensor.begin);
    } else if (!is_ours) {
        ignore_tensor(file->match, file->name);
    }
    return PF_OK;
}

static pf_status scan_header(reader *file, pf_progress *progress) {
    bool metadata = false;
    if (!pf_scan_expect(&file->scan, '{')) return malformed(file, "its header is not a JSON object");
    if (!pf_scan_maybe(&file->scan, '}')) {
        do {
            if (!pf_scan_string(&file->scan, file->name, sizeof file->name) || !pf_scan_expect(&file->scan, ':'))
                return malformed(file, "its header is not JSON (or a name is longer than 2 KB)");
            bool is_metadata = strcmp(file->name, "__metadata__") == 0;
            if (is_metadata && metadata) return malformed(file, "it has two __metadata__ entries");
            metadata |= is_metadata;
            PF_TRY(is_metadata ? scan_metadata(file, progress) : scan_tensor(file));
        } while (pf_scan_maybe(&file->scan, ','));
        if (!pf_scan_expect(&file->scan, '}')) return malformed(file, "its header is not closed");
    }
    return pf_scan_finished(&file->scan) ? PF_OK : malformed(file, "there is text behind its header");
}

static int by_name(const void *a, const void *b) {
    uint64_t x = ((const entry *)a)->name_hash, y = ((const entry *)b)->name_hash;
    return (x > y) - (x < y);
}

static int by_place(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static pf_status check_entries(reader *file) {
    int64_t place = 0;
    qsort(file->entries, file->entry_count, sizeof(entry), by_name);
    for (size_t i = 1; i < file->entry_count; i++)
        if (file->entries[i].name_hash == file->entries[i - 1].name_hash) return malformed(file, "a tensor is there twice");
    qsort(file->entries, file->entry_count, sizeof(entry), by_place);
    for (size_t i = 0; i < file->entry_count; i++) {
        if (file->entries[i].begin < place) return malformed(file, "tensors overlap");
        if (file->entries[i].begin > place) return malformed(file, "there is a gap between tensors");
        place = file->entries[i].end;
    }
    if ((uint64_t)place != file->file_bytes - file->data_offset) return malformed(file, "bytes are left after the last tensor");
    return PF_OK;
}

/* Weights that share nothing with this build are of another model: going on would silently use the bundle's own. */
static pf_status check_match(const reader *file) {
    char have[300] = "no tensors that could be", need[300] = "";
    size_t used = 0;
    for (uint32_t i = 0, named = 0; i < pf_image_data.state_count; i++) {
        const pf_state *state = &pf_image_data.states[i];
        file->match->parameters += is_parameter(state);
        if (!is_parameter(state) || named == PF_NAMED) continue;
        used += (size_t)snprintf(need + used, sizeof need - used, "%s'%.80s'", named++ ? ", " : "", state->file_name);
    }
    if (file->match->taken > 0) return PF_OK;
    used = 0;
    for (int i = 0; i < PF_NAMED && i < file->match->ignored; i++)
        used += (size_t)snprintf(have + used, sizeof have - used, "%s'%s'", i ? ", " : "", file->match->ignored_names[i]);
    return pf_fail(PF_WEIGHTS, "weights.unmatched", "%s: it has 0 of %" PRId64 " parameters of this build: it has %s, the build "
                   "needs %s; are these the weights of another model?", file->path, file->match->parameters, have, need);
}

static bool has_optimizer(const reader *file) {
    for (uint32_t i = 0; i < pf_image_data.state_count; i++)
        if (pf_image_data.states[i].role == PF_OPTIMIZER && file->state_begin[i] >= 0) return true;
    return false;
}

/* State of other channels fits by name and shape, and by nothing else. */
static pf_status check_channels(const reader *file) {
    if (!has_optimizer(file) || strcmp(file->channels, pf_image_data.channels) == 0) return PF_OK;
    return pf_fail(PF_WEIGHTS, "weights.channels", "%s: its optimizer state is of other channels than this build trains; "
                   "start from exported weights, which have none", file->path);
}

static pf_status load_all(reader *file, unsigned char *memory, bool *found, pf_progress *progress) {
    pf_progress own = {-1, 0};
    PF_TRY(read_header(file));
    PF_TRY(scan_header(file, &own));
    if (own.optimizer_start > 0 && own.optimizer_start > own.steps) return malformed(file, "its optimizer starts after its last step");
    PF_TRY(check_entries(file));
    PF_TRY(check_match(file));
    PF_TRY(check_channels(file));
    pf_checkpoint_tensors tensors = {file->path, file->descriptor, memory, file->data_offset, file->state_begin, file->mapped};
    PF_TRY(pf_checkpoint_load(&tensors));
    for (uint32_t i = 0; i < pf_image_data.state_count; i++) found[i] |= file->state_begin[i] >= 0;
    if (own.steps >= 0) progress->steps = own.steps;
    if (has_optimizer(file)) progress->optimizer_start = own.optimizer_start;
    return PF_OK;
}

pf_status pf_checkpoint_read(unsigned char *memory, const char *path, bool *found, pf_progress *progress, pf_match *match,
                             pf_unfinished *unfinished) {
    reader file;
    pf_status status;
    memset(&file, 0, sizeof file);
    memset(match, 0, sizeof *match);
    memset(unfinished, 0, sizeof *unfinished);
    file.path = path;
    file.match = match;
    file.unfinished = unfinished;
    PF_TRY(pf_open_file(PF_WEIGHTS, path, &file.descriptor, &file.file_bytes));
    status = load_all(&file, memory, found, progress);
    if (file.scratch_bytes) munmap(file.entries, file.scratch_bytes);
    close(file.descriptor);
    return status;
}

static pf_status copy_best(int descriptor, const char *path, const pf_unfinished *unfinished, pf_new_file *file) {
    for (uint64_t done = 0; done < unfinished->best_bytes; done += PF_STAGING_BYTES) {
        uint64_t left = unfinished->best_bytes - done;
        size_t now = left < PF_STAGING_BYTES ? (size_t)left : PF_STAGING_BYTES;
        PF_TRY(pf_read_at(PF_WEIGHTS, path, descriptor, pf_staging, now, unfinished->best_offset + done));
        PF_TRY(pf_new_file_write(file, pf_staging, now));
    }
    return pf_new_file_commit(file);
}

pf_status pf_checkpoint_take_best(const char *path, const pf_unfinished *unfinished, const char *to) {
    pf_new_file file;
    int descriptor;
    uint64_t size;
    PF_TRY(pf_open_file(PF_WEIGHTS, path, &descriptor, &size));
    pf_status status = pf_new_file_open(&file, to);
    if (status == PF_OK) status = copy_best(descriptor, path, unfinished, &file);
    if (status != PF_OK) pf_new_file_discard(&file);
    close(descriptor);
    return status;
}
