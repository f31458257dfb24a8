#include "run_events.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "events.h"
#include "stop.h"

/* A figure in kB of a file in /proc, in bytes; 0 if the system does not tell. */
static int64_t bytes_of(const char *path, const char *key) {
    char text[4096];
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = descriptor < 0 ? 0 : read(descriptor, text, sizeof text - 1);
    if (descriptor >= 0) close(descriptor);
    text[length > 0 ? length : 0] = 0;
    const char *line = strstr(text, key);
    return line ? strtoll(line + strlen(key), NULL, 10) * 1024 : 0;
}

void pf_event_start(const pf_step *step) {
    pf_sizes sizes = pf_planned_sizes();
    pf_event("start");
    pf_integer("arena_bytes", (int64_t)sizes.arena_bytes);
    pf_integer("weights_bytes", (int64_t)sizes.weights_bytes);
    pf_integer("optimizer_bytes", (int64_t)sizes.optimizer_bytes);
    if (*pf_device_message(step->device)) pf_text("device", pf_device_message(step->device));
    pf_integer("threads", step->placement.threads);
    pf_array("pinned_cores");
    for (int i = 0; i < step->placement.count; i++) pf_element(step->placement.cores[i]);
    pf_array_end();
    pf_event_end();
}

void pf_event_finish_open(int64_t steps) {
    pf_event(pf_stop_requested ? "stopped" : "done");
    pf_integer("peak_rss_bytes", bytes_of("/proc/self/status", "VmHWM:"));
    pf_integer("huge_page_bytes", bytes_of("/proc/self/smaps_rollup", "AnonHugePages:"));
    pf_integer("steps", steps);
}

void pf_event_finish(int64_t steps) {
    pf_event_finish_open(steps);
    pf_event_end();
}

void pf_tell_match(const char *path, const pf_match *match) {
    int64_t named = match->ignored < PF_NAMED ? match->ignored : PF_NAMED;
    if (match->taken == match->parameters && match->ignored == 0) return;
    pf_event("weights");
    pf_text("file", path);
    pf_integer("taken", match->taken);
    pf_integer("parameters", match->parameters);
    pf_integer("ignored", match->ignored);
    pf_array("ignored_names");
    for (int64_t i = 0; i < named; i++) pf_text(NULL, match->ignored_names[i]);
    pf_array_end();
    pf_event_end();
    fprintf(stderr, "step: %s: %" PRId64 " of %" PRId64 " parameters are taken from it%s", path, match->taken, match->parameters,
            match->taken < match->parameters ? ", the others from the files before it" : "");
    for (int64_t i = 0; i < named; i++)
        i ? fprintf(stderr, ", '%s'", match->ignored_names[i])
          : fprintf(stderr, "; %" PRId64 " of its tensors are ignored: '%s'", match->ignored, match->ignored_names[0]);
    if (match->ignored > named) fprintf(stderr, " and %" PRId64 " more", match->ignored - named);
    fputc('\n', stderr);
}

int pf_report_failure(void) {
    static const char *const causes[] = {"", "user", "data", "weights", "limits", "internal"};
    static const int exit_codes[] = {0, 2, 3, 3, 4, 5};
    const pf_error *error = pf_last_error();
    pf_event("error");
    pf_text("cause", causes[error->status]);
    pf_text("code", error->code);
    pf_text("message", error->message);
    if (error->step) pf_integer("step", error->step);
    pf_event_end();
    fprintf(stderr, "step: %s\n", error->message);
    return exit_codes[error->status];
}
