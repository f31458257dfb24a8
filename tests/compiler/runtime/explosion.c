/* explosion.c (test): at which of the losses on standard input `pf_explodes` says that they have exploded; 0: at none.
 * Argument: the factor. KIND is the loss's, LABELS how many numbers a batch of labels has. */
#include <stdio.h>
#include <stdlib.h>

#include "explosion.h"
#include "image.h"

const pf_image pf_image_data = {
    .terms = {{.kind = KIND, .label = LABELS ? 0 : -1}}, .term_count = 1, .labels = {{.count = LABELS}}};

int main(int count, char **arguments) {
    pf_explosion explosion = {.factor = count > 1 ? atof(arguments[1]) : PF_EXPLOSION_FACTOR};
    double loss;
    for (int step = 1; scanf("%lf", &loss) == 1; step++)
        if (pf_explodes(&explosion, loss)) return printf("%d\n", step), 0;
    return printf("0\n"), 0;
}
