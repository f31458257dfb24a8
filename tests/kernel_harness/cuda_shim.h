/* What the CUDA text of a kernel needs to be C++ for a CPU (x86-64), and who runs it: each item of a group is a fiber,
 * which waits at a barrier by going back to the launcher. No header is included, as none is on a device. */

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

/* Save what a call preserves on this stack, leave its top in *from, and go on where another stack was left. */
__asm__(".text\n.globl pf_hop\n.hidden pf_hop\npf_hop:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n");

enum { PF_STACK_WORDS = 8192, PF_SAVED_WORDS = 6, PF_WARP = 32, PF_APART = -1, PF_OVERRUN = -2 };
static const unsigned long long PF_MARK = 0x6b6e6973206f6f74ull;

struct pf_fiber {
  unsigned long long stack[PF_STACK_WORDS] __attribute__((aligned(64)));
  void *top;
  bool is_done, is_in_warp; /* at an end; waits for its warp, not for its group */
};
static pf_fiber *pf_fibers, *pf_running;
static void *pf_launcher;
static void (*pf_body)(void **);
static void **pf_operands;

static void pf_wait() { pf_hop(&pf_running->top, pf_launcher); }

static void pf_wait_for_warp() {
  pf_running->is_in_warp = true;
  pf_wait();
}

/* Tensor cores, whose functions a text has for CUDA only. To the nearest of ten bits of mantissa, ties away from zero. */
static inline float pf_tf32(float x) {
  unsigned bits = (__builtin_bit_cast(unsigned, x) + 0x1000u) & ~0x1fffu;
  return __builtin_bit_cast(float, x == x ? bits : 0x7fffffffu);
}

enum { PF_SHOWN = 6, PF_MOST_ITEMS = 1024 };
static float pf_shown[PF_MOST_ITEMS][PF_SHOWN];

/* Reals of sixteen bits, as compiler/codegen/grid/halves.py has them for a GPU. */
static inline float pf_wide_f16(short bits) {
  float x;
  __asm__("vmovd %1, %0\n\tvcvtph2ps %0, %0" : "=x"(x) : "r"((int)bits));
  return x;
}

static inline short pf_f16_1(float x) {
  int bits;
  float bound = x - x == 0.0f ? min(max(x, -65504.0f), 65504.0f) : x;
  __asm__("vcvtps2ph $0, %1, %1\n\tvmovd %1, %0" : "=r"(bits), "+x"(bound));
  return (short)bits;
}

static inline float pf_wide_bf16(unsigned short bits) { return __builtin_bit_cast(float, (unsigned)bits << 16); }

static inline unsigned short pf_bf16_1(float x) {
  unsigned bits = __builtin_bit_cast(unsigned, x);
  return (unsigned short)((x == x ? bits + 0x7fffu + (bits >> 16 & 1u) : bits | 0x400000u) >> 16);
}

/* A factor out of a word that an item shows; of a real of 32 bits, what is after the tenth bit of its mantissa is not
 * looked at. */
static inline float pf_of_tf32(unsigned word, int) { return __builtin_bit_cast(float, word & ~0x1fffu); }
static inline float pf_of_f16(unsigned word, int which) { return pf_wide_f16((short)(word >> 16 * which)); }
static inline float pf_of_bf16(unsigned word, int which) { return pf_wide_bf16((unsigned short)(word >> 16 * which)); }

static inline unsigned pf_word(unsigned item, unsigned number) {
  return __builtin_bit_cast(unsigned, pf_shown[item][number]);
}

/* The items of a warp show each other what they have of both factors, `per_word` in each word. Which item has what is as
 * the PTX ISA says (compiler/codegen/grid/contraction/emit.py). */
template <int per_word, float (*factor)(unsigned, int)> static void pf_mma(float *sums, const float *factors) {
  unsigned item = threadIdx.x, warp = item - item % PF_WARP, group = item % PF_WARP / 4, place = item % 4;
  for (int i = 0; i < PF_SHOWN; i++) pf_shown[item][i] = factors[i];
  pf_wait_for_warp();
  for (unsigned i = 0; i < 4; i++) {
    unsigned is_below = i / 2, column = 2 * place + i % 2;
    for (unsigned word = 0; word < 8; word++) {
      unsigned a = pf_word(warp + 4 * group + word % 4, is_below + word / 4 * 2);
      unsigned b = pf_word(warp + 4 * column + word % 4, 4 + word / 4);
      for (int which = 0; which < per_word; which++) sums[i] += factor(a, which) * factor(b, which);
    }
  }
  pf_wait_for_warp();
}

#define PF_MMA(kind, per_word) \
  static void pf_mma_##kind(float *sums, float a0, float a1, float a2, float a3, float b0, float b1) { \
    const float factors[PF_SHOWN] = {a0, a1, a2, a3, b0, b1}; \
    pf_mma<per_word, pf_of_##kind>(sums, factors); \
  }
PF_MMA(tf32, 1)
PF_MMA(f16, 2)
PF_MMA(bf16, 2)

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
  for (int i = 0; i < PF_SAVED_WORDS; i++) *--top = 0;
  fiber->stack[0] = PF_MARK;
  fiber->top = top;
  fiber->is_done = false;
}

/* Some items in order, each until it waits. How many wait for their warp; PF_OVERRUN if one has left its stack. */
static int pf_turn(int first, int count, bool is_backwards) {
  int in_warp = 0;
  for (int i = 0; i < count; i++) {
    int item = first + (is_backwards ? count - 1 - i : i);
    threadIdx.x = (unsigned)item;
    pf_running = &pf_fibers[item];
    pf_running->is_in_warp = false;
    pf_hop(&pf_launcher, pf_running->top);
    if (pf_running->stack[0] != PF_MARK) return PF_OVERRUN;
    in_warp += pf_running->is_in_warp;
  }
  return in_warp;
}

/* All items up to the group's next barrier, in order: a warp gets there before the next one begins. How many are done;
 * PF_APART if only some items of a warp came by where it waits. */
static int pf_round(int items, bool is_backwards) {
  int done = 0, warps = (items + PF_WARP - 1) / PF_WARP;
  for (int i = 0; i < warps; i++) {
    int first = (is_backwards ? warps - 1 - i : i) * PF_WARP, count = min(PF_WARP, items - first);
    int in_warp = count;
    while (in_warp == count) in_warp = pf_turn(first, count, is_backwards);
    if (in_warp != 0) return in_warp < 0 ? in_warp : PF_APART;
  }
  for (int item = 0; item < items; item++) done += pf_fibers[item].is_done;
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
    if (done != items) return done == PF_OVERRUN ? 2 : 1;
  }
  return 0;
}
