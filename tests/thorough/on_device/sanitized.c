/* sanitized.c (test): what an app may do with the library, and what it must not: two threads with a step each, errors of their
 * own, arrays that do not fit. Ends with 0 if all is as the header says; otherwise with the line that is not. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pockfarm.h"

enum { SAMPLES = 4, FEATURES = 6, CLASSES = 3, STEPS = 40 };

#define MUST(truth) \
    do { \
        if (!(truth)) fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #truth, pockfarm_error_message()), exit(1); \
    } while (0)
#define IS(text, status, call) \
    do { \
        MUST((call) == (status)); \
        MUST(strcmp(pockfarm_error_code(), text) == 0); \
    } while (0)

static const char *folder;

typedef struct {
    int number;
    double losses[STEPS];
    float w[CLASSES * FEATURES];
} work;

static void fill(float *x, int64_t *y, int count) {
    for (int i = 0; i < count * FEATURES; i++) x[i] = (float)((i * i * 3 + i) % 11) / 5.0f - 1.0f;
    for (int i = 0; i < count; i++) y[i] = i % CLASSES;
}

/* Elements that do not lie as their type wants: an app may read them from a packet. */
static void *unaligned(const void *data, size_t bytes, unsigned char *room) {
    unsigned char *place = room + 1;
    memcpy(place, data, bytes);
    return place;
}

static void mistakes(pockfarm_step *step, float *x, int64_t *y) {
    double loss;
    size_t x_bytes = SAMPLES * FEATURES * sizeof *x, y_bytes = SAMPLES * sizeof *y;
    pockfarm_array good[] = {{POCKFARM_INPUT, "x", x, x_bytes}, {POCKFARM_LABEL, "labels", y, y_bytes}};
    pockfarm_array short_x[] = {{POCKFARM_INPUT, "x", x, x_bytes - 1}, good[1]};
    pockfarm_array twice[] = {good[0], good[0], good[1]};
    pockfarm_array nowhere[] = {{POCKFARM_INPUT, "x", NULL, x_bytes}, good[1]};
    pockfarm_array nameless[] = {{POCKFARM_INPUT, NULL, x, x_bytes}, good[1]};
    pockfarm_array odd[] = {{POCKFARM_PARAMETER, "x", x, x_bytes}, good[1]};
    pockfarm_score score;
    pockfarm_tensor tensor;
    float place[CLASSES * FEATURES];
    IS("data.shape", POCKFARM_DATA, pockfarm_train(step, short_x, 2, &loss));
    IS("user.array", POCKFARM_USER, pockfarm_train(step, twice, 3, &loss));
    IS("data.shape", POCKFARM_DATA, pockfarm_train(step, nowhere, 2, &loss));
    IS("user.input", POCKFARM_USER, pockfarm_train(step, nameless, 2, &loss));
    IS("user.array", POCKFARM_USER, pockfarm_train(step, odd, 2, &loss));
    IS("user.labels", POCKFARM_USER, pockfarm_train(step, good, 1, &loss));
    IS("user.input", POCKFARM_USER, pockfarm_train(step, good + 1, 1, &loss));
    IS("user.input", POCKFARM_USER, pockfarm_train(step, NULL, 0, &loss));
    IS("data.empty", POCKFARM_DATA, pockfarm_evaluate(step, good, 2, 0, &score));
    IS("data.shape", POCKFARM_DATA, pockfarm_evaluate(step, good, 2, INT64_MAX, &score));
    IS("data.shape", POCKFARM_DATA, pockfarm_evaluate(step, good, 2, SAMPLES + 1, &score));
    IS("user.labels", POCKFARM_USER, pockfarm_infer(step, good, 2, SAMPLES, place, sizeof place));
    IS("user.output", POCKFARM_USER, pockfarm_infer(step, good, 1, SAMPLES, place, 3));
    IS("user.output", POCKFARM_USER, pockfarm_infer(step, good, 1, SAMPLES, NULL, SAMPLES * CLASSES * sizeof(float)));
    IS("user.parameter", POCKFARM_USER, pockfarm_read(step, "nothing", place, sizeof place));
    IS("user.parameter", POCKFARM_USER, pockfarm_read(step, NULL, place, sizeof place));
    IS("weights.shape", POCKFARM_WEIGHTS, pockfarm_read(step, "w", place, sizeof place - 1));
    IS("user.output", POCKFARM_USER, pockfarm_read(step, "w", NULL, sizeof place));
    IS("user.index", POCKFARM_USER, pockfarm_describe(POCKFARM_INPUT, 1, &tensor));
    IS("user.index", POCKFARM_USER, pockfarm_describe(POCKFARM_PARAMETER, -1, &tensor));
    IS("user.index", POCKFARM_USER, pockfarm_describe((pockfarm_kind)9, 0, &tensor));
    IS("user.weights", POCKFARM_USER, pockfarm_load(step, NULL, 0));
    IS("user.output", POCKFARM_USER, pockfarm_save(step, "", POCKFARM_ALL));
    IS("user.output", POCKFARM_USER, pockfarm_save(step, "/nowhere/at/all", POCKFARM_ALL));
    IS("user.learning-rate", POCKFARM_USER, pockfarm_set_learning_rate(step, (double)NAN));
    y[1] = CLASSES;
    IS("data.label", POCKFARM_DATA, pockfarm_train(step, good, 2, &loss));
    y[1] = INT64_MIN;
    IS("data.label", POCKFARM_DATA, pockfarm_train(step, good, 2, &loss));
    y[1] = 1;
    float kept = x[5];
    x[5] = INFINITY;
    IS("data.not_finite", POCKFARM_DATA, pockfarm_train(step, good, 2, &loss));
    x[5] = kept;
    MUST(pockfarm_steps_done(step) == 0);
}

