#include "cores.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "failure.h"

typedef struct {
    int core;
    long speed;
} rated_core;

/* The number in a core's file; 0 if there is none. */
static long number_in(const char *system, int core, const char *name) {
    char path[512], text[32] = "";
    snprintf(path, sizeof path, "%s/cpu%d/%s", system, core, name);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return 0;
    if (read(descriptor, text, sizeof text - 1) < 0) text[0] = 0;
    close(descriptor);
    return strtol(text, NULL, 10);
}

/* The kernel's own figure for scheduling, 1024 for the fastest; where it gives none, the highest clock in kHz. */
static long speed_of(const char *system, int core) {
    long capacity = number_in(system, core, "cpu_capacity");
    return capacity ? capacity : number_in(system, core, "cpufreq/cpuinfo_max_freq");
}

static int fastest_first(const void *a, const void *b) {
    const rated_core *x = a, *y = b;
    if (x->speed != y->speed) return x->speed > y->speed ? -1 : 1;
    return x->core - y->core;
}

/* The fastest cores, as many as there are threads and those that equal the last of them; none if all cores are alike. */
static void choose_fastest(pf_placement *placement, const char *system) {
    rated_core rated[PF_MAX_CORES];
    int known = 0, taken = 0;
    for (int core = 0; core < PF_MAX_CORES; core++)
        if (CPU_ISSET(core, &placement->at_start)) rated[known++] = (rated_core){core, speed_of(system, core)};
    qsort(rated, (size_t)known, sizeof *rated, fastest_first);
    while (taken < known && (taken < placement->threads || rated[taken].speed == rated[taken - 1].speed)) taken++;
    if (taken == known) return;
    for (int i = 0; i < taken; i++) placement->cores[placement->count++] = rated[i].core;
}

static pf_status bad_list(const char *pin, const char *why) {
    return pf_fail(PF_USER, "user.usage", "--pin is '%.80s': %s; write auto, off or cores such as 4-7 or 0,2", pin, why);
}

static pf_status add_range(pf_placement *placement, const char *pin, long first, long last) {
    if (first < 0 || last < first || last >= PF_MAX_CORES) return bad_list(pin, "that is no range of cores");
    for (long core = first; core <= last; core++) {
        if (!CPU_ISSET((int)core, &placement->at_start)) return bad_list(pin, "this process may not use every one of them");
        for (int i = 0; i < placement->count; i++)
            if (placement->cores[i] == core) return bad_list(pin, "a core is named twice");
        placement->cores[placement->count++] = (int)core;
    }
    return PF_OK;
}

static pf_status parse_list(pf_placement *placement, const char *pin) {
    for (const char *text = pin;;) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (end == text || *text == '+' || *text == ' ') return bad_list(pin, "a number is missing");
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text) return bad_list(pin, "a range has no end");
        }
        PF_TRY(add_range(placement, pin, first, last));
        if (!*end) return PF_OK;
        if (*end != ',') return bad_list(pin, "cores are parted by commas");
        text = end + 1;
    }
}

static int least(int a, int b) { return a < b ? a : b; }

pf_status pf_cores_choose(pf_placement *placement, const char *system, const char *pin, int threads, int most,
                          bool spare_core) {
    memset(placement, 0, sizeof *placement);
    if (sched_getaffinity(0, sizeof placement->at_start, &placement->at_start) != 0) CPU_ZERO(&placement->at_start);
    placement->allowed = CPU_COUNT(&placement->at_start);
    bool listed = strcmp(pin, "auto") != 0 && strcmp(pin, "off") != 0;
    if (listed) PF_TRY(parse_list(placement, pin));
    int room = listed ? placement->count : placement->allowed ? placement->allowed : 1;
    placement->threads = threads ? threads : least(most, room);
    if (spare_core && room > 1 && placement->threads >= room) placement->threads = room - 1;
    if (listed && placement->threads > room) return bad_list(pin, "that is fewer cores than threads");
    placement->one_each = listed;
    if (strcmp(pin, "auto") == 0) choose_fastest(placement, system);
    return PF_OK;
}

void pf_cores_settle(const pf_placement *placement, int thread) {
    cpu_set_t mine;
    if (placement->count == 0) return;
    CPU_ZERO(&mine);
    for (int i = 0; i < placement->count; i++)
        if (!placement->one_each || i == thread) CPU_SET(placement->cores[i], &mine);
    sched_setaffinity(0, sizeof mine, &mine);
}

void pf_cores_release(const pf_placement *placement) {
    if (placement->count > 0) sched_setaffinity(0, sizeof placement->at_start, &placement->at_start);
}
