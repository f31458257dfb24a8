/* What the CUDA text of a kernel needs to be C++ for a CPU (x86-64), and who runs it: each item of a group is a fiber,
 * which waits at a barrier by going back to the launcher. For tests; no header is included, as none is on a device. */

struct pf_place { unsigned x; };
static pf_place threadIdx, blockIdx;

#define __global__
#define __launch_bounds__(items)
#define __shared__ static __attribute__((section("pf_shared")))
#define alignas(bytes) __attribute__((aligned(bytes)))
#define __int_as_float(bits) pf_as_float(bits)
#define __syncthreads() pf_wait()

extern "C" {
float atanf(float), cosf(float), erff(float), expf(float), fabsf(float), floorf(float), fmodf(float, float),
    logf(float), powf(float, float), sinf(float), sqrtf(float), tanhf(float);
/* The linker's words for where shared memory lies; both are null in a kernel that has none. */
extern char __start_pf_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_pf_shared[] __attribute__((weak, visibility("hidden")));
void pf_hop(void **from, void *to);
}

static inline float pf_as_float(int bits) { return __builtin_bit_cast(float, bits); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline long long min(long long a, long long b) { return a < b ? a : b; }
static inline long long max(long long a, long long b) { return a > b ? a : b; }
static inline float min(float a, float b) { return __builtin_fminf(a, b); }
static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }

/* A kernel with its operands: there is one for each of its parameters, all pointers. */
template <class, int... I> struct pf_places {};
template <class... T, int... I> static void pf_call(void (*kernel)(T *...), void **operands, pf_places<int, I...>) {
  kernel((T *)operands[I]...);
}
template <class... T> static void pf_call(void (*kernel)(T *...), void **operands) {
  pf_call(kernel, operands, __make_integer_seq<pf_places, int, sizeof...(T)>{});
}

/* Keep what a call keeps on this stack, leave its top in *from, and go on where another stack was left. */
__asm__(".text\n.globl pf_hop\n.hidden pf_hop\npf_hop:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n");

enum { PF_STACK_WORDS = 8192, PF_KEPT_WORDS = 6 };
static const unsigned long long PF_MARK = 0x6b6e6973206f6f74ull;

struct pf_fiber {
  unsigned long long stack[PF_STACK_WORDS] __attribute__((aligned(64)));
  void *top;
  bool is_done;
};
static pf_fiber *pf_fibers, *pf_running;
static void *pf_launcher;
static void (*pf_body)(void **);
static void **pf_operands;

static void pf_wait() { pf_hop(&pf_running->top, pf_launcher); }

static void pf_begin() {
  pf_body(pf_operands);
  pf_running->is_done = true;
  pf_hop(&pf_running->top, pf_launcher);
  __builtin_trap();
}

/* A stack as pf_hop leaves it: registers that hold nothing, and the function to return to. A function begins eight
 * bytes past a multiple of sixteen, as a call leaves the stack. */
static void pf_ready(pf_fiber *fiber) {
  unsigned long long *top = fiber->stack + PF_STACK_WORDS - 1;
  *--top = (unsigned long long)pf_begin;
  for (int i = 0; i < PF_KEPT_WORDS; i++) *--top = 0;
  fiber->stack[0] = PF_MARK;
  fiber->top = top;
  fiber->is_done = false;
}

/* All items up to the next barrier, in order. How many are done; -1 if one has left its stack. */
static int pf_round(int items, bool is_backwards) {
  int done = 0;
  for (int i = 0; i < items; i++) {
    int item = is_backwards ? items - 1 - i : i;
    threadIdx.x = (unsigned)item;
    pf_running = &pf_fibers[item];
    pf_hop(&pf_launcher, pf_running->top);
    if (pf_running->stack[0] != PF_MARK) return -1;
    done += pf_running->is_done;
  }
  return done;
}

extern "C" int pf_fiber_bytes() { return (int)sizeof(pf_fiber); }

/* One launch, group by group; shared memory starts as anything in each. `fibers` is room for one of each item, at a
 * multiple of 64. 0; 1 if only some items of a group came by a barrier; 2 if a stack is too small. */
extern "C" int pf_launch(void (*body)(void **), void **operands, void *fibers, int groups, int items, int is_backwards) {
  pf_body = body;
  pf_operands = operands;
  pf_fibers = (pf_fiber *)fibers;
  for (int i = 0; i < groups; i++) {
    blockIdx.x = (unsigned)(is_backwards ? groups - 1 - i : i);
    for (char *byte = __start_pf_shared; byte != __stop_pf_shared; byte++) *byte = (char)0xff;
    for (int item = 0; item < items; item++) pf_ready(&pf_fibers[item]);
    int done = 0;
    while (done == 0) done = pf_round(items, is_backwards);
    if (done != items) return done < 0 ? 2 : 1;
  }
  return 0;
}
