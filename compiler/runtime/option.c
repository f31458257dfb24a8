#include "option.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"

pf_status pf_bad_usage(const char *format, const char *what, const char *more) {
    return pf_fail(PF_USER, "user.usage", format, what, more);
}

pf_status pf_take_integer(int64_t *to, const char *name, const char *value, int64_t least, int64_t most) {
    char *end;
    errno = 0;
    *to = strtoll(value, &end, 10);
    if (errno == 0 && end != value && !*end && *to >= least && *to <= most) return PF_OK;
    return pf_fail(PF_USER, "user.usage", "%s is '%.80s'; give a whole number from %" PRId64 " to %" PRId64, name, value, least, most);
}

pf_status pf_take_number(double *to, const char *name, const char *value, double least, double most) {
    char *end;
    *to = strtod(value, &end);
    if (end != value && !*end && isfinite(*to) && *to >= least && *to <= most) return PF_OK;
    if (isinf(most)) return pf_bad_usage("%s is '%.80s'; give a number that is zero or more", name, value);
    return pf_fail(PF_USER, "user.usage", "%s is '%.80s'; give a number from %g to %g", name, value, least, most);
}

pf_status pf_take_once(const char **to, const char *name, const char *value) {
    if (*to) return pf_bad_usage("%s is given twice%s", name, "");
    if (!*value) return pf_bad_usage("%s is empty%s", name, "; give a path");
    *to = value;
    return PF_OK;
}

/* The tensor that `NAME=FILE` names: of `a` and `a=b`, `a=b=FILE` means the second; `a=./b=FILE` means the first. */
static int named(const char *value, int count, const pf_tensor *(*tensor)(int), const char **path) {
    int found = -1;
    size_t longest = 0;
    for (int i = 0; i < count; i++) {
        size_t length = strlen(tensor(i)->name);
        if (strncmp(value, tensor(i)->name, length) != 0 || value[length] != '=') continue;
        if (found >= 0 && length < longest) continue;
        found = i;
        longest = length;
    }
    *path = found < 0 ? NULL : value + longest + 1;
    return found;
}

pf_status pf_take_input(const char **paths, const char *name, const char *value) {
    const char *path;
    int found = named(value, pf_input_count(), pf_input, &path);
    if (found >= 0) return pf_take_once(&paths[found], pf_input(found)->name, path);
    return pf_fail(PF_USER, "user.usage", "%s '%.200s' names no model input; write %s=FILE.npy", name, value,
                   pf_input_count() ? pf_input(0)->name : "NAME");
}

pf_status pf_take_labels(const char **paths, const char *name, const char *value) {
    const char *path;
    int count = pf_label_count();
    if (count == 0) return pf_bad_usage("this step takes no labels: its loss is the model's own output%s%s", "", "");
    if (count == 1) return pf_take_once(&paths[0], name, value);
    int found = named(value, count, pf_label, &path);
    if (found >= 0) return pf_take_once(&paths[found], pf_label(found)->name, path);
    return pf_fail(PF_USER, "user.usage", "%s '%.200s' names no array of labels; write %s=FILE.npy", name, value, pf_label(0)->name);
}

pf_status pf_need_data(const char *prefix, const char *const *inputs, const char *const *labels) {
    for (int i = 0; i < pf_input_count(); i++)
        if (!inputs[i]) return pf_fail(PF_USER, "user.usage", "give %sinput %s=FILE.npy", prefix, pf_input(i)->name);
    for (int i = 0; labels && i < pf_label_count(); i++)
        if (!labels[i])
            return pf_fail(PF_USER, "user.usage", "give %slabels %s%sFILE.npy", prefix, pf_label_count() > 1 ? pf_label(i)->name : "",
                           pf_label_count() > 1 ? "=" : "");
    return PF_OK;
}
