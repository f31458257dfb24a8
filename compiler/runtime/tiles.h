/* tiles.h: x86's tile registers. Linux gives them to processes that ask for them, since they make what is saved of a
 * thread 8 KB larger (Documentation/arch/x86/xstate.rst); its threads have them too. */
#ifndef POCKFARM_TILES_H
#define POCKFARM_TILES_H

#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Defined by kernels that use them; of this binary or library alone. */
extern const int pf_uses_tiles __attribute__((weak, visibility("hidden")));

enum { PF_ASK_FOR_STATE = 0x1023, PF_TILE_DATA = 18 };

/* False if kernels use them and the system does not let this process. */
static inline bool pf_tiles_ask(void) {
#if defined(__x86_64__)
    return !&pf_uses_tiles || syscall(SYS_arch_prctl, PF_ASK_FOR_STATE, PF_TILE_DATA) == 0;
#else
    return true;
#endif
}

#endif
