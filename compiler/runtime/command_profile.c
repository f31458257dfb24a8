#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "commands.h"
#include "denormals.h"
#include "events.h"
#include "failure.h"
#include "run_events.h"
#include "stop.h"
#include "threads.h"

/* Step times come first, without a timer between kernels; then some steps are timed kernel by kernel; then what starting
 * a kernel costs by itself. */
enum { DEFAULT_STEPS = 20, DEFAULT_WARMUP = 3, MAX_KERNEL_STEPS = 32, OVERHEAD_ROUNDS = 10, OVERHEAD_TURNS = 200 };

/* Of all steps that are reported. */
typedef struct {
    double us;
    int64_t steps;
    pf_thread_counts before, after;
} step_totals;

static pf_status run_steps(pf_step *step, const pf_data *data, int64_t *position, int64_t count, step_totals *totals) {
    int64_t batch = pf_batch();
    if (totals) totals->before = pf_threads_counts();
    for (int64_t i = 0; i < count && !pf_stop_requested; i++, *position += batch) {
        float loss = 0.0f;
        PF_TRY(pf_data_fill(data, step, PF_TRAIN, *position, INT64_MAX));
        double start = pf_now_us();
        PF_TRY(pf_run_train(step, &loss));
        double us = pf_now_us() - start;
        if (!totals) continue;
        totals->us += us;
        totals->steps++;
        pf_event("step");
        pf_integer("step", i + 1);
        pf_number("loss", loss);
        pf_number("us", us);
        pf_event_end();
    }
    if (totals) totals->after = pf_threads_counts();
    return PF_OK;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median(float *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* The clocks of some boards tick at 19 MHz, so that a short kernel may read as no time at all, which no kernel takes: it is
 * given as the clock's unit. */
static const double LEAST_US = 1e-3;

static void put_kernel(uint32_t index, const pf_call *call, double us) {
    pf_event("kernel");
    pf_integer("index", index);
    pf_text("name", call->name);
    pf_text("phase", call->phase);
    pf_number("us", us > LEAST_US ? us : LEAST_US);
    pf_integer("flops", (int64_t)call->flops);
    pf_integer("bytes_read", (int64_t)call->bytes_read);
    pf_integer("bytes_written", (int64_t)call->bytes_written);
    pf_event_end();
}

/* times[call * MAX_KERNEL_STEPS + step] in microseconds. */
static pf_status time_kernels(pf_step *step, const pf_data *data, int64_t *position, int64_t steps, float *times) {
    const pf_program *train = &pf_image_data.train;
    int64_t done = 0;
    for (; done < steps && !pf_stop_requested; done++, *position += pf_batch()) {
        PF_TRY(pf_data_fill(data, step, PF_TRAIN, *position, INT64_MAX));
        pf_fill_hyper(step);
        uint64_t mode = pf_denormals_flush();
        for (uint32_t i = 0; i < train->call_count; i++) {
            double start = pf_now_us();
            PF_TRY(pf_run_call(step, train, i));
            times[(int64_t)i * MAX_KERNEL_STEPS + done] = (float)(pf_now_us() - start);
        }
        pf_denormals_restore(mode);
        step->steps_done++;
    }
    for (uint32_t i = 0; done > 0 && i < train->call_count; i++)
        put_kernel(i, &train->calls[i], median(times + (int64_t)i * MAX_KERNEL_STEPS, done));
    return PF_OK;
}

static int nothing(int task, pf_parallel_env *env, void *closure) {
    (void)task, (void)env, (void)closure;
    return 0;
}

static int empty_kernel(void *self, const pf_ffi_any *args, int32_t count, pf_ffi_any *result) {
    (void)self, (void)args, (void)count, (void)result;
    return 0;
}

/* Microseconds of a call that computes nothing, with the operands of the step's first kernel. */
static double call_us(pf_step *step) {
    const pf_program *train = &pf_image_data.train;
    pf_call call = train->calls[0];
    pf_program empty = {.calls = &call, .call_count = 1, .operands = train->operands};
    double best = INFINITY;
    call.kernel = empty_kernel;
    for (int round = 0; round < OVERHEAD_ROUNDS; round++) {
        double start = pf_now_us();
        for (int turn = 0; turn < OVERHEAD_TURNS; turn++)
            if (pf_run_call(step, &empty, 0) != PF_OK) return NAN;
        best = fmin(best, (pf_now_us() - start) / OVERHEAD_TURNS);
    }
    return best;
}

/* Microseconds to hand a parallel loop without work to all threads and to have it back. */
static double launch_us(void) {
    double best = INFINITY;
    for (int round = 0; round < OVERHEAD_ROUNDS; round++) {
        double start = pf_now_us();
        for (int turn = 0; turn < OVERHEAD_TURNS; turn++) pf_threads_run(nothing, NULL, 0);
        best = fmin(best, (pf_now_us() - start) / OVERHEAD_TURNS);
    }
    return best;
}

/* What the runtime itself costs: `calls` and `launches` a step, the price of each, and their share of a step's time.
 * `sleeps` counts threads that waited in vain and had to be woken. */
static void put_overhead(pf_step *step, const step_totals *totals) {
    double steps = (double)totals->steps, call = call_us(step), launch = launch_us();
    double calls = pf_image_data.train.call_count;
    double launches = (double)(totals->after.launches - totals->before.launches) / steps;
    pf_event("overhead");
    pf_number("calls", calls);
    pf_number("launches", launches);
    pf_number("sleeps", (double)(totals->after.sleeps - totals->before.sleeps) / steps);
    pf_number("call_us", call);
    pf_number("launch_us", launch);
    pf_number("share", (calls * call + launches * launch) / (totals->us / steps));
    pf_event_end();
}

pf_status pf_command_profile(const pf_options *options, pf_step *step, const pf_data *data) {
    int64_t steps = options->steps ? options->steps : DEFAULT_STEPS, position = 0;
    int64_t warmup = options->warmup >= 0 ? options->warmup : DEFAULT_WARMUP;
    step_totals totals = {0};
    float *times = calloc((size_t)pf_image_data.train.call_count * MAX_KERNEL_STEPS + 1, sizeof *times);
    if (!times) return pf_fail(PF_LIMITS, "limits.memory", "no memory for the table of kernel times");
    pf_event_start(step);
    pf_status status = run_steps(step, data, &position, warmup, NULL);
    if (status == PF_OK) status = run_steps(step, data, &position, steps, &totals);
    if (status == PF_OK)
        status = time_kernels(step, data, &position, steps < MAX_KERNEL_STEPS ? steps : MAX_KERNEL_STEPS, times);
    free(times);
    if (status == PF_OK && totals.steps > 0) put_overhead(step, &totals);
    if (status == PF_OK) pf_event_finish(steps);
    return status;
}
