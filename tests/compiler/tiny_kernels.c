/* tiny_kernels.c: kernels written by hand against the ABI of compiled ones; the build picks one with -DKERNEL_<name>.
 * Shapes are macros: BATCH, FEATURES, CLASSES (a linear classifier), ROWS (an embedding table with FEATURES columns);
 * TURNS is how much work a repeated kernel does, SPIN_US how long a slow one takes at least. LEAVE, if it is there, names
 * a file with a number: a slow kernel is called so often, and then waits for a higher one. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "tvm_abi.h"

#define DATA(type, index) ((type *)((pf_dl_tensor *)args[index].v_ptr)->data)
#define ENTRY(name) int __tvm_ffi_tiny_##name(void *self, const pf_ffi_any *args, int32_t count, pf_ffi_any *result)
#define CHECK(index, code_, bits_, elements)                                                                     \
    do {                                                                                                         \
        const pf_dl_tensor *tensor = args[index].v_ptr;                                                          \
        if (args[index].type_index != 7 || tensor->ndim != 1 || tensor->dtype.code != (code_) ||                 \
            tensor->dtype.bits != (bits_) || tensor->shape[0] != (elements) || (uintptr_t)tensor->data % 64)     \
            return 100 + (index);                                                                                \
    } while (0)

extern int (*__TVMBackendParallelLaunch)(pf_parallel_lambda *, void *, int);
__attribute__((weak)) int (*__TVMBackendParallelLaunch)(pf_parallel_lambda *, void *, int) = 0;
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count);

#if defined KERNEL_linear || defined KERNEL_slow_linear || defined KERNEL_repeated_linear /* x [BATCH, FEATURES], w [FEATURES, CLASSES], b -> logits */
static int rows(int task, pf_parallel_env *env, void *closure) {
    const pf_ffi_any *args = closure;
    for (int n = task; n < BATCH; n += env->num_task)
        for (int c = 0; c < CLASSES; c++) {
            float sum = DATA(float, 2)[c];
            for (int f = 0; f < FEATURES; f++) sum += DATA(float, 0)[n * FEATURES + f] * DATA(float, 1)[f * CLASSES + c];
            DATA(float, 3)[n * CLASSES + c] = sum;
        }
    return 0;
}
static int linear(const pf_ffi_any *args, int32_t count) {
    if (count != 4) return 99;
    CHECK(0, 2, 32, BATCH * FEATURES);
    CHECK(3, 2, 32, BATCH * CLASSES);
    return __TVMBackendParallelLaunch(rows, (void *)args, 0);
}
#ifdef KERNEL_linear
ENTRY(linear) { return linear(args, count); }
#elif defined KERNEL_repeated_linear
ENTRY(repeated_linear) { /* so much work, however long that takes here */
    for (volatile int turn = 0; turn < TURNS; turn++) continue;
    return linear(args, count);
}
#else
static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * now.tv_sec + 1e-3 * now.tv_nsec;
}
#ifdef LEAVE
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
static void wait_for_leave(void) {
    static long calls, most;
    struct timespec pause = {0, 2000000};
    for (calls++; calls > most; ) {
        char text[32] = "";
        int file = open(LEAVE, O_RDONLY);
        if (file >= 0) {
            if (read(file, text, sizeof text - 1) > 0) most = strtol(text, 0, 10);
            close(file);
        }
        if (calls > most) nanosleep(&pause, 0);
    }
}
#endif
ENTRY(slow_linear) { /* so long, however fast this machine is */
    double end_us = now_us() + SPIN_US;
    while (now_us() < end_us) continue;
#ifdef LEAVE
    wait_for_leave();
#endif
    return linear(args, count);
}
#endif
#endif

#ifdef KERNEL_cross_entropy /* logits, labels i64 -> mean loss, d_logits */
ENTRY(cross_entropy) {
    double total = 0;
    int counted = 0;
    CHECK(1, 0, 64, BATCH);
    for (int n = 0; n < BATCH; n++) counted += DATA(int64_t, 1)[n] >= 0;
    for (int n = 0; n < BATCH; n++) {
        const float *row = DATA(float, 0) + n * CLASSES;
        int64_t label = DATA(int64_t, 1)[n];
        double sum = 0;
        for (int c = 0; c < CLASSES; c++) sum += exp(row[c]);
        if (label >= 0) total += log(sum) - row[label];
        for (int c = 0; c < CLASSES; c++)
            DATA(float, 3)[n * CLASSES + c] = label < 0 ? 0 : (exp(row[c]) / sum - (c == label)) / counted;
    }
    *DATA(float, 2) = counted ? total / counted : 0;
    return 0;
}
#endif

