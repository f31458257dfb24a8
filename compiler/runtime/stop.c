#include "stop.h"

#include <stddef.h>

volatile sig_atomic_t pf_stop_requested;

static void request_stop(int signal) {
    (void)signal;
    pf_stop_requested = 1;
}

void pf_stop_on_signals(void) {
    struct sigaction action = {.sa_handler = request_stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}
