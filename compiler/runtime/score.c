/* score.c: loss and accuracy of logits, in double precision. */
#include <math.h>

#include "image.h"
#include "session.h"

static double weight_of(const double *weights, int64_t class_index) { return weights ? weights[class_index] : 1.0; }

/* Of one label; `logits` are those of its classes, `class_stride` apart. */
static void score_class(const pf_term *term, const float *logits, int64_t label, pf_score *score) {
    int64_t best = 0, classes = term->classes, stride = term->class_stride;
    double sum = 0.0, spread = 0.0;
    if (label < 0 || label == term->ignored) return;
    for (int64_t i = 1; i < classes; i++)
        if (logits[i * stride] > logits[best * stride]) best = i;
    for (int64_t i = 0; i < classes; i++) sum += exp((double)logits[i * stride] - (double)logits[best * stride]);
    double log_sum = log(sum) + (double)logits[best * stride], own = weight_of(term->class_weights, label);
    for (int64_t i = 0; term->smoothing > 0.0 && i < classes; i++)
        spread += weight_of(term->class_weights, i) * (log_sum - (double)logits[i * stride]);
    score->loss_sum += (1.0 - term->smoothing) * own * (log_sum - (double)logits[label * stride]) +
                       term->smoothing / (double)classes * spread;
    score->correct += best == label;
    score->terms++;
    score->counted += own;
}

/* The loss of one number, as the compiled step has it. */
static double pointwise(const pf_term *term, int64_t class_index, double x, double y) {
    double error = x - y, size = fabs(error), delta = term->delta, rest = log1p(exp(-fabs(x)));
    switch (term->kind) {
    case PF_MSE: return error * error;
    case PF_L1: return size;
    case PF_HUBER: return size < delta ? 0.5 * error * error : delta * (size - 0.5 * delta);
    case PF_SMOOTH_L1: return size < delta ? 0.5 * error * error / delta : size - 0.5 * delta;
    case PF_BCE_WITH_LOGITS:
        return weight_of(term->class_weights, class_index) *
               ((1.0 - y) * (fmax(x, 0.0) + rest) + weight_of(term->pos_weight, class_index) * y * (fmax(-x, 0.0) + rest));
    case PF_CROSS_ENTROPY:
    case PF_GRAPH: break;
    }
    return NAN;
}

static const float *answer(const pf_step *step, const pf_term *term) {
    uint64_t bytes = (uint64_t)term->output.count * sizeof(float);
    return pf_reach(step->memory, term->offset, bytes, PF_READ);
}

void pf_score_labels(const pf_step *step, int term_index, int64_t sample, int64_t first, int64_t count, const void *labels,
                     pf_score *score) {
    const pf_term *term = &pf_image_data.terms[term_index];
    const float *outputs = answer(step, term);
    int64_t classes = term->classes, stride = term->label_stride;
    if (term->kind != PF_CROSS_ENTROPY) {
        for (int64_t i = 0; i < count; i++) {
            double x = (double)outputs[pf_sample_place(&term->output, sample, first + i)];
            score->loss_sum += pointwise(term, (first + i) / stride % classes, x, (double)((const float *)labels)[i]);
        }
        score->terms += count;
        score->counted += (double)count;
        return;
    }
    for (int64_t i = first < term->shift ? term->shift - first : 0; i < count; i++) {
        int64_t at = first + i - term->shift;
        const float *logits = outputs + pf_sample_place(&term->output, sample, at / stride * classes * stride + at % stride);
        score_class(term, logits, ((const int64_t *)labels)[i], score);
    }
}

void pf_score_batch(const pf_step *step, int term_index, pf_score *score) {
    score->loss_sum += (double)*answer(step, &pf_image_data.terms[term_index]);
    score->terms++;
    score->counted += 1.0;
}

double pf_score_loss(const pf_score *scores, int64_t samples) {
    double loss = 0.0;
    for (int i = pf_term_count() - 1; i >= 0; i--) {
        const pf_term *term = &pf_image_data.terms[i];
        double divisor = term->is_sum ? (double)samples / (double)pf_batch() : scores[i].counted;
        loss += term->weight * (scores[i].loss_sum / divisor); /* NaN if no label counts */
    }
    return loss;
}
