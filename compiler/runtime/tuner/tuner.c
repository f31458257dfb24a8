/* tuner.c: the tuning binary. `step tune --seconds S [--threads T]` times every schedule of every kernel in its tables
 * and says what it saw; who wins is decided by whoever reads it.
 *
 * The schedules of a kernel take turns (A B C, B C A, ...), so that a machine that slows down slows all of them. Between
 * calls the operands change place in a pool, so that they come from where a step's operands come from, not from the
 * first-level cache. What is clearly behind after some rounds is timed no more. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend.h"
#include "clock.h"
#include "events.h"
#include "failure.h"
#include "run_events.h"
#include "session.h"
#include "stop.h"
#include "trials.h"

enum { MAX_VARIANTS = 64, MAX_ROUNDS = 40, FIRST_ROUNDS = 4 };
static const double SAMPLE_US = 300.0, HOPELESS = 1.25;

typedef struct {
    const pf_trial *trial;
    unsigned char *memory, *workspace, *expected;
    uint64_t set_bytes, memory_bytes, output_offset, output_bytes;
    uint64_t offsets[PF_MAX_OPERANDS];
    uint32_t sets, next_set;
    float times[MAX_VARIANTS][MAX_ROUNDS];
    double difference[MAX_VARIANTS];
    int rounds[MAX_VARIANTS];
    bool dropped[MAX_VARIANTS];
} pf_bench;

static uint64_t aligned(uint64_t bytes) { return (bytes + PF_ALIGNMENT - 1) / PF_ALIGNMENT * PF_ALIGNMENT; }

static uint64_t operand_bytes(const pf_extent *operand) { return (uint64_t)operand->count * pf_item_bytes(operand->dtype); }

static void fill_random(unsigned char *data, const pf_extent *operand, uint64_t *state) {
    for (int64_t i = 0; i < operand->count; i++) {
        *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
        if (operand->dtype == PF_F32) ((float *)data)[i] = (float)((double)(*state >> 11) * 0x1p-52 - 1.0);
        else if (operand->dtype == PF_BOOL) data[i] = (unsigned char)(*state >> 63);
        else if (operand->dtype == PF_F16) ((uint16_t *)data)[i] = (uint16_t)(*state & 0x8000 | 0x3800 | *state >> 54);
        else if (operand->dtype == PF_BF16) ((uint16_t *)data)[i] = (uint16_t)(*state & 0x8000 | 0x3f00 | *state >> 57);
    }
}

/* Where each operand of a set lies, how many sets fill the pool, and their memory: sets, workspace, expected outputs. */
static pf_status prepare(pf_bench *bench, const pf_trial *trial) {
    uint64_t workspace_bytes = 0, state = 0x9E3779B97F4A7C15u;
    *bench = (pf_bench){.trial = trial};
    for (uint32_t k = 0; k < trial->operand_count; k++) {
        if (k == trial->input_count) bench->output_offset = bench->set_bytes;
        bench->offsets[k] = bench->set_bytes;
        bench->set_bytes += aligned(operand_bytes(&trial->operands[k]));
    }
    bench->output_bytes = bench->set_bytes - bench->output_offset;
    for (uint32_t v = 0; v < trial->variant_count; v++)
        if (trial->variants[v].workspace_bytes > workspace_bytes) workspace_bytes = trial->variants[v].workspace_bytes;
    bench->sets = bench->set_bytes < pf_trials_data.pool_bytes ? (uint32_t)(pf_trials_data.pool_bytes / bench->set_bytes) : 1;
    uint64_t sets_bytes = bench->sets * bench->set_bytes;
    bench->memory_bytes = sets_bytes + aligned(workspace_bytes) + bench->output_bytes;
    void *memory = mmap(NULL, bench->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return pf_fail(PF_LIMITS, "limits.memory", "a kernel's trial needs %" PRIu64 " bytes, the system refused: %s",
                       bench->memory_bytes, strerror(errno));
    madvise(memory, bench->memory_bytes, MADV_HUGEPAGE);
    bench->memory = memory;
    bench->workspace = bench->memory + sets_bytes;
    bench->expected = bench->workspace + aligned(workspace_bytes);
    for (uint32_t k = 0; k < trial->input_count; k++) fill_random(bench->memory + bench->offsets[k], &trial->operands[k], &state);
    for (uint32_t set = 1; set < bench->sets; set++)
        memcpy(bench->memory + set * bench->set_bytes, bench->memory, bench->output_offset);
    return PF_OK;
}

static pf_status call(pf_bench *bench, uint32_t variant, uint32_t set) {
    const pf_trial *trial = bench->trial;
    const pf_variant *chosen = &trial->variants[variant];
    pf_dl_tensor tensors[PF_MAX_OPERANDS + 1] = {0};
    pf_ffi_any arguments[PF_MAX_OPERANDS + 1], result = {.type_index = PF_FFI_NONE};
    uint32_t count = trial->operand_count + (chosen->workspace_bytes > 0);
    for (uint32_t k = 0; k < count; k++) {
        bool is_operand = k < trial->operand_count;
        tensors[k].data = is_operand ? bench->memory + set * bench->set_bytes + bench->offsets[k] : bench->workspace;
        tensors[k].device.device_type = PF_DL_CPU;
        arguments[k] = (pf_ffi_any){.type_index = PF_FFI_DL_TENSOR, .v_ptr = &tensors[k]};
    }
    int failed = chosen->kernel(NULL, arguments, (int32_t)count, &result);
    if (failed == 0) return PF_OK;
    return pf_fail(PF_INTERNAL, "internal.kernel", "a kernel failed with %d: %s", failed, pf_kernel_message());
}

/* Largest difference of two outputs, relative to the largest expected value; infinite where only one is a number. */
static double difference(const float *expected, const float *got, int64_t count) {
    double worst = 0.0, largest = 0.0;
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(expected[i]) != isfinite(got[i])) return INFINITY;
        if (!isfinite(expected[i])) continue;
        worst = fmax(worst, fabs((double)expected[i] - (double)got[i]));
        largest = fmax(largest, fabs((double)expected[i]));
    }
    return largest > 0.0 ? worst / largest : worst;
}

