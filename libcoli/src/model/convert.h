/* convert.h - turn a Hugging Face checkpoint, or a GGUF file, into a coli container.
 *
 * Streams: at any time it holds the lists of tensors and experts, one band of rows (or a few experts),
 * what they are made of, and a panel per thread, at most COLI_CONVERT_MEMORY_BYTES in all, whatever the
 * files say; the checkpoint is mapped, and what was read of it leaves the memory again.
 * Everything is written to a directory beside OUT, OUT.partial, that is renamed to OUT at the very end,
 * so OUT either does not exist or is complete.  A conversion that was killed leaves it, and the same
 * conversion goes on with it (convert_job.h). */
#ifndef COLI_MODEL_CONVERT_H
#define COLI_MODEL_CONVERT_H

#include "container.h"
#include "gguf_model.h"
#include "recipe.h"

enum { COLI_CONVERT_MEMORY_BYTES = 256 << 20 };

typedef struct coli__convert_args {
    const char *src; // directory with config.json and *.safetensors, or a .gguf file
    const char *out; // must not exist
    coli__describe_fn describe;
    coli__gguf_family_fn gguf_family; // NULL: GGUF files are refused
    coli__wfmt experts, trunk;
    /* Nobody asked for these formats.  Then what a GGUF holds as whole multiples of a scale per 32
     * weights is stored in groups of 32, so that it stays what it is, and 8-bit experts as int8. */
    bool experts_are_default, trunk_is_default;
    coli__recipe *recipe;      // decides before the formats above; NULL: they alone do
    const char *imatrix;       // a file that says how much columns count; NULL: all alike
    const char *chat_template; // "3.6", "3.5" or NULL: look at chat_template.jinja, else 3.6
    uint32_t n_thread;
    /* After so many bytes what is done is put down, so that another conversion could go on there, at the
     * next whole tensor or layer; 0: a good number. */
    uint64_t tell_bytes;
    /* Whether the small files in `dir`, which were made of a GGUF's metadata, can be used with the
     * model; asked before weights are written.  May be NULL. */
    coli_status (*check_files)(const char *dir);
    /* Both are called by the caller's thread with its own float mode. */
    coli__progress_fn progress;
    void (*note)(void *user, const char *line); // e.g. "skipped 19 mtp tensors"; may be NULL
    void *user;
} coli__convert_args;

coli_status coli__convert(const coli__convert_args *args);

#endif
