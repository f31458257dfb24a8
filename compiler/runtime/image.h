/* image.h: the tables that the compiler generates for one model (compiler/codegen/linking/tables.py writes `pf_image_data`).
 *
 * Every byte a program touches is in one mapping: weights, then optimizer state, then the arena. Offsets here count
 * from its start. */
#ifndef POCKFARM_IMAGE_H
#define POCKFARM_IMAGE_H

#include <stdbool.h>

#include "pockfarm_step.h"
#include "schedule.h"
#include "tvm_abi.h"

/* Of every operand's storage; the compiler's half is compiler/kernels/alignment.py. */
#define PF_ALIGNMENT 64

#define PF_NOWHERE UINT64_MAX
#define PF_MAX_OPERANDS 64
#define PF_MAX_INPUTS 16
#define PF_MAX_LABELS 8

typedef struct {
    uint64_t offset;
    int64_t count;
    pf_dtype dtype;
} pf_operand;

/* One start of a function on a device that runs groups of items. */
typedef struct {
    const char *entry;
    uint32_t code;           /* which of the image's texts holds it */
    uint64_t groups, items;  /* of a group */
    uint64_t shared_bytes;
    uint32_t first_argument, argument_count; /* in `arguments` of the program: numbers of the call's operands */
} pf_launch;

/* `kernel` is called, or is NULL and launches are made one after the other. */
typedef struct {
    const char *name, *phase;
    pf_kernel_fn *kernel;
    uint32_t first_operand, operand_count;
    uint64_t flops, bytes_read, bytes_written;
    uint32_t first_launch, launch_count;
} pf_call;

/* What a device's driver takes of a kernel, and what it takes where it refuses that (NULL: nothing). Zeros follow both. */
typedef struct {
    const char *code;
    uint64_t bytes;
    const char *other;
    uint64_t other_bytes;
} pf_code;

/* An axis of the file, and how far apart in memory, in elements, what lies along it is: `offsets[i]` from its first, or
 * `stride` from one to the next. */
typedef struct {
    int64_t extent, stride;
    const int64_t *offsets;
} pf_axis;

/* The file holds `file_shape`; memory holds file.reshape(view_shape).transpose(perm), unless `axes` says how it lies. */
typedef struct {
    const char *file_name;
    enum { PF_PARAMETER, PF_OPTIMIZER, PF_CONSTANT } role;
    pf_dtype dtype;
    bool trained;
    bool permuted;
    bool copy; /* of a parameter or constant in another layout: loaded from the same tensor, never written */
    int32_t file_rank, view_rank;
    int64_t file_shape[PF_MAX_RANK], view_shape[PF_MAX_RANK];
    int32_t perm[PF_MAX_RANK];
    const pf_axis *axes; /* where channels are kept in another order than the file's */
    int32_t axis_count;
    int64_t count;
    uint64_t offset;
} pf_state;

/* A number that a step is fed: what `kind` says of the learning rate, `base` and the step's number t, from 1. */
typedef struct {
    enum { PF_RATE, PF_REST, PF_REST_ROOT, PF_STEP_POWER } kind; /* rate, 1 - base^t, sqrt(1 - base^t), t^base */
    double base;
    uint64_t offset;
} pf_hyper;

typedef struct {
    const pf_call *calls;
    uint32_t call_count;
    const pf_operand *operands;
    const pf_launch *launches;
    const uint8_t *arguments;
    uint64_t inputs[PF_MAX_INPUTS];
    uint64_t labels[PF_MAX_LABELS], loss, logits;
    const pf_hyper *hyper;
    uint32_t hyper_count;
    uint64_t random_seed, random_step; /* i64: what random generators draw by */
} pf_program;

/* One loss. Its output lies at `offset` after a forward run. */
typedef struct {
    enum { PF_CROSS_ENTROPY, PF_MSE, PF_L1, PF_HUBER, PF_SMOOTH_L1, PF_BCE_WITH_LOGITS, PF_GRAPH } kind;
    const char *name; /* of the kind */
    pf_tensor output; /* PF_GRAPH: one number, the loss itself */
    uint64_t offset;
    int32_t label; /* which array of labels; -1: none */
    int32_t own;   /* which input of the model its labels are; -1: none */
    int32_t shift; /* 1: a position is measured against the label of the next one */
    int64_t classes, class_stride; /* of the output: how many, and how many elements apart */
    int64_t label_stride;          /* the same within one sample */
    int64_t ignored;
    double weight, delta, smoothing;
    bool is_sum;
    const double *class_weights, *pos_weight; /* one for each class; NULL: all 1 */
} pf_term;

typedef struct {
    const char *key, *value;
} pf_identity;

typedef struct {
    const char *name;
    double value;
} pf_setting;

typedef struct {
    pf_program train, forward, accumulate; /* accumulate: no calls where a step has one micro-batch */
    const pf_state *states;
    uint32_t state_count;
    const char *channels; /* digest of those that optimizer state is of; empty where they are the first ones */
    pf_tensor inputs[PF_MAX_INPUTS];
    int32_t input_count;
    int64_t batch;
    pf_tensor labels[PF_MAX_LABELS];
    int32_t label_count;
    pf_tensor logits;
    pf_term terms[PF_MAX_TERMS];
    int32_t term_count;
    const char *optimizer;
    double learning_rate;
    pf_schedule schedule; /* but for `steps`, which are a run's */
    const pf_setting *settings; /* of the optimizer, for `info` */
    uint32_t setting_count;
    int32_t micro_batches; /* of a step: the last is a run of `train`, the others of `accumulate` */
    bool mean_of_labels;   /* the last one's loss is that of all, by the labels that count; else theirs are averaged */
    uint64_t accumulator_offset, accumulator_bytes; /* cleared before a step */
    int32_t threads;
    pf_sizes sizes;
    uint64_t optimizer_offset, arena_offset, total_bytes;
    const pf_identity *identity;
    uint32_t identity_count;
    const pf_code *codes;
    uint32_t code_count;
} pf_image;

extern const pf_image pf_image_data;

/* Elements of a sample: all of a tensor that is the same for every sample. */
static inline int64_t pf_sample_count(const pf_tensor *tensor) {
    return tensor->batch_axis < 0 ? tensor->count : tensor->count / tensor->shape[tensor->batch_axis];
}

/* Elements of a sample that lie together. */
static inline int64_t pf_sample_run(const pf_tensor *tensor) {
    int64_t run = pf_sample_count(tensor);
    for (int axis = 0; axis < tensor->batch_axis; axis++) run /= tensor->shape[axis];
    return run;
}

/* Where element `element` of a sample, as it lies by itself, is in a batch. */
static inline int64_t pf_sample_place(const pf_tensor *tensor, int64_t sample, int64_t element) {
    if (tensor->batch_axis < 0) return element;
    int64_t run = pf_sample_run(tensor), samples = tensor->shape[tensor->batch_axis];
    return (element / run * samples + sample) * run + element % run;
}

static inline size_t pf_item_bytes(pf_dtype dtype) {
    static const uint8_t bytes[] = {4, 8, 4, 1, 2, 2, 1};
    return bytes[dtype];
}

static inline const char *pf_dtype_name(pf_dtype dtype) {
    static const char *const names[] = {"f32", "i64", "i32", "bool", "f16", "bf16", "i8"};
    return names[dtype];
}

#endif
