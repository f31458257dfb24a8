/* pockfarm.h: one compiled training step as a shared library, libpockfarm_step.so.
 *
 *     pockfarm_step *step;
 *     const char *weights[] = {"weights.safetensors"};
 *     pockfarm_array data[] = {{POCKFARM_INPUT, "input", images, image_bytes}, {POCKFARM_LABEL, "labels", labels, label_bytes}};
 *     if (pockfarm_create(NULL, &step) || pockfarm_load(step, weights, 1)) return tell(pockfarm_error_message());
 *     for (int i = 0; i < 100; i++)
 *         if (pockfarm_train(step, data, 2, &loss)) return tell(pockfarm_error_message());
 *     pockfarm_save(step, "trained.safetensors", POCKFARM_PARAMETERS);
 *     pockfarm_destroy(step);
 *
 * Arrays are as .npy files of the `step` command: samples first, wherever the model has them, elements one after the other in
 * C order, of exactly the type that `pockfarm_describe` says. What they hold is checked before any of it is used.
 *
 * Several steps: a process may have any number, and steps of several such libraries (open each with dlopen and RTLD_LOCAL: all
 * have the same names). Different threads may use different steps at the same time; one step belongs to one thread at a time.
 * A step does not survive fork(). The calling thread needs 1 MB of stack.
 *
 * The library never ends the process, writes nothing to standard output or error, sets no signal handlers, and keeps nothing
 * between calls but its steps and, for each thread, what failed last. All memory for training is mapped by `pockfarm_create`:
 * `memory_bytes` of `pockfarm_about`, and about 32 kB beside it.
 */
#ifndef POCKFARM_H
#define POCKFARM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(POCKFARM_BUILDS_LIBRARY)
#define POCKFARM_API __attribute__((visibility("default")))
#else
#define POCKFARM_API
#endif

/* What this header says of structs, numbers and functions. A library of another number must not be used: compare it with
 * `pockfarm_abi_version`. Functions may be added without a new one. */
#define POCKFARM_ABI_VERSION 1

#define POCKFARM_MAX_RANK 8

/* Who must act on a failure; 0 is success. */
typedef enum {
    POCKFARM_OK,
    POCKFARM_USER,    /* the call: a wrong name, number or order */
    POCKFARM_DATA,    /* an array */
    POCKFARM_WEIGHTS, /* a checkpoint */
    POCKFARM_LIMITS,  /* memory, threads, the disk */
    POCKFARM_INTERNAL /* PockFarm */
} pockfarm_status;

typedef enum { POCKFARM_F32, POCKFARM_I64, POCKFARM_I32, POCKFARM_BOOL } pockfarm_dtype; /* a bool is a byte */
typedef enum { POCKFARM_INPUT, POCKFARM_LABEL, POCKFARM_OUTPUT, POCKFARM_PARAMETER } pockfarm_kind;
typedef enum { POCKFARM_ALL, POCKFARM_PARAMETERS } pockfarm_content; /* all: the optimizer's state and constants too */

typedef struct pockfarm_step pockfarm_step;

/* A tensor of the step. Of inputs, labels and outputs, `shape` is that of one sample: an array of n samples is [n, shape...].
 * What `is_shared` is the same for every sample: its array is [shape...]. Of parameters it is the file's. */
typedef struct {
    const char *name; /* as long as the library is loaded */
    int32_t dtype;    /* pockfarm_dtype */
    int32_t rank;
    int64_t shape[POCKFARM_MAX_RANK];
    int64_t bytes;      /* of `shape` */
    int64_t classes;    /* integers must be below: labels 0 .. classes-1 or `ignored`, inputs -classes .. classes-1; 0: any */
    int64_t ignored;    /* the label that counts for nothing */
    int32_t is_shared;  /* inputs */
    int32_t is_trained; /* parameters: all of it or a part learns; buffers that only follow are not */
} pockfarm_tensor;

/* What was built. Samples of a training step: `batch` * `micro_batches`. */
typedef struct {
    int64_t batch, micro_batches;
    uint64_t weights_bytes, optimizer_bytes, arena_bytes, memory_bytes; /* planned; memory_bytes is all of it */
    double learning_rate;                                               /* until another is set */
    const char *loss, *optimizer;
    int32_t threads; /* the most that a step uses */
} pockfarm_build;

/* How a step uses the cores; all zero: the build's threads, or one per core if those are fewer, wherever the system puts them. */
typedef struct {
    int32_t threads;
    int32_t spare_core; /* nonzero: leave one core to the rest of the system */
    const char *pin;    /* NULL or "off"; "auto": the fastest cores where cores differ; or cores, one thread each: "4-7", "0,2".
                         * The thread that creates the step is the first; that which destroys it is freed again. */
} pockfarm_settings;

