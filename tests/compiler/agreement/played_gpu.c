/* A driver of CUDA whose GPU is this CPU: it runs a step's kernels, each from the library PLAYED_KERNELS/<its symbol>.so,
 * which holds its CUDA text as C++. Streams run what they are given at once; a graph is a list of launches.
 *
 * PLAYED_GPU is `discrete`, `integrated` (host and GPU may not use managed memory at once) or `coherent` (integrated, they
 * may). PLAYED_ORDER is the order of items and of groups, `ascending` or `descending`. PLAYED_LOG is a file for a line of each
 * graph and of each launch outside one.
 *
 * It is strict where a GPU is: no address of device memory is one of the host's; managed memory that is not the host's has no
 * pages; no kernel comes past the end of the memory; functions are found in the code that holds them. */
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda_api.h"

#define DECLARED(name, parameters) cu_result name parameters;
PF_CU_FUNCTIONS(DECLARED)

enum { INVALID_VALUE = 1, NO_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
enum { MOST_OPERANDS = 64, MOST_ITEMS = 1024, SHARED_BYTES = 49152, ALIGNMENT = 256, PAGE = 4096, GARBAGE = 0xff };
static const cu_address ELSEWHERE = 0x7000000000000000u; /* added to addresses that the host may not use */

typedef void body(void **operands);
typedef int launcher(body *, void **operands, void *fibers, int groups, int items, int is_backwards);

typedef struct {
    char name[64];
    body *body; /* NULL: computes nothing */
    launcher *launch;
    int (*fiber_bytes)(void);
    int operands;
} function;

typedef struct {
    const function *of;
    unsigned groups, items;
    cu_address operands[MOST_OPERANDS];
} launch;

typedef struct {
    launch *launches;
    int count, room, number; /* its own among those that run; 0: none of them */
} graph;

static int context, stream; /* what their handles point to */
static _Thread_local void *current;
static char *pages, *memory;
static size_t memory_bytes, pages_bytes;
static bool is_managed, is_the_hosts;
static graph *captured; /* NULL: launches run */
static int graphs;

static const char *setting(const char *name, const char *otherwise) {
    const char *found = getenv(name);
    return found ? found : otherwise;
}

static bool is_a(const char *kind) { return strcmp(setting("PLAYED_GPU", "discrete"), kind) == 0; }

static void tell(const char *format, ...) {
    FILE *file = fopen(setting("PLAYED_LOG", "/dev/null"), "a");
    va_list arguments;
    if (!file) abort();
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fclose(file);
}

/* ------------------------------------------------------------------------------------------------------ the driver */

cu_result cuGetErrorName(cu_result code, const char **name) { return (void)code, *name = "as its number says", CUDA_SUCCESS; }
cu_result cuInit(uint32_t flags) { return flags ? INVALID_VALUE : CUDA_SUCCESS; }
cu_result cuDriverGetVersion(int32_t *version) { return *version = 12020, CUDA_SUCCESS; }
cu_result cuDeviceGetCount(int32_t *count) { return *count = 1, CUDA_SUCCESS; }
cu_result cuDeviceGet(cu_device *device, int32_t number) { return *device = number, CUDA_SUCCESS; }
cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device) { return (void)device, *bytes = 1ul << 34, CUDA_SUCCESS; }
cu_result cuDevicePrimaryCtxRelease_v2(cu_device device) { return (void)device, CUDA_SUCCESS; }
cu_result cuCtxSetCurrent(cu_handle own) { return current = own, own == &context ? CUDA_SUCCESS : NO_CONTEXT; }

cu_result cuDeviceGetName(char *name, int32_t size, cu_device device) {
    snprintf(name, (size_t)size, "played by a CPU");
    return (void)device, CUDA_SUCCESS;
}

