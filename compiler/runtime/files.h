/* files.h: exact reads and writes at an offset, and the one staging buffer that all converting copies go through. */
#ifndef POCKFARM_FILES_H
#define POCKFARM_FILES_H

#include "pockfarm_step.h"

enum { PF_STAGING_BYTES = 65536 };

/* Shared by readers and writers; no call that uses it calls another that does. */
extern _Alignas(64) unsigned char pf_staging[PF_STAGING_BYTES];

/* Open a regular file for reading; its size in bytes. `status` is PF_DATA or PF_WEIGHTS: whose file it is. */
pf_status pf_open_file(pf_status status, const char *path, int *descriptor, uint64_t *size);

pf_status pf_read_at(pf_status status, const char *path, int descriptor, void *to, size_t bytes, uint64_t offset);

/* A file that replaces `path` when it is complete. */
typedef struct {
    const char *path;
    char temporary[4096];
    int descriptor;
} pf_new_file;

pf_status pf_new_file_open(pf_new_file *file, const char *path);
pf_status pf_new_file_write(pf_new_file *file, const void *data, size_t bytes);
pf_status pf_new_file_commit(pf_new_file *file);
pf_status pf_new_file_place(pf_new_file *file); /* the same without waiting for the disk */
void pf_new_file_discard(pf_new_file *file);

#endif
