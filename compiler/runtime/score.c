/* score.c: loss and accuracy of logits, in double precision. */
#include <math.h>

#include "image.h"
#include "session.h"

enum { IGNORED_LABEL = -100 };

/* The logits of one label are `stride` apart. */
static void score_class(const float *logits, int64_t classes, int64_t stride, int64_t label, pf_score *score) {
    int64_t best = 0;
    double sum = 0.0;
    if (label == IGNORED_LABEL) return;
    for (int64_t i = 1; i < classes; i++)
        if (logits[i * stride] > logits[best * stride]) best = i;
    for (int64_t i = 0; i < classes; i++) sum += exp((double)logits[i * stride] - (double)logits[best * stride]);
    score->loss_sum += log(sum) + (double)logits[best * stride] - (double)logits[label * stride];
    score->correct += best == label;
    score->terms++;
}

/* The loss of one number, as the compiled step has it. */
static double pointwise(const pf_term *term, double x, double y) {
    double error = x - y, size = fabs(error);
    switch (term->kind) {
    case PF_MSE: return error * error;
    case PF_L1: return size;
    case PF_HUBER: return size < term->delta ? 0.5 * error * error : term->delta * (size - 0.5 * term->delta);
    case PF_BCE_WITH_LOGITS: return fmax(x, 0.0) - x * y + log1p(exp(-fabs(x)));
    case PF_CROSS_ENTROPY:
    case PF_GRAPH: break;
    }
    return NAN;
}

static const float *answer(const pf_step *step, const pf_term *term) {
    return (const float *)(const void *)(step->memory + term->offset);
}

void pf_score_labels(const pf_step *step, int term_index, int64_t sample, int64_t first, int64_t count, const void *labels,
                     pf_score *score) {
    const pf_term *term = &pf_image_data.terms[term_index];
    const float *mine = answer(step, term) + sample * (term->output.count / term->output.shape[0]);
    if (term->kind != PF_CROSS_ENTROPY) {
        for (int64_t i = 0; i < count; i++)
            score->loss_sum += pointwise(term, (double)mine[first + i], (double)((const float *)labels)[i]);
        score->terms += count;
        return;
    }
    int64_t classes = term->classes, stride = term->class_stride;
    for (int64_t i = 0; i < count; i++) {
        int64_t outer = (first + i) / stride, inner = (first + i) % stride;
        score_class(mine + outer * classes * stride + inner, classes, stride, ((const int64_t *)labels)[i], score);
    }
}

void pf_score_batch(const pf_step *step, int term_index, pf_score *score) {
    score->loss_sum += (double)*answer(step, &pf_image_data.terms[term_index]);
    score->terms++;
}
