/* pockfarm_step.h: one compiled training step, for the `step` command and the shared library (library/pockfarm.h, which is what
 * apps use: it checks what it is given, and promises an ABI).
 *
 * The model, its memory plan and its kernels are linked in; a process may have several steps of them, each with weights,
 * memory and threads of its own. All memory of a step is mapped by `pf_create`. One thread at a time may use a step; loads and
 * saves share a buffer, so that those of all steps take turns.
 *
 *     pf_step *step;
 *     if (pf_create((pf_settings){0}, &step) || pf_load(step, paths, 1)) return report(pf_last_error());
 *     for (;;) {
 *         pf_bind_input(step, PF_TRAIN, 0, images, image_bytes);
 *         pf_bind_label(step, 0, labels, label_bytes);
 *         if (pf_train_step(step, &loss)) break;
 *     }
 *     pf_save(step, "checkpoint.safetensors", PF_SAVE_ALL);
 */
#ifndef POCKFARM_STEP_H
#define POCKFARM_STEP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PF_MAX_RANK 8
#define PF_MAX_WEIGHTS 8 /* files of one load */
#define PF_MAX_TERMS 16  /* losses that are added up */
#define PF_NAMED 3

/* PF_F16, PF_BF16 lie between kernels only, PF_I8 is of frozen weights: no input, label, output or parameter is of them. */
typedef enum { PF_F32, PF_I64, PF_I32, PF_BOOL, PF_F16, PF_BF16, PF_I8 } pf_dtype;
typedef enum { PF_TRAIN, PF_FORWARD } pf_program_kind;
typedef enum { PF_SAVE_ALL, PF_SAVE_PARAMETERS } pf_save_set;

/* Who must act on a failure; 0 is success. */
typedef enum { PF_OK, PF_USER, PF_DATA, PF_WEIGHTS, PF_LIMITS, PF_INTERNAL } pf_status;

typedef struct {
    pf_status status;
    const char *code; /* stable and dotted: "data.shape" */
    char message[768];
    int64_t step; /* `train.diverged`: the step that did, counted from the run's first; else 0 */
} pf_error;

/* A tensor of the model's interface. */
typedef struct {
    const char *name;
    pf_dtype dtype;
    int32_t rank;
    int64_t shape[PF_MAX_RANK];
    int32_t batch_axis;  /* where its samples lie; -1: nowhere, it is the same for every sample */
    int64_t count;       /* elements */
    int64_t index_limit; /* integer inputs: valid values are -limit .. limit-1 (rows of a table), of labels 0 .. limit-1
                          * and `ignored`; 0: any */
    int64_t ignored;     /* of labels that are classes: what counts for nothing */
} pf_tensor;

typedef struct {
    uint64_t weights_bytes, optimizer_bytes, arena_bytes;
} pf_sizes;

/* Of one loss: the mean over what was scored so far is loss_sum / counted. */
typedef struct {
    double loss_sum;
    int64_t terms;   /* labels that count (cross-entropy), elements, or batches (a loss of the graph's own) */
    int64_t correct; /* cross-entropy: labels whose logit is the largest */
    double counted;  /* what the mean divides by: `terms`, or the weights of the labels' classes */
} pf_score;

/* How one checkpoint fits this build. */
typedef struct {
    int64_t taken, parameters; /* the build's parameters that the file has, and all that there are */
    int64_t ignored;           /* the file's tensors that the build has no place for */
    char ignored_names[PF_NAMED][80]; /* the first of them: cut, control characters replaced */
} pf_match;

typedef struct pf_step pf_step;

/* What failed last in the calling thread. */
const pf_error *pf_last_error(void);

/* How a step uses the machine's cores; all zero is a good choice. */
typedef struct {
    int threads;     /* 0: the build's number (also the most), or one per core that the process may use if those are fewer */
    const char *pin; /* NULL or "off": as the system decides; "auto": on the fastest cores where cores differ; or a list of
                      * cores, one thread each: "4-7" or "0,2". The calling thread is the first; `pf_destroy` frees it. */
    int spare_core;  /* nonzero: leave one core to the rest of the system */
} pf_settings;

/* Map the planned memory and start the threads. */
pf_status pf_create(pf_settings settings, pf_step **step);
void pf_destroy(pf_step *step);

/* Load safetensors checkpoints, at most PF_MAX_WEIGHTS; a tensor is taken from the last file that has it. Parameters and
 * constants must all be found, and every file must have a parameter of this build (`weights.unmatched`); optimizer state
 * that is in no file starts at zero. */
pf_status pf_load(pf_step *step, const char *const *paths, int count);

/* How file `file` of the last `pf_load` fits: tell somebody if it does so in part. */
const pf_match *pf_loaded(const pf_step *step, int file);

/* Write a checkpoint beside `path`, then rename it into place. */
pf_status pf_save(pf_step *step, const char *path, pf_save_set what);

int pf_input_count(void);
const pf_tensor *pf_input(int index);
int pf_label_count(void);
const pf_tensor *pf_label(int index);
const pf_tensor *pf_logits_tensor(void);
int64_t pf_batch(void);
int64_t pf_step_samples(void); /* of a whole step: those of all its micro-batches */
int pf_term_count(void);
pf_sizes pf_planned_sizes(void);

/* Where a program reads an input in its next run: fill it before every run, asking again (a run reuses the bytes, and
 * micro-batches may lie elsewhere). NULL: the program ignores it. */
void *pf_input_buffer(pf_step *step, pf_program_kind program, int input);
void *pf_label_buffer(pf_step *step, int label);

/* Copy a whole batch; `bytes` must be the tensor's size. Values are not checked. */
pf_status pf_bind_input(pf_step *step, pf_program_kind program, int input, const void *data, size_t bytes);
pf_status pf_bind_label(pf_step *step, int label, const void *data, size_t bytes);

void pf_set_learning_rate(pf_step *step, double learning_rate);

/* Of what the model's random generators draw (0 until set): the same seed, step and model give the same numbers. */
void pf_set_seed(pf_step *step, uint64_t seed);

/* Forward and backward of the bound batch, and the update. Of a build whose steps have several micro-batches (`accumulate` in
 * its spec), a call takes one, and the last of a step updates: bind before each. `*loss` is the micro-batch's; with `mean: labels` there,
 * the last one's is that of the step. `train.diverged` if it is not finite. */
pf_status pf_train_step(pf_step *step, float *loss);

/* Logits of the bound batch. */
pf_status pf_forward(pf_step *step);

/* Logits of the last `pf_forward` (valid until the next run). */
const float *pf_logits(const pf_step *step);

/* Add sample `sample` of the last `pf_forward` to `score` of loss `term`: `labels` are that sample's labels from position
 * `first` on, i64 (cross-entropy) or f32. In double precision. */
void pf_score_labels(const pf_step *step, int term, int64_t sample, int64_t first, int64_t count, const void *labels,
                     pf_score *score);

/* Add the last `pf_forward`, all of its batch, to `score` of loss `term`, which the graph itself computes. */
void pf_score_batch(const pf_step *step, int term, pf_score *score);

/* The loss of all that was scored, `samples` samples, from the scores of each: the weighted sum of their means; of a loss
 * that adds up, what a batch of the data has on average. NaN if no label counts. */
double pf_score_loss(const pf_score *scores, int64_t samples);

/* Steps done, those of the loaded checkpoint included. */
int64_t pf_steps_done(const pf_step *step);

#ifdef __cplusplus
}
#endif
#endif
