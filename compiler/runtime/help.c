#include "help.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "image.h"
#include "options.h"

bool pf_asks_for_help(int count, char **arguments) {
    return count >= 2 && (strcmp(arguments[count - 1], "--help") == 0 || strcmp(arguments[count - 1], "-h") == 0 ||
                          (count == 2 && strcmp(arguments[1], "help") == 0));
}

static const char *identity(const char *key) {
    for (uint32_t i = 0; i < pf_image_data.identity_count; i++)
        if (strcmp(pf_image_data.identity[i].key, key) == 0) return pf_image_data.identity[i].value;
    return "";
}

/* A file's shape: samples first, unless it is the same for all. */
static void tell_tensor(const char *what, const pf_tensor *tensor) {
    bool is_shared = tensor->batch_axis < 0, is_first = true;
    fprintf(stderr, "  %-9s %s: %s [", what, tensor->name, pf_dtype_name(tensor->dtype));
    if (!is_shared) is_first = fprintf(stderr, "samples") < 0;
    for (int axis = 0; axis < tensor->rank; axis++) {
        if (axis == tensor->batch_axis) continue;
        fprintf(stderr, "%s%" PRId64, is_first ? "" : ", ", tensor->shape[axis]);
        is_first = false;
    }
    fprintf(stderr, "]%s\n", is_shared && tensor->rank ? ", the same for every sample" : "");
}

static void tell_build(void) {
    const pf_image *image = &pf_image_data;
    int64_t trained = 0, all = 0;
    for (uint32_t i = 0; i < image->state_count; i++) {
        const pf_state *state = &image->states[i];
        if (state->role != PF_PARAMETER || state->copy) continue;
        all++;
        trained += state->trained;
    }
    fprintf(stderr, "One training step, compiled for %s\n\n", identity("target"));
    fprintf(stderr, "  model     %s\n  plan      %s: %" PRId64 " of %" PRId64 " parameters learn\n  spec      %s\n", identity("model"),
            identity("plan"), trained, all, identity("spec"));
    fprintf(stderr, "  step      %" PRId64 " samples", image->batch * image->micro_batches);
    if (image->micro_batches > 1) fprintf(stderr, " (%d micro-batches of %" PRId64 ")", image->micro_batches, image->batch);
    fprintf(stderr, ", loss %s, %s at learning rate %g, %d thread%s at most\n",
            image->term_count == 1 ? image->terms[0].name : "sum", image->optimizer, image->learning_rate, image->threads,
            image->threads == 1 ? "" : "s");
    for (int i = 0; i < image->input_count; i++) tell_tensor("input", &image->inputs[i]);
    for (int i = 0; i < image->label_count; i++) tell_tensor("labels", &image->labels[i]);
    tell_tensor("output", &image->logits);
    fprintf(stderr, "  memory    %" PRIu64 " bytes: weights %" PRIu64 ", optimizer %" PRIu64 ", arena %" PRIu64 "\n\n", image->total_bytes,
            image->sizes.weights_bytes, image->sizes.optimizer_bytes, image->sizes.arena_bytes);
}

void pf_tell_help(void) {
    tell_build();
    fputs(pf_usage, stderr);
    fputs("Results are JSON, one object a line, on standard output. Exit codes: 0 done, 2 bad usage, 3 bad data or weights, 4 a\n"
          "limit (memory, disk), 5 a defect. SIGTERM ends after the step at hand, with 0.\n", stderr);
}
