/* score.c: loss and accuracy of logits, in double precision. */
#include <math.h>

#include "image.h"

enum { IGNORED_LABEL = -100 };

static void score_class(const float *logits, int64_t classes, int64_t label, pf_score *score) {
    int64_t best = 0;
    double sum = 0.0;
    if (label == IGNORED_LABEL) return;
    for (int64_t i = 1; i < classes; i++)
        if (logits[i] > logits[best]) best = i;
    for (int64_t i = 0; i < classes; i++) sum += exp((double)logits[i] - (double)logits[best]);
    score->loss_sum += log(sum) + (double)logits[best] - (double)logits[label];
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
    int64_t classes = logits->shape[logits->rank - 1];
    for (int64_t i = 0; i < count; i++)
        score_class(mine + (first + i) * classes, classes, ((const int64_t *)labels)[i], score);
}
