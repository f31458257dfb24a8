/* A driver of CUDA that runs nothing: what STUB_CUDA names goes wrong, all else succeeds. STUB_CUDA_GPU is `discrete`,
 * `integrated` (host and GPU may not use managed memory at once) or `coherent` (integrated, they may). STUB_LOG is a file for
 * lines of what is done.
 *
 * It is strict where a GPU is, and ends the process: no address of device memory is one of the host's; what is copied from
 * pinned memory is read when the stream is waited for, and must be there unchanged; managed memory that is not the host's has
 * no pages.
 *
 * A module's text holds a line for each of its functions, after its first: the name and how many parameters it has. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef uint64_t address;

enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_CONTEXT, NO_BINARY = 209,
       UNSUPPORTED_PTX = 222, INVALID_HANDLE = 400, NOT_FOUND = 500, LAUNCH_FAILED = 719, WRONG_CAPTURE = 900 };
enum { MAX_COPIES = 64, MAX_FUNCTIONS = 1024 };
static const address ELSEWHERE = 0x7000000000000000u; /* added to addresses that the host may not use */

typedef struct {
    char name[200];
    int parameters;
} function;

typedef struct {
    void *to;
    const void *from;
    size_t bytes;
    uint64_t sum;
} copy;

static int context, stream, graphs; /* what their handles point to */
static void *current;
static char *memory, *pinned[MAX_COPIES];
static size_t memory_bytes;
static copy copies[MAX_COPIES];
static function functions[MAX_FUNCTIONS];
static int copy_count, function_count, is_managed, is_capturing, captured;
static int whose = 1, next_whose = 1; /* managed memory is everybody's, or the host's (2) */

static int fails(const char *what) {
    const char *asked = getenv("STUB_CUDA");
    return asked && strcmp(asked, what) == 0;
}

static int is_a(const char *kind) {
    const char *asked = getenv("STUB_CUDA_GPU");
    return strcmp(asked ? asked : "discrete", kind) == 0;
}

static void tell(const char *format, ...) {
    const char *path = getenv("STUB_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    va_list arguments;
    if (!file) return;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fclose(file);
}

/* A context is needed by nearly all; it is the thread's. */
static int answer(const char *what, int code) { return !current ? INVALID_CONTEXT : fails(what) ? code : SUCCESS; }

static void allow(int protection) {
    if (is_managed && is_a("integrated") && mprotect(memory, memory_bytes, protection)) abort();
}

/* ------------------------------------------------------------------------------------------------------ the driver */

int cuGetErrorName(int code, const char **name) {
    switch (code) {
    case INVALID_VALUE: return *name = "CUDA_ERROR_INVALID_VALUE", SUCCESS;
    case OUT_OF_MEMORY: return *name = "CUDA_ERROR_OUT_OF_MEMORY", SUCCESS;
    case NO_DEVICE: return *name = "CUDA_ERROR_NO_DEVICE", SUCCESS;
    case INVALID_IMAGE: return *name = "CUDA_ERROR_INVALID_IMAGE", SUCCESS;
    case NO_BINARY: return *name = "CUDA_ERROR_NO_BINARY_FOR_GPU", SUCCESS;
    case UNSUPPORTED_PTX: return *name = "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", SUCCESS;
    case LAUNCH_FAILED: return *name = "CUDA_ERROR_LAUNCH_FAILED", SUCCESS;
    default: return *name = NULL, INVALID_VALUE;
    }
}

int cuInit(unsigned flags) { return (void)flags, fails("cuInit") ? NO_DEVICE : SUCCESS; }
int cuDriverGetVersion(int *version) { return *version = 12020, SUCCESS; }
int cuDeviceGetCount(int *count) { return *count = !fails("cuDeviceGetCount"), SUCCESS; }
int cuDeviceGet(int *device, int number) { return *device = number, SUCCESS; }

int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    snprintf(name, (size_t)size, "stub");
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int what, int device) {
    (void)device;
    switch (what) {
    case 5: return *value = fails("groups") ? 0 : INT32_MAX, SUCCESS;  /* groups of a grid */
    case 8: return *value = fails("shared") ? 16 : 49152, SUCCESS;     /* shared bytes of a group */
    case 18: return *value = !is_a("discrete"), SUCCESS;               /* integrated */
    case 75: return *value = 8, SUCCESS;                               /* compute capability */
    case 76: return *value = 7, SUCCESS;
    case 83: return *value = 1, SUCCESS;                               /* has managed memory */
    case 89: return *value = !is_a("integrated"), SUCCESS;             /* which is there for both at once */
    default: return INVALID_VALUE;
    }
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = fails("memory") ? 64 : 1 << 30;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **made, int device) {
    (void)device;
    *made = &context;
    return fails("cuDevicePrimaryCtxRetain") ? OUT_OF_MEMORY : SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, SUCCESS; }
