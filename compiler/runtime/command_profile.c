#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "events.h"
#include "failure.h"

/* Step times come first, without a timer between kernels; then some steps are timed kernel by kernel. */
enum { DEFAULT_STEPS = 20, DEFAULT_WARMUP = 3, MAX_KERNEL_STEPS = 32 };

static pf_status run_steps(pf_step *step, const pf_data *data, int64_t *position, int64_t count, bool report) {
    int64_t batch = pf_logits_tensor()->shape[0];
    for (int64_t i = 0; i < count && !pf_stop_requested; i++, *position += batch) {
        float loss = 0.0f;
        PF_TRY(pf_data_fill(data, step, PF_TRAIN, *position, INT64_MAX));
        double start = pf_now_us();
        PF_TRY(pf_run_train(step, &loss));
        double us = pf_now_us() - start;
        if (!report) continue;
        pf_event("step");
        pf_integer("step", i + 1);
        pf_number("loss", loss);
        pf_number("us", us);
        pf_event_end();
    }
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

static void put_kernel(uint32_t index, const pf_call *call, double us) {
    pf_event("kernel");
    pf_integer("index", index);
    pf_text("name", call->name);
    pf_text("phase", call->phase);
    pf_number("us", us);
    pf_integer("flops", (int64_t)call->flops);
    pf_integer("bytes_read", (int64_t)call->bytes_read);
    pf_integer("bytes_written", (int64_t)call->bytes_written);
    pf_event_end();
}

/* times[call * MAX_KERNEL_STEPS + step] in microseconds. */
static pf_status time_kernels(pf_step *step, const pf_data *data, int64_t *position, int64_t steps, float *times) {
    const pf_program *train = &pf_image_data.train;
    int64_t done = 0;
    for (; done < steps && !pf_stop_requested; done++, *position += pf_logits_tensor()->shape[0]) {
        PF_TRY(pf_data_fill(data, step, PF_TRAIN, *position, INT64_MAX));
        pf_fill_hyper(step);
        for (uint32_t i = 0; i < train->call_count; i++) {
            double start = pf_now_us();
            PF_TRY(pf_run_call(step, train, i));
            times[(int64_t)i * MAX_KERNEL_STEPS + done] = (float)(pf_now_us() - start);
        }
        step->steps_done++;
    }
    for (uint32_t i = 0; done > 0 && i < train->call_count; i++)
        put_kernel(i, &train->calls[i], median(times + (int64_t)i * MAX_KERNEL_STEPS, done));
    return PF_OK;
}

pf_status pf_command_profile(const pf_options *options, pf_step *step, const pf_data *data) {
    int64_t steps = options->steps ? options->steps : DEFAULT_STEPS, position = 0;
    int64_t warmup = options->warmup >= 0 ? options->warmup : DEFAULT_WARMUP;
    float *times = calloc((size_t)pf_image_data.train.call_count * MAX_KERNEL_STEPS + 1, sizeof *times);
    if (!times) return pf_fail(PF_LIMITS, "limits.memory", "no memory for the table of kernel times");
    pf_event_start(step);
    pf_status status = run_steps(step, data, &position, warmup, false);
    if (status == PF_OK) status = run_steps(step, data, &position, steps, true);
    if (status == PF_OK)
        status = time_kernels(step, data, &position, steps < MAX_KERNEL_STEPS ? steps : MAX_KERNEL_STEPS, times);
    free(times);
    if (status == PF_OK) pf_event_finish(steps);
    return status;
}
