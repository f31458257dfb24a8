#include "explosion.h"

#include <math.h>

#include "image.h"

enum { FIRST_STEPS = 8, FIRST_ERRORS = 16, HIGH_STEPS = 8 };

/* A cross-entropy is not small by luck where it is large in general; an error is, and the mean of many is not. */
static int64_t first_steps_of(const pf_term *term) {
    if (term->kind == PF_CROSS_ENTROPY || term->kind == PF_BCE_WITH_LOGITS) return 1;
    if (term->label < 0) return FIRST_STEPS;
    int64_t errors = pf_image_data.labels[term->label].count;
    return errors >= FIRST_ERRORS ? 1 : errors * FIRST_STEPS <= FIRST_ERRORS ? FIRST_STEPS : (FIRST_ERRORS + errors - 1) / errors;
}

static int64_t first_steps(void) {
    int64_t most = 1;
    for (int i = 0; i < pf_image_data.term_count; i++) {
        int64_t steps = first_steps_of(&pf_image_data.terms[i]);
        if (steps > most) most = steps;
    }
    return most;
}

bool pf_explodes(pf_explosion *explosion, double loss) {
    int count = 0;
    if (explosion->seen++ < first_steps()) explosion->start = fmax(explosion->start, fmax(1.0, fabs(loss)));
    explosion->high = (uint16_t)(explosion->high << 1 | (loss > explosion->factor * explosion->start));
    for (uint16_t left = explosion->high; left; left &= (uint16_t)(left - 1)) count++;
    return explosion->factor > 0 && count >= HIGH_STEPS;
}