int cuCtxSetCurrent(void *own) { return current = own, SUCCESS; }

/* ---------------------------------------------------------------------------------------------------------- memory */

int cuMemAlloc_v2(address *made, size_t bytes) {
    tell("memory %zu\n", bytes);
    memory = malloc(memory_bytes = bytes);
    *made = (address)(uintptr_t)memory + ELSEWHERE;
    return answer("cuMemAlloc_v2", OUT_OF_MEMORY);
}

int cuMemAllocManaged(address *made, size_t bytes, unsigned whose) {
    if (whose != 1) return INVALID_VALUE;
    tell("managed %zu\n", bytes);
    memory = mmap(NULL, memory_bytes = bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    is_managed = 1;
    allow(PROT_NONE);
    *made = (address)(uintptr_t)memory;
    return answer("cuMemAllocManaged", OUT_OF_MEMORY);
}

static address start(void) { return (address)(uintptr_t)memory + (is_managed ? 0 : ELSEWHERE); }

int cuMemFree_v2(address own) {
    tell("freed\n");
    return own == start() ? SUCCESS : INVALID_VALUE;
}

int cuMemHostAlloc(void **made, size_t bytes, unsigned flags) {
    int place = 0;
    while (place < MAX_COPIES && pinned[place]) place++;
    if (flags || place == MAX_COPIES) return INVALID_VALUE;
    tell("pinned %zu\n", bytes);
    *made = pinned[place] = malloc(bytes);
    return answer("cuMemHostAlloc", OUT_OF_MEMORY);
}

static int place_of(const void *of) {
    int place = 0;
    while (place < MAX_COPIES && pinned[place] != of) place++;
    return place;
}

int cuMemFreeHost(void *own) {
    int place = place_of(own);
    if (place == MAX_COPIES) return INVALID_VALUE;
    for (int i = 0; i < copy_count; i++)
        if (copies[i].from == own || copies[i].to == own) abort();
    tell("unpinned\n");
    free(own);
    pinned[place] = NULL;
    return answer("cuMemFreeHost", INVALID_VALUE);
}

static uint64_t sum_of(const void *bytes, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) sum = sum * 31 + ((const unsigned char *)bytes)[i];
    return sum;
}

static void copy_all(void) {
    allow(PROT_READ | PROT_WRITE);
    for (int i = 0; i < copy_count; i++) {
        bool is_pinned = place_of(copies[i].from) < MAX_COPIES;
        if (is_pinned && sum_of(copies[i].from, copies[i].bytes) != copies[i].sum) abort();
        memcpy(copies[i].to, copies[i].from, copies[i].bytes);
    }
    copy_count = 0;
    allow(PROT_NONE);
}

static void copy_later(void *to, const void *from, size_t bytes) {
    if (copy_count == MAX_COPIES) copy_all();
    bool is_pinned = place_of(from) < MAX_COPIES;
    copies[copy_count++] = (copy){to, from, bytes, is_pinned ? sum_of(from, bytes) : 0};
    if (!is_pinned && place_of(to) == MAX_COPIES) copy_all(); /* of pageable memory nothing may be kept */
}

static char *inside(address place, size_t bytes) {
    address offset = place - start();
    if (is_capturing || whose == 2 || next_whose == 2 || offset > memory_bytes || bytes > memory_bytes - offset) abort();
    return memory + offset;
}

int cuMemsetD8Async(address to, unsigned char value, size_t bytes, void *own) {
    if (own != &stream) return INVALID_HANDLE;
    copy_all();
    allow(PROT_READ | PROT_WRITE);
    memset(inside(to, bytes), value, bytes);
    allow(PROT_NONE);
    return answer("cuMemsetD8Async", INVALID_VALUE);
}

int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *own) {
    if (own != &stream) return INVALID_HANDLE;
    copy_later(inside(to, bytes), from, bytes);
    return answer("cuMemcpyHtoDAsync_v2", INVALID_VALUE);
}

int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *own) {
    if (own != &stream) return INVALID_HANDLE;
    copy_later(to, inside(from, bytes), bytes);
    return answer("cuMemcpyDtoHAsync_v2", INVALID_VALUE);
}

/* ---------------------------------------------------------------------------------------------------------- stream */

int cuStreamCreate(void **made, unsigned flags) {
    *made = &stream;
    return flags == 1 ? answer("cuStreamCreate", INVALID_VALUE) : INVALID_VALUE;
}

int cuStreamDestroy_v2(void *own) { return own == &stream ? SUCCESS : INVALID_HANDLE; }

int cuStreamAttachMemAsync(void *own, address of, size_t bytes, unsigned new) {
    if (own != &stream || of != (address)(uintptr_t)memory || bytes || !is_managed || is_capturing) return INVALID_VALUE;
    tell(new == 2 ? "to the host\n" : "to the GPU\n");
    if (new == 1) allow(PROT_NONE), whose = 1;
    next_whose = (int)new;
    return answer("cuStreamAttachMemAsync", INVALID_VALUE);
}

