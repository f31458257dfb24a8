/* cores.c (test): what `pf_cores_choose` says for a folder that describes a machine: threads, then cores. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cores.h"

int main(int count, char **arguments) {
    static pf_placement placement;
    if (count != 6) return 2;
    if (pf_cores_choose(&placement, arguments[1], arguments[2], atoi(arguments[3]), atoi(arguments[4]),
                        strcmp(arguments[5], "spare") == 0) != PF_OK)
        return printf("%s\n", pf_last_error()->message), 1;
    printf("%d", placement.threads);
    for (int i = 0; i < placement.count; i++) printf(" %d", placement.cores[i]);
    printf("\n");
    return 0;
}
