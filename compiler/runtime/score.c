/* score.c: loss and accuracy of logits, in double precision. */
#include <math.h>

#include "image.h"

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

void pf_score_labels(const pf_step *step, int64_t sample, int64_t first, int64_t count, const void *labels,
                     pf_score *score) {
    const pf_tensor *logits = &pf_image_data.logits;
    const float *mine = pf_logits(step) + sample * (logits->count / logits->shape[0]);
    if (pf_image_data.loss_kind == PF_MSE) {
        for (int64_t i = 0; i < count; i++) {
            double difference = (double)mine[first + i] - (double)((const float *)labels)[i];
            score->loss_sum += difference * difference;
        }
        score->terms += count;
        return;
    }
    int64_t classes = pf_image_data.classes, stride = pf_image_data.class_stride;
    for (int64_t i = 0; i < count; i++) {
        int64_t outer = (first + i) / stride, inner = (first + i) % stride;
        score_class(mine + outer * classes * stride + inner, classes, stride, ((const int64_t *)labels)[i], score);
    }
}