/* Every schedule computes set 0 from outputs that hold no numbers; the default's results are what is expected. */
static pf_status compare(pf_bench *bench) {
    const pf_trial *trial = bench->trial;
    unsigned char *outputs = bench->memory + bench->output_offset;
    for (uint32_t v = 0; v < trial->variant_count; v++) {
        memset(outputs, 0xFF, bench->output_bytes);
        PF_TRY(call(bench, v, 0));
        if (v == 0) memcpy(bench->expected, outputs, bench->output_bytes);
        for (uint32_t k = trial->input_count; k < trial->operand_count; k++) {
            uint64_t offset = bench->offsets[k] - bench->output_offset;
            if (trial->operands[k].dtype != PF_F32) continue;
            bench->difference[v] = fmax(bench->difference[v], difference((const float *)(bench->expected + offset),
                                        (const float *)(outputs + offset), trial->operands[k].count));
        }
    }
    return PF_OK;
}

static pf_status time_calls(pf_bench *bench, uint32_t variant, int64_t calls, double *us) {
    double start = pf_now_us();
    for (int64_t i = 0; i < calls; i++) {
        PF_TRY(call(bench, variant, bench->next_set));
        bench->next_set = (bench->next_set + 1) % bench->sets;
    }
    *us = (pf_now_us() - start) / (double)calls;
    return PF_OK;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float smallest(const float *values, int count) {
    float best = values[0];
    for (int i = 1; i < count; i++) best = values[i] < best ? values[i] : best;
    return best;
}

/* The default stays: it is what the others are compared with. */
static void drop_hopeless(pf_bench *bench) {
    float best = INFINITY;
    for (uint32_t v = 0; v < bench->trial->variant_count; v++) best = fminf(best, smallest(bench->times[v], bench->rounds[v]));
    for (uint32_t v = 1; v < bench->trial->variant_count; v++)
        bench->dropped[v] = smallest(bench->times[v], bench->rounds[v]) > HOPELESS * best;
}

static pf_status run_rounds(pf_bench *bench, double deadline_us) {
    double us = 0.0;
    uint32_t variants = bench->trial->variant_count;
    PF_TRY(time_calls(bench, 0, 1, &us));
    int64_t calls = us < SAMPLE_US ? (int64_t)(SAMPLE_US / (us + 0.01)) + 1 : 1;
    for (int round = 0; round < MAX_ROUNDS && !pf_stop_requested; round++) {
        if (round >= FIRST_ROUNDS && pf_now_us() > deadline_us) break;
        for (uint32_t turn = 0; turn < variants; turn++) {
            uint32_t v = (turn + (uint32_t)round) % variants;
            if (bench->dropped[v]) continue;
            PF_TRY(time_calls(bench, v, calls, &us));
            bench->times[v][bench->rounds[v]++] = (float)us;
        }
        if (round == FIRST_ROUNDS - 1) drop_hopeless(bench);
    }
    return PF_OK;
}

/* Median and quartiles (by the nearest rank) as an array; sorts the values. */
static void put_quartiles(const char *key, float *values, int count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    pf_array(key);
    pf_number(NULL, values[(count - 1) / 4]);
    pf_number(NULL, count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2);
    pf_number(NULL, values[count - 1 - (count - 1) / 4]);
    pf_array_end();
}

/* Ratios are to the default in the same round: what slows the machine down for a while is in both. */
static void put_variant(pf_bench *bench, uint32_t trial, uint32_t variant) {
    float times[MAX_ROUNDS], ratios[MAX_ROUNDS];
    int count = bench->rounds[variant];
    if (count == 0) return;
    for (int round = 0; round < count; round++) {
        times[round] = bench->times[variant][round];
        ratios[round] = times[round] / bench->times[0][round];
    }
    pf_event("variant");
    pf_integer("trial", trial);
    pf_integer("variant", variant);
    pf_integer("rounds", count);
    put_quartiles("us", times, count);
    put_quartiles("ratio", ratios, count);
    pf_number("difference", bench->difference[variant]);
    pf_event_end();
}

static pf_status run_trial(uint32_t index, double deadline_us) {
    static pf_bench bench;
    PF_TRY(prepare(&bench, &pf_trials_data.trials[index]));
    pf_status status = compare(&bench);
    if (status == PF_OK) status = run_rounds(&bench, deadline_us);
    for (uint32_t v = 0; status == PF_OK && v < bench.trial->variant_count; v++) put_variant(&bench, index, v);
    munmap(bench.memory, bench.memory_bytes);
    return status;
}

/* Each kernel gets its weight's share of the time that is left; what it does not need is the next one's. */
static pf_status run_trials(double seconds) {
    double end_us = pf_now_us() + seconds * 1e6, weight_left = 0.0;
    uint32_t done = 0;
    for (uint32_t i = 0; i < pf_trials_data.count; i++) weight_left += pf_trials_data.trials[i].weight;
    for (; done < pf_trials_data.count && !pf_stop_requested && pf_now_us() < end_us; done++) {
        double now_us = pf_now_us(), weight = pf_trials_data.trials[done].weight;
        PF_TRY(run_trial(done, now_us + (end_us - now_us) * (weight_left > 0.0 ? weight / weight_left : 1.0)));
        weight_left -= weight;
    }
    pf_event(pf_stop_requested ? "stopped" : "done");
    pf_integer("trials", done);
    pf_event_end();
    return PF_OK;
}

static pf_status parse(int count, char **arguments, double *seconds, int64_t *threads) {
    static const char usage[] = "usage: step tune --seconds S [--threads T]";
    if (count < 2 || strcmp(arguments[1], "tune") != 0) return pf_fail(PF_USER, "user.usage", usage);
    for (int i = 2; i < count; i += 2) {
        char *end = NULL;
        if (i + 1 == count) return pf_fail(PF_USER, "user.usage", usage);
        if (strcmp(arguments[i], "--seconds") == 0) *seconds = strtod(arguments[i + 1], &end);
        else if (strcmp(arguments[i], "--threads") == 0) *threads = strtoll(arguments[i + 1], &end, 10);
        if (end == NULL || end == arguments[i + 1] || *end) return pf_fail(PF_USER, "user.usage", usage);
    }
    if (!(*seconds > 0.0 && *seconds < 1e6)) return pf_fail(PF_USER, "user.usage", usage);
    return PF_OK;
}

static pf_status run(int count, char **arguments) {
    double seconds = 0.0;
    int64_t threads = pf_image_data.threads;
    pf_step *step;
    PF_TRY(parse(count, arguments, &seconds, &threads));
    PF_TRY(pf_create((pf_settings){.threads = (int)threads}, &step));
    pf_event("start");
    pf_integer("threads", threads);
    pf_event_end();
    pf_status status = run_trials(seconds);
    pf_destroy(step);
    return status;
}

int main(int count, char **arguments) {
    pf_stop_on_signals();
    return run(count, arguments) == PF_OK ? 0 : pf_report_failure();
}