int cuStreamSynchronize(void *own) {
    if (own != &stream || is_capturing) return INVALID_HANDLE;
    if (whose != 2) copy_all();
    whose = next_whose;
    if (whose == 2) allow(PROT_READ | PROT_WRITE);
    return answer("cuStreamSynchronize", LAUNCH_FAILED);
}

int cuStreamBeginCapture_v2(void *own, int mode) {
    if (own != &stream || mode != 1 || is_capturing) return INVALID_VALUE;
    is_capturing = 1;
    captured = 0;
    return answer("cuStreamBeginCapture_v2", INVALID_VALUE);
}

int cuStreamEndCapture(void *own, void **graph) {
    if (own != &stream || !is_capturing) return INVALID_VALUE;
    is_capturing = 0;
    *graph = &graphs;
    return answer("cuStreamEndCapture", WRONG_CAPTURE);
}

/* --------------------------------------------------------------------------------------------------------- kernels */

int cuModuleLoadData(void **made, const void *code) {
    *made = (void *)(uintptr_t)code;
    if (memcmp(code, "\x7f" "ELF", 4) && !strstr(code, "pf_nothing")) return INVALID_VALUE;
    if (fails("cubin") || fails("code")) return NO_BINARY;
    return answer("cuModuleLoadData", OUT_OF_MEMORY);
}

int cuModuleLoadDataEx(void **made, const void *code, unsigned count, int *options, void **values) {
    *made = (void *)(uintptr_t)code;
    if (count != 2 || options[0] != 5 || options[1] != 6) return INVALID_VALUE;
    snprintf(values[0], (size_t)(uintptr_t)values[1], "line 3: odd word");
    tell("ptx\n");
    return fails("code") ? UNSUPPORTED_PTX : answer("cuModuleLoadDataEx", OUT_OF_MEMORY);
}

int cuModuleUnload(void *module) { return module ? SUCCESS : INVALID_HANDLE; }

/* "name parameters" is a line of the module's text. */
int cuModuleGetFunction(void **made, void *module, const char *name) {
    function *own = &functions[function_count++];
    const char *line = strchr(module, '\n');
    if (function_count == MAX_FUNCTIONS) abort();
    *made = own;
    snprintf(own->name, sizeof own->name, "%s", name);
    if (strcmp(name, "pf_nothing") == 0) return SUCCESS;
    for (; line; line = strchr(line + 1, '\n')) {
        size_t length = strlen(name);
        if (strncmp(line + 1, name, length) || line[length + 1] != ' ') continue;
        own->parameters = atoi(line + length + 1);
        return answer("cuModuleGetFunction", NOT_FOUND);
    }
    return NOT_FOUND;
}

int cuFuncGetAttribute(int *value, int what, void *own) {
    (void)own;
    *value = fails("items") ? 1 : 1024;
    return what == 0 ? SUCCESS : INVALID_VALUE;
}

int cuLaunchKernel(void *of, unsigned x, unsigned y, unsigned z, unsigned items, unsigned items_y, unsigned items_z,
                   unsigned shared, void *own, void **parameters, void **extra) {
    const function *kernel = of;
    if (own != &stream || shared || extra || whose == 2 || next_whose == 2) return INVALID_VALUE;
    if (!x || y != 1 || z != 1 || !items || items_y != 1 || items_z != 1) return INVALID_VALUE;
    tell("%s %s\n", is_capturing ? "captured" : "launched", kernel->name);
    captured += is_capturing;
    for (int i = 0; i < kernel->parameters; i++) {
        address value;
        memcpy(&value, parameters[i], sizeof value);
        tell("argument %llu\n", (unsigned long long)(value - start()));
    }
    return answer("cuLaunchKernel", LAUNCH_FAILED);
}

#ifndef STUB_IS_OLD
int cuGraphInstantiateWithFlags(void **made, void *graph, uint64_t flags) {
    int *own = malloc(sizeof *own);
    if (graph != &graphs || flags) return INVALID_VALUE;
    *own = captured;
    *made = own;
    return answer("cuGraphInstantiateWithFlags", OUT_OF_MEMORY);
}
#endif

int cuGraphDestroy(void *graph) { return graph == &graphs ? SUCCESS : INVALID_HANDLE; }

int cuGraphLaunch(void *own, void *in) {
    if (in != &stream || whose == 2 || next_whose == 2) return INVALID_VALUE;
    tell("graph %d\n", *(int *)own);
    return answer("cuGraphLaunch", LAUNCH_FAILED);
}

int cuGraphExecDestroy(void *own) { return free(own), SUCCESS; }