#ifdef KERNEL_weight_grad /* x, d_logits -> d_w [FEATURES, CLASSES]; workspace of the same size */
static int some_rows(int task, pf_parallel_env *env, void *closure) {
    const pf_ffi_any *args = closure;
    for (int f = task; f < FEATURES; f += env->num_task)
        for (int c = 0; c < CLASSES; c++) {
            float sum = 0;
            for (int n = 0; n < BATCH; n++) sum += DATA(float, 0)[n * FEATURES + f] * DATA(float, 1)[n * CLASSES + c];
            DATA(float, 3)[f * CLASSES + c] = sum;
        }
    return 0;
}
ENTRY(weight_grad) {
    if (count != 4) return 99;
    CHECK(3, 2, 32, FEATURES * CLASSES);
    int failed = __TVMBackendParallelLaunch(some_rows, (void *)args, 0);
    if (!failed) memcpy(DATA(float, 2), DATA(float, 3), FEATURES * CLASSES * sizeof(float));
    return failed;
}
#endif

#ifdef KERNEL_bias_grad /* d_logits -> d_b */
ENTRY(bias_grad) {
    for (int c = 0; c < CLASSES; c++) {
        float sum = 0;
        for (int n = 0; n < BATCH; n++) sum += DATA(float, 0)[n * CLASSES + c];
        DATA(float, 1)[c] = sum;
    }
    return 0;
}
#endif

#ifdef KERNEL_sgd /* w, d_w, m, learning rate -> w, m (in place); any size */
ENTRY(sgd) {
    for (int64_t i = 0; i < ((pf_dl_tensor *)args[0].v_ptr)->shape[0]; i++) {
        DATA(float, 5)[i] = 0.9f * DATA(float, 2)[i] + DATA(float, 1)[i];
        DATA(float, 4)[i] = DATA(float, 0)[i] - *DATA(float, 3) * DATA(float, 5)[i];
    }
    return 0;
}
#endif

#ifdef KERNEL_failing
ENTRY(failing) {
    const char *parts[] = {"operand 0 ", 0, "is odd"};
    TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 3);
    return -1;
}
#endif

#ifdef KERNEL_look_up /* table [ROWS, FEATURES], index i64 [BATCH * 2] -> y */
ENTRY(look_up) {
    for (int i = 0; i < BATCH * 2; i++) {
        int64_t row = DATA(int64_t, 1)[i] < 0 ? DATA(int64_t, 1)[i] + ROWS : DATA(int64_t, 1)[i];
        memcpy(DATA(float, 2) + i * FEATURES, DATA(float, 0) + row * FEATURES, FEATURES * sizeof(float));
    }
    return 0;
}
#endif

#ifdef KERNEL_mean_squared_error /* y, label -> loss, d_y */
ENTRY(mean_squared_error) {
    int size = BATCH * 2 * FEATURES;
    double total = 0;
    for (int i = 0; i < size; i++) {
        float error = DATA(float, 0)[i] - DATA(float, 1)[i];
        total += (double)error * error;
        DATA(float, 3)[i] = 2 * error / size;
    }
    *DATA(float, 2) = total / size;
    return 0;
}
#endif

#ifdef KERNEL_scatter /* index, d_y -> d_table */
ENTRY(scatter) {
    memset(DATA(float, 2), 0, ROWS * FEATURES * sizeof(float));
    for (int i = 0; i < BATCH * 2; i++) {
        int64_t row = DATA(int64_t, 0)[i] < 0 ? DATA(int64_t, 0)[i] + ROWS : DATA(int64_t, 0)[i];
        for (int f = 0; f < FEATURES; f++) DATA(float, 2)[row * FEATURES + f] += DATA(float, 1)[i * FEATURES + f];
    }
    return 0;
}
#endif

#ifdef KERNEL_adamw /* w, d_w, m, v, lr, correction 1, sqrt of correction 2 -> w, m, v */
ENTRY(adamw) {
    for (int i = 0; i < ROWS * FEATURES; i++) {
        float g = DATA(float, 1)[i];
        float m = DATA(float, 8)[i] = 0.9f * DATA(float, 2)[i] + 0.1f * g;
        float v = DATA(float, 9)[i] = 0.999f * DATA(float, 3)[i] + 0.001f * g * g;
        float step = m / *DATA(float, 5) / (sqrtf(v) / *DATA(float, 6) + 1e-8f);
        DATA(float, 7)[i] = DATA(float, 0)[i] - *DATA(float, 4) * step;
    }
    return 0;
}
#endif
