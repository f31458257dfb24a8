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
#include "whole_step.h"

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
    if (totals) totals->before = pf_threads_counts();
    for (int64_t i = 0; i < count && !pf_stop_requested; i++, *position += pf_step_samples()) {
        float loss = 0.0f;
        double us = 0.0;
        PF_TRY(pf_whole_step(data, step, *position, &loss, &us));
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

/* Of a step, which calls it `times` times. */
static void put_kernel(uint32_t index, const pf_call *call, int64_t times, double us) {
    pf_event("kernel");
    pf_integer("index", index);
    pf_text("name", call->name);
    pf_text("phase", call->phase);
    pf_number("us", us > LEAST_US ? us : LEAST_US);
    pf_integer("flops", times * (int64_t)call->flops);
    pf_integer("bytes_read", times * (int64_t)call->bytes_read);
    pf_integer("bytes_written", times * (int64_t)call->bytes_written);
    pf_event_end();
}

static uint32_t first_row(const pf_program *program) {
    return program == &pf_image_data.accumulate ? pf_image_data.train.call_count : 0;
}

/* One micro-batch; `times` of the step at hand. */
static pf_status time_micro_batch(pf_step *step, float *times) {
    const pf_program *program = pf_next_program(step);
    PF_TRY(pf_prepare(step));
    uint64_t mode = pf_denormals_flush();
    for (uint32_t i = 0; i < program->call_count; i++) {
        double start = pf_now_us();
        PF_TRY(pf_run_call(step, program, i));
        PF_TRY(pf_device_finish(step->device));
        times[(int64_t)(first_row(program) + i) * MAX_KERNEL_STEPS] += (float)(pf_now_us() - start);
    }
    pf_denormals_restore(mode);
    pf_advance(step);
    return PF_OK;
}

static void put_kernels(const pf_program *program, int64_t times_a_step, float *times, int64_t steps) {
    for (uint32_t i = 0; i < program->call_count; i++) {
        uint32_t row = first_row(program) + i;
        put_kernel(row, &program->calls[i], times_a_step, median(times + (int64_t)row * MAX_KERNEL_STEPS, steps));
    }
}

/* times[row * MAX_KERNEL_STEPS + step] in microseconds; rows are the calls of `train`, then those of `accumulate`. */
static pf_status time_kernels(pf_step *step, const pf_data *data, int64_t *position, int64_t steps, float *times) {
    int64_t done = 0, micro_batches = pf_image_data.micro_batches;
    for (; done < steps && !pf_stop_requested; done++)
        for (int64_t i = 0; i < micro_batches; i++, *position += pf_batch()) {
            PF_TRY(pf_data_fill(data, step, PF_TRAIN, *position, INT64_MAX));
            PF_TRY(time_micro_batch(step, times + done));
        }
    if (!done) return PF_OK;
    put_kernels(&pf_image_data.train, 1, times, done);
    put_kernels(&pf_image_data.accumulate, micro_batches - 1, times, done);
    return PF_OK;
}

static int64_t calls_of_step(void) {
    return pf_image_data.train.call_count + (pf_image_data.micro_batches - 1) * (int64_t)pf_image_data.accumulate.call_count;
}

static int nothing(int task, pf_parallel_env *env, void *closure) {
    (void)task, (void)env, (void)closure;
    return 0;
}

/* Microseconds of a call that computes nothing. */
static double call_us(pf_step *step) {
    double best = INFINITY;
    for (int round = 0; round < OVERHEAD_ROUNDS; round++) {
        double start = pf_now_us();
        for (int turn = 0; turn < OVERHEAD_TURNS; turn++)
            if (pf_device_enqueue_nothing(step->device) != PF_OK) return NAN;
        if (pf_device_finish(step->device) != PF_OK) return NAN;
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
    double calls = (double)calls_of_step();
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
    size_t rows = (size_t)pf_image_data.train.call_count + pf_image_data.accumulate.call_count;
    float *times = calloc(rows * MAX_KERNEL_STEPS + 1, sizeof *times);
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