cu_result cuDeviceGetAttribute(int32_t *value, int32_t what, cu_device device) {
    (void)device;
    switch (what) {
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return *value = INT32_MAX, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return *value = SHARED_BYTES, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED: return *value = !is_a("discrete"), CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return *value = 9, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return *value = 0, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: return *value = 1, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: return *value = !is_a("integrated"), CUDA_SUCCESS;
    default: return INVALID_VALUE;
    }
}

cu_result cuDevicePrimaryCtxRetain(cu_handle *made, cu_device device) {
    (void)device;
    return *made = &context, CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------------------- memory */

static void allow(int protection) {
    if (is_managed && is_a("integrated") && mprotect(pages, pages_bytes, protection)) abort();
}

static cu_address start(void) { return (cu_address)(uintptr_t)memory + (is_managed ? 0 : ELSEWHERE); }

/* It ends, up to its alignment, where its pages do, and a page follows that nobody may use. */
static cu_result allocate(cu_address *made, size_t bytes) {
    if (current != &context || memory) return INVALID_VALUE;
    memory_bytes = bytes;
    pages_bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    pages = mmap(NULL, pages_bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + pages_bytes, PAGE, PROT_NONE)) return CUDA_ERROR_OUT_OF_MEMORY;
    memory = pages + (pages_bytes - bytes) / ALIGNMENT * ALIGNMENT;
    memset(pages, GARBAGE, pages_bytes);
    allow(PROT_NONE);
    return *made = start(), CUDA_SUCCESS;
}

cu_result cuMemAlloc_v2(cu_address *made, size_t bytes) { return allocate(made, bytes); }

cu_result cuMemAllocManaged(cu_address *made, size_t bytes, uint32_t whose) {
    is_managed = true;
    return whose == CU_MEM_ATTACH_GLOBAL && !is_a("discrete") ? allocate(made, bytes) : INVALID_VALUE;
}

cu_result cuMemFree_v2(cu_address own) {
    if (own != start() || munmap(pages, pages_bytes + PAGE)) return INVALID_VALUE;
    return memory = NULL, CUDA_SUCCESS;
}

