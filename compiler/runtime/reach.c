#include "reach.h"

#include <string.h>

#include "failure.h"

/* The open window that has these bytes for this use. */
static void *within(const pf_reachable *memory, uint64_t offset, uint64_t bytes, pf_access access) {
    for (int i = 0; i < memory->count; i++) {
        const pf_window *own = &memory->open[i];
        if (offset >= own->offset && offset + bytes <= own->offset + own->bytes && (own->access & access) == access)
            return (unsigned char *)own->address + (offset - own->offset);
    }
    return NULL;
}

static pf_status opened(pf_reachable *memory, pf_window *window) {
    if (memory->count == PF_MAX_WINDOWS) PF_TRY(pf_let_go(memory));
    PF_TRY(pf_device_map(memory->device, window->offset, window->bytes, window->access, &window->address));
    memory->open[memory->count++] = *window;
    return PF_OK;
}

void *pf_reach(pf_reachable *memory, uint64_t offset, uint64_t bytes, pf_access access) {
    if (offset == PF_NOWHERE) return NULL;
    if (memory->memory) return memory->memory + offset;
    void *known = within(memory, offset, bytes, access);
    if (known) return known;
    pf_window window = {offset, bytes, access, NULL};
    pf_status status = opened(memory, &window);
    if (status != PF_OK) memory->failed = status;
    return window.address;
}

pf_status pf_let_go(pf_reachable *memory) {
    pf_status status = memory->failed;
    for (int i = 0; i < memory->count; i++) {
        pf_status own = pf_device_unmap(memory->device, memory->open[i].address);
        if (status == PF_OK) status = own;
    }
    memory->count = 0;
    memory->failed = PF_OK;
    return status;
}

pf_status pf_put(pf_reachable *memory, uint64_t offset, const void *from, uint64_t bytes) {
    if (offset == PF_NOWHERE) return PF_OK;
    if (!memory->memory) return pf_device_upload(memory->device, offset, from, bytes);
    memcpy(memory->memory + offset, from, bytes);
    return PF_OK;
}

pf_status pf_clear(pf_reachable *memory, uint64_t offset, uint64_t bytes) {
    if (bytes == 0) return PF_OK;
    void *address = pf_reach(memory, offset, bytes, PF_WRITE);
    if (address) memset(address, 0, bytes);
    return memory->memory ? PF_OK : pf_let_go(memory);
}
