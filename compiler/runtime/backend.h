/* backend.h: what the last kernel said when it failed. */
#ifndef POCKFARM_BACKEND_H
#define POCKFARM_BACKEND_H

#include <stdint.h>

const char *pf_kernel_message(void);
void pf_kernel_message_clear(void);

#endif