/* An array that the caller owns; it is read during the call only. */
typedef struct {
    pockfarm_kind kind; /* POCKFARM_INPUT or POCKFARM_LABEL */
    const char *name;
    const void *data;
    size_t bytes;
} pockfarm_array;

typedef struct {
    int64_t samples; /* that were scored: of a loss that the model itself computes, whole batches only */
    double loss;     /* the mean over all labels that count; NaN if none does */
    double accuracy; /* of the first cross-entropy; NaN without one */
} pockfarm_score;

/* How one file of the last load fits. */
typedef struct {
    int64_t taken, parameters; /* the build's parameters that it has, and all that there are */
    int64_t ignored;           /* its tensors that the build has no place for */
} pockfarm_match;

/* ---------------------------------------------------------------------------------------------- what the library is */

POCKFARM_API int32_t pockfarm_abi_version(void);
POCKFARM_API void pockfarm_about(pockfarm_build *build);

/* `model`, `plan`, `spec`, `compiler`, `tuning` (sha256:...) or `target`; NULL for what there is not. */
POCKFARM_API const char *pockfarm_identity(const char *key);

POCKFARM_API int32_t pockfarm_count(pockfarm_kind kind);
POCKFARM_API pockfarm_status pockfarm_describe(pockfarm_kind kind, int32_t index, pockfarm_tensor *tensor);

/* ------------------------------------------------------------------------------------------------------------- steps */

/* `settings` NULL: all zero. The step has no weights yet. */
POCKFARM_API pockfarm_status pockfarm_create(const pockfarm_settings *settings, pockfarm_step **step);
POCKFARM_API void pockfarm_destroy(pockfarm_step *step); /* NULL: nothing */

/* Read safetensors checkpoints, at most 8: a tensor comes from the last file that has it, the optimizer's state, if no file has
 * it, begins at zero. The bundle's weights.safetensors first, then one's own. A load that fails leaves a step without weights. */
POCKFARM_API pockfarm_status pockfarm_load(pockfarm_step *step, const char *const *paths, int32_t count);
POCKFARM_API pockfarm_status pockfarm_loaded(const pockfarm_step *step, int32_t file, pockfarm_match *match);

/* Write a checkpoint; `path` is replaced when it is complete. */
POCKFARM_API pockfarm_status pockfarm_save(pockfarm_step *step, const char *path, pockfarm_content what);

/* One whole step on `batch` * `micro_batches` samples, with every input and every array of labels: forward, backward, update.
 * `loss`, before the update, may be NULL. A loss that is not finite is an error (`train.diverged`): load weights and begin again. */
POCKFARM_API pockfarm_status pockfarm_train(pockfarm_step *step, const pockfarm_array *arrays, int32_t count, double *loss);

/* The loss on any number of samples, with inputs and labels. Nothing is changed. */
POCKFARM_API pockfarm_status pockfarm_evaluate(pockfarm_step *step, const pockfarm_array *arrays, int32_t count, int64_t samples,
                                               pockfarm_score *score);

/* The output of any number of samples, [samples, shape...] of POCKFARM_OUTPUT 0, to `output`, which has `bytes`. */
POCKFARM_API pockfarm_status pockfarm_infer(pockfarm_step *step, const pockfarm_array *arrays, int32_t count, int64_t samples,
                                            float *output, size_t bytes);

/* A parameter by name, in the shape that it has in a checkpoint. What is written must be finite; the optimizer's state stays. */
POCKFARM_API pockfarm_status pockfarm_read(pockfarm_step *step, const char *name, void *data, size_t bytes);
POCKFARM_API pockfarm_status pockfarm_write(pockfarm_step *step, const char *name, const void *data, size_t bytes);

POCKFARM_API pockfarm_status pockfarm_set_learning_rate(pockfarm_step *step, double learning_rate);

/* Of dropout and other random generators of the model (0 until set): same seed, steps and data, same numbers. */
POCKFARM_API void pockfarm_set_seed(pockfarm_step *step, uint64_t seed);

/* Those of the loaded checkpoint included. */
POCKFARM_API int64_t pockfarm_steps_done(const pockfarm_step *step);

/* ------------------------------------------------------------------------------------------------------------ errors */

/* What failed last in the calling thread: a stable dotted code ("data.shape"), and what to do. Until the thread's next failure. */
POCKFARM_API const char *pockfarm_error_code(void);
POCKFARM_API const char *pockfarm_error_message(void);

#ifdef __cplusplus
}
#endif
#endif
