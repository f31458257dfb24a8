/* embedding.c: what the shared library does with pockfarm_step.h: four samples, sixty steps, a score, a checkpoint. */
#include <stdio.h>
#include <string.h>

#include "pockfarm_step.h"

static int fail(void) {
    fprintf(stderr, "%s: %s\n", pf_last_error()->code, pf_last_error()->message);
    return 1;
}

static void fill(float *x, int64_t *labels) {
    for (int64_t i = 0; i < pf_input(0)->count; i++) x[i] = (float)((i * i * 3 + i) % 11) / 5.0f - 1.0f;
    for (int64_t i = 0; i < pf_label(0)->count; i++) labels[i] = i % 3;
}

int main(int count, char **arguments) {
    pf_step *step, *second;
    pf_score score = {0};
    float x[64], first = 0, loss = 0;
    int64_t labels[16];
    const char *paths[] = {arguments[1]};
    if (count != 3 || pf_input_count() != 1 || pf_input(0)->count > 64 || pf_label(0)->count > 16) return 2;
    if (pf_create((pf_settings){0}, &step) || pf_load(step, paths, 1)) return fail();
    if (pf_create((pf_settings){0}, &second) || second == step || pf_load(second, paths, 1)) return 3; /* as many as one likes */
    fill(x, labels);
    if (pf_bind_input(step, PF_TRAIN, 0, x, 3) != PF_DATA) return 4; /* wrong size */
    if (pf_bind_input(step, PF_TRAIN, 9, x, 3) != PF_USER) return 5; /* no such input */
    if (pf_label_count() != 1 || pf_bind_label(step, 1, labels, 3) != PF_USER) return 7; /* no such labels */
    for (int i = 0; i < 60; i++) {
        if (pf_bind_input(step, PF_TRAIN, 0, x, (size_t)pf_input(0)->count * 4)) return fail();
        if (pf_bind_label(step, 0, labels, (size_t)pf_label(0)->count * 8)) return fail();
        if (pf_train_step(step, &loss)) return fail();
        if (i == 0) first = loss;
    }
    if (pf_steps_done(step) != 60) return 6;
    if (pf_bind_input(step, PF_FORWARD, 0, x, (size_t)pf_input(0)->count * 4) || pf_forward(step)) return fail();
    for (int64_t i = 0; i < pf_label(0)->count; i++) pf_score_labels(step, 0, i, 0, 1, &labels[i], &score);
    if (pf_save(step, arguments[2], PF_SAVE_ALL)) return fail();
    printf("%g %g %lld\n", first, loss, (long long)score.correct);
    if (pf_steps_done(second) != 0) return 8; /* each on its own */
    pf_destroy(second);
    pf_destroy(step);
    if (pf_create((pf_settings){.threads = 1}, &step) || pf_load(step, paths, 1)) return fail(); /* again, in the same process */
    pf_destroy(step);
    return 0;
}
