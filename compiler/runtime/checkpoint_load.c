#include "checkpoint_load.h"

#include <sys/mman.h>
#include <unistd.h>

#include "failure.h"
#include "files.h"
#include "finite.h"
#include "layout.h"
#include "threads.h"

enum { CHUNK_BYTES = 256 << 10 };

/* A run of a tensor's elements in file order: a box of it if memory's layout is another. */
typedef struct {
    const pf_state *state;
    uint64_t file_offset;
    int64_t first, count;
} chunk;

static pf_status read_chunk(const pf_checkpoint_tensors *tensors, const chunk *part, void *to) {
    size_t item_bytes = pf_item_bytes(part->state->dtype);
    PF_TRY(pf_read_at(PF_WEIGHTS, tensors->path, tensors->descriptor, to, (size_t)part->count * item_bytes,
                      part->file_offset + (uint64_t)part->first * item_bytes));
    if (part->state->dtype != PF_F32 || pf_all_finite(to, part->count)) return PF_OK;
    /* What hides scores is -inf: a constant may be infinite. */
    if (part->state->role == PF_CONSTANT && !pf_any_nan(to, part->count)) return PF_OK;
    return pf_fail(PF_WEIGHTS, "weights.not_finite", "%s: tensor '%s' holds NaN or Inf", tensors->path,
                   part->state->file_name);
}

static pf_status load_chunk(const pf_checkpoint_tensors *tensors, const chunk *part) {
    _Alignas(64) unsigned char staging[CHUNK_BYTES];
    const pf_state *state = part->state;
    unsigned char *memory = tensors->memory + state->offset;
    if (!state->permuted) return read_chunk(tensors, part, memory + (size_t)part->first * pf_item_bytes(state->dtype));
    PF_TRY(read_chunk(tensors, part, staging));
    pf_box_scatter(state, part->first, part->count, staging, memory);
    return PF_OK;
}

static int64_t chunk_elements(const pf_state *state, int64_t first) {
    int64_t most = (int64_t)(CHUNK_BYTES / pf_item_bytes(state->dtype)), left = state->count - first;
    if (state->permuted) return pf_box_elements(state, first, most);
    return left < most ? left : most;
}

/* Frozen weights lie in the bundle's file as they lie in memory, side by side: pages of the file take the place of the
 * pages of the plan, and what the system needs elsewhere it drops and reads again. Another file, or larger pages: false,
 * and they are read like the rest. */
static pf_status map_frozen(const pf_checkpoint_tensors *tensors, uint32_t first, uint32_t *end) {
    const pf_state *states = pf_image_data.states;
    uint64_t bytes = 0, page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t from = tensors->data_offset + (uint64_t)tensors->begins[first];
    for (*end = first; *end < pf_image_data.state_count; ++*end) {
        const pf_state *state = &states[*end];
        if (state->dtype != PF_I8 || state->permuted || tensors->begins[*end] < 0 ||
            tensors->data_offset + (uint64_t)tensors->begins[*end] != from + bytes || state->offset != states[first].offset + bytes)
            break;
        bytes += (uint64_t)state->count;
    }
    unsigned char *memory = tensors->memory + states[first].offset;
    uint64_t mapped = bytes - bytes % page;
    if (!mapped || from % page || (uintptr_t)memory % page ||
        mmap(memory, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, tensors->descriptor, (off_t)from) == MAP_FAILED) {
        *end = first;
        return PF_OK;
    }
    return pf_read_at(PF_WEIGHTS, tensors->path, tensors->descriptor, memory + mapped, (size_t)(bytes - mapped), from + mapped);
}

/* Maps what can be mapped, once: those states are not in `begins` any more. */
static pf_status map_all(const pf_checkpoint_tensors *tensors) {
    for (uint32_t i = 0, end; i < pf_image_data.state_count; i = end > i ? end : i + 1) {
        end = i;
        if (pf_image_data.states[i].dtype != PF_I8 || tensors->begins[i] < 0) continue;
        PF_TRY(map_frozen(tensors, i, &end));
        for (uint32_t k = i; k < end; k++) tensors->mapped[k] = true;
    }
    return PF_OK;
}

/* Chunks task, task + tasks, task + 2 tasks ... of all tensors. */
static pf_status load_share(const pf_checkpoint_tensors *tensors, int task, int tasks) {
    int64_t number = 0;
    for (uint32_t i = 0; i < pf_image_data.state_count; i++) {
        const pf_state *state = &pf_image_data.states[i];
        if (tensors->begins[i] < 0 || tensors->mapped[i]) continue;
        uint64_t offset = tensors->data_offset + (uint64_t)tensors->begins[i];
        for (int64_t first = 0, count; first < state->count; first += count, number++) {
            count = chunk_elements(state, first);
            if (number % tasks == task) PF_TRY(load_chunk(tensors, &(chunk){state, offset, first, count}));
        }
    }
    return PF_OK;
}

static int load_task(int task, pf_parallel_env *env, void *closure) {
    return load_share(closure, task, env->num_task) != PF_OK;
}

pf_status pf_checkpoint_load(const pf_checkpoint_tensors *tensors) {
    PF_TRY(map_all(tensors));
    if (pf_threads_run(load_task, (void *)tensors, 0) == 0) return PF_OK;
    return load_share(tensors, 0, 1); /* again, alone and in order: the same failure is told whatever the threads did */
}