static void *train(void *argument) {
    work *own = argument;
    float x[7 * FEATURES], logits[7 * CLASSES], before[CLASSES * FEATURES];
    int64_t y[7];
    char weights[4096], saved[4096];
    unsigned char x_room[sizeof x + 1], y_room[sizeof y + 1];
    pockfarm_score score;
    pockfarm_match match;
    pockfarm_step *step;
    const char *paths[] = {weights};
    snprintf(weights, sizeof weights, "%s/weights.safetensors", folder);
    snprintf(saved, sizeof saved, "%s/saved%d.safetensors", folder, own->number);
    fill(x, y, 7);
    MUST(pockfarm_create(NULL, &step) == POCKFARM_OK);
    IS("weights.missing", POCKFARM_USER, pockfarm_train(step, NULL, 0, NULL));
    MUST(pockfarm_load(step, paths, 1) == POCKFARM_OK);
    MUST(pockfarm_loaded(step, 0, &match) == POCKFARM_OK && match.taken == 2 && match.parameters == 2 && match.ignored == 0);
    mistakes(step, x, y);
    pockfarm_array arrays[] = {
        {POCKFARM_INPUT, "x", unaligned(x, SAMPLES * FEATURES * sizeof *x, x_room), SAMPLES * FEATURES * sizeof *x},
        {POCKFARM_LABEL, "labels", unaligned(y, SAMPLES * sizeof *y, y_room), SAMPLES * sizeof *y}};
    for (int i = 0; i < STEPS; i++) MUST(pockfarm_train(step, arrays, 2, &own->losses[i]) == POCKFARM_OK);
    MUST(pockfarm_steps_done(step) == STEPS);
    pockfarm_array seven[] = {{POCKFARM_INPUT, "x", unaligned(x, sizeof x, x_room), sizeof x},
                              {POCKFARM_LABEL, "labels", unaligned(y, sizeof y, y_room), sizeof y}};
    MUST(pockfarm_evaluate(step, seven, 2, 7, &score) == POCKFARM_OK && score.samples == 7 && isfinite(score.loss));
    MUST(pockfarm_infer(step, seven, 1, 7, logits, sizeof logits) == POCKFARM_OK);
    MUST(pockfarm_read(step, "w", own->w, sizeof own->w) == POCKFARM_OK);
    MUST(pockfarm_save(step, saved, POCKFARM_ALL) == POCKFARM_OK);
    memcpy(before, own->w, sizeof before);
    before[0] = NAN;
    IS("weights.not_finite", POCKFARM_WEIGHTS, pockfarm_write(step, "w", before, sizeof before));
    before[0] = 0.5f;
    MUST(pockfarm_write(step, "w", before, sizeof before) == POCKFARM_OK);
    MUST(pockfarm_read(step, "w", logits, sizeof before) == POCKFARM_OK && memcmp(logits, before, sizeof before) == 0);
    pockfarm_destroy(step);
    return NULL;
}

int main(int count, char **arguments) {
    static work works[2] = {{.number = 0}, {.number = 1}};
    pthread_t threads[2];
    MUST(count == 2);
    folder = arguments[1];
    pockfarm_destroy(NULL);
    IS("user.step", POCKFARM_USER, pockfarm_train(NULL, NULL, 0, NULL));
    MUST(pockfarm_steps_done(NULL) == 0);
    for (int i = 0; i < 2; i++) MUST(pthread_create(&threads[i], NULL, train, &works[i]) == 0);
    for (int i = 0; i < 2; i++) MUST(pthread_join(threads[i], NULL) == 0);
    MUST(memcmp(works[0].losses, works[1].losses, sizeof works[0].losses) == 0);
    MUST(memcmp(works[0].w, works[1].w, sizeof works[0].w) == 0);
    MUST(works[0].losses[STEPS - 1] < works[0].losses[0]);
    IS("user.step", POCKFARM_USER, pockfarm_save(NULL, "x", POCKFARM_ALL));
    return 0;
}
