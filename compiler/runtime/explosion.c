#include "explosion.h"

#include <math.h>

#include "image.h"

enum { FIRST_STEPS = 8, HIGH_STEPS = 8 };

/* Cross-entropy is bounded by what the logits are, and never near 0 and far from it by luck alone. */
static int64_t first_steps(void) {
    for (int i = 0; i < pf_image_data.term_count; i++)
        if (pf_image_data.terms[i].kind != PF_CROSS_ENTROPY && pf_image_data.terms[i].kind != PF_BCE_WITH_LOGITS)
            return FIRST_STEPS;
    return 1;
}

bool pf_explodes(pf_explosion *explosion, double loss) {
    int count = 0;
    if (explosion->seen++ < first_steps()) explosion->start = fmax(explosion->start, fmax(1.0, fabs(loss)));
    explosion->high = (uint16_t)(explosion->high << 1 | (loss > explosion->factor * explosion->start));
    for (uint16_t left = explosion->high; left; left &= (uint16_t)(left - 1)) count++;
    return explosion->factor > 0 && count >= HIGH_STEPS;
}
