#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "failure.h"

_Alignas(64) unsigned char pf_staging[PF_STAGING_BYTES];

static const char *file_code(pf_status status) { return status == PF_WEIGHTS ? "weights.file" : "data.file"; }

pf_status pf_open_file(pf_status status, const char *path, int *descriptor, uint64_t *size) {
    struct stat about;
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*descriptor < 0) return pf_fail(status, file_code(status), "%s: cannot open: %s", path, strerror(errno));
    if (fstat(*descriptor, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(*descriptor);
        return pf_fail(status, file_code(status), "%s: not a regular file", path);
    }
    *size = (uint64_t)about.st_size;
    return PF_OK;
}

pf_status pf_read_at(pf_status status, const char *path, int descriptor, void *to, size_t bytes, uint64_t offset) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(descriptor, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return pf_fail(status, file_code(status), "%s: cannot read: %s", path, strerror(errno));
        if (got == 0) return pf_fail(status, file_code(status), "%s: ended early: it was cut while in use", path);
        done += (size_t)got;
    }
    return PF_OK;
}

pf_status pf_new_file_open(pf_new_file *file, const char *path) {
    int length = snprintf(file->temporary, sizeof file->temporary, "%s.%ld.part", path, (long)getpid());
    file->path = path;
    file->descriptor = -1;
    if (length < 0 || (size_t)length >= sizeof file->temporary)
        return pf_fail(PF_USER, "user.output", "the output path is longer than %zu bytes", sizeof file->temporary - 16);
    file->descriptor = open(file->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file->descriptor < 0)
        return pf_fail(PF_USER, "user.output", "%s: cannot write beside it: %s; choose a writable folder", path,
                       strerror(errno));
    return PF_OK;
}

pf_status pf_new_file_write(pf_new_file *file, const void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t wrote = write(file->descriptor, (const char *)data + done, bytes - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return pf_fail(PF_LIMITS, "limits.disk", "%s: cannot write: %s", file->path, strerror(errno));
        done += (size_t)wrote;
    }
    return PF_OK;
}

static pf_status put_in_place(pf_new_file *file, int failed) {
    failed |= close(file->descriptor) != 0;
    file->descriptor = -1;
    if (failed || rename(file->temporary, file->path) != 0)
        return pf_fail(PF_LIMITS, "limits.disk", "%s: cannot put in place: %s", file->path, strerror(errno));
    return PF_OK;
}

pf_status pf_new_file_commit(pf_new_file *file) {
    return put_in_place(file, fsync(file->descriptor) != 0 && errno != EINVAL && errno != EROFS);
}

pf_status pf_new_file_place(pf_new_file *file) { return put_in_place(file, 0); }

void pf_new_file_discard(pf_new_file *file) {
    if (file->descriptor >= 0) close(file->descriptor);
    if (file->descriptor >= 0 || file->temporary[0]) unlink(file->temporary);
    file->descriptor = -1;
}
