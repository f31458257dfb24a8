/* train.c: what an app does with libpockfarm_step.so, for any model.
 *
 *     cc -O2 -I include example/train.c -L lib -lpockfarm_step -Wl,-rpath,"$PWD/lib" -o train
 *     ./train weights.safetensors trained.safetensors 10 input.raw labels.raw
 *
 * After the number of steps comes one file for each input, then one for each array of labels: the elements of one step's
 * samples, without a header (`array.tofile("input.raw")` in NumPy). Every step takes the same samples. Without files it says
 * what it needs. Prints the loss of each step. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "pockfarm.h"

enum { MOST = 32 };

static int failed(void) {
    fprintf(stderr, "train: %s [%s]\n", pockfarm_error_message(), pockfarm_error_code());
    return 1;
}

/* The elements of a file, all of them; `bytes` must be its size. */
static void *contents(const char *path, size_t bytes) {
    FILE *file = fopen(path, "rb");
    char *data = malloc(bytes + 1);
    if (!file || !data || fread(data, 1, bytes + 1, file) != bytes) {
        fprintf(stderr, "train: %s cannot be read, or does not have %zu bytes\n", path, bytes);
        exit(1);
    }
    fclose(file);
    return data;
}

static void tell(const pockfarm_tensor *tensor, int64_t samples) {
    static const char *const types[] = {"float32", "int64", "int32", "bool"};
    fprintf(stderr, "  %s: %s [", tensor->name, types[tensor->dtype]);
    if (!tensor->is_shared) fprintf(stderr, "%" PRId64 "%s", samples, tensor->rank ? ", " : "");
    for (int axis = 0; axis < tensor->rank; axis++) fprintf(stderr, "%s%" PRId64, axis ? ", " : "", tensor->shape[axis]);
    fprintf(stderr, "]\n");
}

/* Every input and array of labels, in order; `files` NULL: only told. Returns how many there are. */
static int gather(pockfarm_array *arrays, char **files, int64_t samples) {
    static const pockfarm_kind kinds[] = {POCKFARM_INPUT, POCKFARM_LABEL};
    int taken = 0;
    for (int k = 0; k < 2; k++)
        for (int32_t i = 0; i < pockfarm_count(kinds[k]) && taken < MOST; i++, taken++) {
            pockfarm_tensor tensor;
            pockfarm_describe(kinds[k], i, &tensor);
            size_t bytes = (size_t)(tensor.is_shared ? tensor.bytes : samples * tensor.bytes);
            if (files) arrays[taken] = (pockfarm_array){kinds[k], tensor.name, contents(files[taken], bytes), bytes};
            else tell(&tensor, samples);
        }
    return taken;
}

int main(int count, char **arguments) {
    pockfarm_build build;
    pockfarm_array arrays[MOST];
    pockfarm_step *step;
    double loss;
    if (pockfarm_abi_version() != POCKFARM_ABI_VERSION) return fprintf(stderr, "train: a library of another ABI\n"), 1;
    pockfarm_about(&build);
    int64_t samples = build.batch * build.micro_batches;
    int needed = pockfarm_count(POCKFARM_INPUT) + pockfarm_count(POCKFARM_LABEL);
    if (count != 4 + needed) {
        fprintf(stderr, "usage: train WEIGHTS TRAINED STEPS FILE...\n%d files of raw elements, one for each of:\n", needed);
        gather(NULL, NULL, samples);
        fprintf(stderr, "memory of a step: %" PRIu64 " bytes\n", build.memory_bytes);
        return 2;
    }
    const char *weights[] = {arguments[1]};
    if (pockfarm_create(NULL, &step) || pockfarm_load(step, weights, 1)) return failed();
    int given = gather(arrays, arguments + 4, samples);
    for (long i = 0; i < strtol(arguments[3], NULL, 10); i++) {
        if (pockfarm_train(step, arrays, given, &loss)) return failed();
        printf("%.9g\n", loss);
    }
    if (pockfarm_save(step, arguments[2], POCKFARM_ALL)) return failed();
    pockfarm_destroy(step);
    for (int i = 0; i < given; i++) free((void *)arrays[i].data);
    return 0;
}
