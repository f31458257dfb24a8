/* backend.c: the few functions that TVM's compiled kernels call. */
#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "threads.h"

const char *pf_kernel_message(void) { return *pf_threads_message() ? pf_threads_message() : "no message"; }

void pf_kernel_message_clear(void) { *pf_threads_message() = 0; }

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
    char *message = pf_threads_message();
    size_t used = (size_t)snprintf(message, PF_KERNEL_MESSAGE_BYTES, "%s: ", kind);
    for (int32_t part = 0; part < count && used < PF_KERNEL_MESSAGE_BYTES; part++)
        if (parts[part]) used += (size_t)snprintf(message + used, PF_KERNEL_MESSAGE_BYTES - used, "%s", parts[part]);
}

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
    TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}

static int launch(pf_parallel_lambda *lambda, void *closure, int task_count) {
    return pf_threads_run(lambda, closure, task_count);
}

/* Every workspace is an operand with a planned place, so a kernel that asks for one at run time is refused. */
static void *refuse_workspace(int device_type, int device_id, uint64_t bytes, int code, int bits) {
    (void)device_type, (void)device_id, (void)code, (void)bits;
    snprintf(pf_threads_message(), PF_KERNEL_MESSAGE_BYTES, "asked for %llu unplanned bytes", (unsigned long long)bytes);
    return NULL;
}

static int free_workspace(int device_type, int device_id, void *pointer) {
    (void)device_type, (void)device_id, (void)pointer;
    return 0;
}

/* Kernel objects hold weak definitions of these three; ours win at link time. */
int (*__TVMBackendParallelLaunch)(pf_parallel_lambda *, void *, int) = launch;
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = refuse_workspace;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = free_workspace;
