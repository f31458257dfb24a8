/* reach.h: how the host comes to a step's memory: at once where the kernels run in it, else through windows, which are closed
 * before kernels run. */
#ifndef POCKFARM_REACH_H
#define POCKFARM_REACH_H

#include "device.h"

enum { PF_MAX_WINDOWS = PF_MAX_INPUTS + PF_MAX_LABELS + PF_MAX_TERMS + 8 };

/* Bytes of a step that are mapped. */
typedef struct {
    uint64_t offset, bytes;
    pf_access access;
    void *address;
} pf_window;

typedef struct {
    pf_device *device;
    unsigned char *memory; /* where the host reaches all of it at any time, or NULL */
    pf_window open[PF_MAX_WINDOWS];
    int count;
    pf_status failed; /* of a window that could not be opened: the next run says so */
} pf_reachable;

/* The bytes at an offset, for reading or writing until `pf_let_go`; NULL for PF_NOWHERE, and where the device fails. */
void *pf_reach(pf_reachable *memory, uint64_t offset, uint64_t bytes, pf_access access);

/* Close all windows; what was written through them is the device's now. */
pf_status pf_let_go(pf_reachable *memory);

/* Write a few bytes, or zeros. */
pf_status pf_put(pf_reachable *memory, uint64_t offset, const void *from, uint64_t bytes);
pf_status pf_clear(pf_reachable *memory, uint64_t offset, uint64_t bytes);

#endif
