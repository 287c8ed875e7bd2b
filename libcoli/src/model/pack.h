/* pack.h - a container as one file, to be sent: a POSIX tar archive with checksums
 * (docs/formats/pack.md).
 *
 *     NAME/config.json ... NAME/model.coli NAME/coli-pack.xxh128
 *
 * The last one has a line for each of the others: XXH3-128 and name, as xxhsum writes and checks them.
 * So a pack can be opened with tar and checked with xxhsum where there is no coli. */
#ifndef COLI_MODEL_PACK_H
#define COLI_MODEL_PACK_H

#include "container.h"

/* A file of a pack, in memory; data is NULL where the pack has none of the name. */
typedef struct coli__pack_span {
    const char *data;
    uint64_t n_bytes;
} coli__pack_span;

/* What says how to talk with the model. */
typedef struct coli__pack_files {
    const char *name; // in messages, in the directory's place
    coli__pack_span config, generation, tokenizer, tokenizer_config;
} coli__pack_files;

typedef struct coli__pack_job {
    const char *from, *to;
    coli__describe_fn describe;
    /* Whether the container in a directory is sound, all of it (coli_verify); and whether tokenizer and
     * settings in memory can be used with the model, as that asks of those in a directory. */
    coli_status (*verify)(const char *dir, coli__progress_fn progress, void *user);
    coli_status (*check_files)(const coli__pack_files *files);
    coli__progress_fn progress; // in bytes; may be NULL
    void *user;
} coli__pack_job;

/* The container directory `from` to the file `to`, which must not exist and appears when complete.  The
 * container is verified first.  The same container in a directory of the same name gives the same
 * bytes. */
coli_status coli__pack(const coli__pack_job *args);

/* Whether the pack `from` is one, all of it, and the container in it sound: `to` is ignored. */
coli_status coli__pack_verify(const coli__pack_job *args);

/* The pack `from` to the directory `to`, which must not exist and appears when everything in it was
 * checked and the container verified. */
coli_status coli__unpack(const coli__pack_job *args);

#endif