cu_result cuMemHostAlloc(void **made, size_t bytes, uint32_t flags) {
    *made = malloc(bytes);
    return flags || current != &context ? INVALID_VALUE : *made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

cu_result cuMemFreeHost(void *own) { return free(own), CUDA_SUCCESS; }

/* Where it lies here; NULL for what is not all in the memory. */
static char *inside(cu_address place, size_t bytes) {
    cu_address offset = place - start();
    return offset <= memory_bytes && bytes <= memory_bytes - offset ? memory + offset : NULL;
}

/* Whether the GPU may be given work of this stream that is done at once. */
static bool is_open(cu_handle own) { return own == &stream && current == &context && !captured && !is_the_hosts; }

cu_result cuMemsetD8Async(cu_address to, uint8_t value, size_t bytes, cu_handle own) {
    char *place = inside(to, bytes);
    if (!is_open(own) || !place) return INVALID_VALUE;
    allow(PROT_READ | PROT_WRITE);
    memset(place, value, bytes);
    return allow(PROT_NONE), CUDA_SUCCESS;
}

static cu_result copy(void *to, const void *from, size_t bytes, cu_handle own) {
    if (!is_open(own) || !to || !from) return INVALID_VALUE;
    allow(PROT_READ | PROT_WRITE);
    memcpy(to, from, bytes);
    return allow(PROT_NONE), CUDA_SUCCESS;
}

cu_result cuMemcpyHtoDAsync_v2(cu_address to, const void *from, size_t bytes, cu_handle own) {
    return copy(inside(to, bytes), from, bytes, own);
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_address from, size_t bytes, cu_handle own) {
    return copy(to, inside(from, bytes), bytes, own);
}

/* --------------------------------------------------------------------------------------------------------- kernels */

static bool is_elf(const char *code) { return memcmp(code, ELFMAG, SELFMAG) == 0; }

cu_result cuModuleLoadData(cu_handle *made, const void *code) {
    *made = (void *)(uintptr_t)code;
    return is_elf(code) || strstr(code, ".entry pf_nothing()") ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

cu_result cuModuleLoadDataEx(cu_handle *made, const void *code, uint32_t count, int32_t *options, void **values) {
    (void)made, (void)code, (void)count, (void)options, (void)values;
    return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
}

cu_result cuModuleUnload(cu_handle module) { return module ? CUDA_SUCCESS : INVALID_HANDLE; }

/* Whether some table of names in the code has this one. */
static bool has(const char *code, const char *name) {
    const Elf64_Ehdr *head = (const void *)code;
    for (int i = 0; i < head->e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, code + head->e_shoff + (size_t)i * head->e_shentsize, sizeof section);
        if (section.sh_type == SHT_STRTAB && memmem(code + section.sh_offset, section.sh_size, name, strlen(name) + 1))
            return true;
    }
    return false;
}

static void *word_of(void *library, const char *prefix, const char *name) {
    char word[128];
    snprintf(word, sizeof word, "%s%s", prefix, name);
    return dlsym(library, word);
}

/* An entry is named by its kernel's symbol and the number of the launch. */
static bool find(function *own, const char *name) {
    char path[4096];
    int length = (int)(strrchr(name, '_') - name);
    snprintf(path, sizeof path, "%s/%.*s.so", setting("PLAYED_KERNELS", "."), length, name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), false;
    const int *operands = word_of(library, "operands_of_", name);
    *(void **)&own->body = word_of(library, "run_", name);
    *(void **)&own->launch = dlsym(library, "pf_launch");
    *(void **)&own->fiber_bytes = dlsym(library, "pf_fiber_bytes");
    own->operands = operands ? *operands : -1;
    return operands && own->body && own->launch && own->fiber_bytes && own->operands <= MOST_OPERANDS;
}

cu_result cuModuleGetFunction(cu_handle *made, cu_handle module, const char *name) {
    function *own = calloc(1, sizeof *own);
    if (!own) return CUDA_ERROR_OUT_OF_MEMORY;
    snprintf(own->name, sizeof own->name, "%s", name);
    *made = own;
    if (!is_elf(module)) return strcmp(name, "pf_nothing") ? NOT_FOUND : CUDA_SUCCESS;
    return has(module, name) && find(own, name) ? CUDA_SUCCESS : NOT_FOUND;
}

cu_result cuFuncGetAttribute(int32_t *value, int32_t what, cu_handle own) {
    *value = MOST_ITEMS;
    return own && what == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? CUDA_SUCCESS : INVALID_VALUE;
}

/* The stacks of a group's items: room for each kernel's in turn. */
static void *fibers_for(const function *own) {
    static void *fibers;
    if (!fibers) fibers = aligned_alloc(PAGE, (size_t)own->fiber_bytes() * MOST_ITEMS / PAGE * PAGE + PAGE);
    if (!fibers) abort();
    return fibers;
}

static cu_result play(const launch *own) {
    static const char *const faults[] = {"", "some items of a group wait at a barrier that others do not come by",
                                         "an item's stack is too small"};
    bool is_backwards = strcmp(setting("PLAYED_ORDER", "ascending"), "descending") == 0;
    void *operands[MOST_OPERANDS];
    for (int i = 0; i < own->of->operands; i++)
        if (!(operands[i] = inside(own->operands[i], 1))) return LAUNCH_FAILED;
    if (!own->of->body) return CUDA_SUCCESS;
    int fault = own->of->launch(own->of->body, operands, fibers_for(own->of), (int)own->groups, (int)own->items, is_backwards);
    if (fault) fprintf(stderr, "%s: %s\n", own->of->name, faults[fault]);
    return fault ? LAUNCH_FAILED : CUDA_SUCCESS;
}

static cu_result play_all(const launch *launches, int count) {
    cu_result result = CUDA_SUCCESS;
    allow(PROT_READ | PROT_WRITE);
    for (int i = 0; i < count && result == CUDA_SUCCESS; i++) result = play(&launches[i]);
    return allow(PROT_NONE), result;
}

static cu_result capture(const launch *own) {
    if (captured->count == captured->room) {
        captured->room = 2 * captured->room + 1;
        captured->launches = realloc(captured->launches, (size_t)captured->room * sizeof *captured->launches);
        if (!captured->launches) abort();
    }
    return captured->launches[captured->count++] = *own, CUDA_SUCCESS;
}

cu_result cuLaunchKernel(cu_handle of, uint32_t x, uint32_t y, uint32_t z, uint32_t items, uint32_t items_y, uint32_t items_z,
                         uint32_t shared, cu_handle own, void **parameters, void **extra) {
    launch one = {.of = of, .groups = x, .items = items};
    if (own != &stream || current != &context || is_the_hosts || shared || extra) return INVALID_VALUE;
    if (!x || x > INT32_MAX || y != 1 || z != 1 || !items || items > MOST_ITEMS || items_y != 1 || items_z != 1)
        return INVALID_VALUE;
    for (int i = 0; i < one.of->operands; i++) memcpy(&one.operands[i], parameters[i], sizeof *one.operands);
    if (captured) return capture(&one);
    tell("launch %s\n", one.of->name);
    return play_all(&one, 1);
}

/* ------------------------------------------------------------------------------------------------ stream and graphs */

cu_result cuStreamCreate(cu_handle *made, uint32_t flags) {
    *made = &stream;
    return flags == CU_STREAM_NON_BLOCKING && current == &context ? CUDA_SUCCESS : INVALID_VALUE;
}

cu_result cuStreamDestroy_v2(cu_handle own) { return own == &stream ? CUDA_SUCCESS : INVALID_HANDLE; }
cu_result cuStreamSynchronize(cu_handle own) { return own == &stream && !captured ? CUDA_SUCCESS : INVALID_VALUE; }

cu_result cuStreamAttachMemAsync(cu_handle own, cu_address of, size_t bytes, uint32_t whose) {
    if (own != &stream || of != start() || bytes || !is_managed || captured) return INVALID_VALUE;
    is_the_hosts = whose == CU_MEM_ATTACH_HOST;
    return allow(is_the_hosts ? PROT_READ | PROT_WRITE : PROT_NONE), CUDA_SUCCESS;
}

cu_result cuStreamBeginCapture_v2(cu_handle own, int32_t mode) {
    if (!is_open(own) || mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) return INVALID_VALUE;
    captured = calloc(1, sizeof *captured);
    return captured ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

cu_result cuStreamEndCapture(cu_handle own, cu_handle *made) {
    if (own != &stream || !captured) return INVALID_VALUE;
    *made = captured;
    return captured = NULL, CUDA_SUCCESS;
}

cu_result cuGraphInstantiateWithFlags(cu_handle *made, cu_handle of, uint64_t flags) {
    const graph *from = of;
    graph *own = calloc(1, sizeof *own);
    size_t bytes = (size_t)from->count * sizeof *from->launches;
    if (!own || !(own->launches = malloc(bytes + 1))) return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes) memcpy(own->launches, from->launches, bytes);
    own->count = from->count;
    own->number = ++graphs;
    return *made = own, flags ? INVALID_VALUE : CUDA_SUCCESS;
}

static cu_result destroy(graph *own) { return free(own->launches), free(own), CUDA_SUCCESS; }

cu_result cuGraphDestroy(cu_handle own) { return destroy(own); }
cu_result cuGraphExecDestroy(cu_handle own) { return destroy(own); }

cu_result cuGraphLaunch(cu_handle of, cu_handle own) {
    const graph *all = of;
    if (!is_open(own)) return INVALID_VALUE;
    tell("graph %d\n", all->number);
    return play_all(all->launches, all->count);
}
