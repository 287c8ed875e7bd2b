/* tasks.h - items to score a model on, read and put into tokens: coli_tasks.
 *
 * Everything that could be wrong with an item is found here, before anything is computed.  Afterwards
 * an item is ids and little else, in pools that grow by appending:
 *
 *     text     ids: all of it
 *     choice   ids: what its endings share; endings: the rest of each, at least one token
 *     exact    ids: the prompt; answer: what is expected, stripped */
#ifndef COLI_RUN_TASKS_H
#define COLI_RUN_TASKS_H

#include "../model/tokenizer.h"
#include "coli/coli.h"

enum {
    COLI__MAX_ITEM = 1 << 20,
    COLI__MAX_ENDING = 64,
    COLI__PIECE_TOKENS = 512, // of a plain text
    COLI__ANSWER_BEYOND = 64  // tokens that an answer may have more than the expected one
};

typedef struct coli__ending {
    size_t at; // of its first id in the pool
    uint32_t n_id;
    uint32_t n_bytes; // of its text as it stood in the file
} coli__ending;

typedef struct coli__task {
    coli_task_kind kind;
    uint32_t file; // index
    uint64_t line; // or piece
    size_t group;  // offset in the pool of strings
    size_t at;     // of its first id
    uint32_t n_id;
    uint32_t n_ending, label;
    size_t ending;     // index of the first
    size_t answer;     // offset in the pool of strings
    uint32_t n_answer; // tokens that are made at most
} coli__task;

struct coli_tasks {
    const coli__tok *tok; // borrowed while it is filled
    const char *tmpl;
    uint32_t n_ctx_max, every;
    coli__buf items;   // coli__task
    coli__buf endings; // coli__ending
    coli__buf ids;     // int32_t
    coli__buf strings; // each NUL-terminated; offset 0 is ""
    char **files;
    uint32_t n_file;
    uint32_t n_kind[3];
    uint32_t n_ctx;
    uint32_t n_vocab; // every id is below
    uint64_t n_token;
    char identity[33];
};

/* n_ctx_max: tokens that an item may have; every: 1 for all.  tok and tmpl are used by the next two. */
coli_status coli__tasks_create(const coli__tok *tok, const char *tmpl, uint32_t n_ctx_max,
                               uint32_t every, coli_tasks **out);
/* Items from the lines of a .jsonl, or from a plain text.  `file` is its name in messages. */
coli_status coli__tasks_add_lines(coli_tasks *t, const char *file, const char *text,
                                  size_t n_bytes);
coli_status coli__tasks_add_text(coli_tasks *t, const char *file, const char *text, size_t n_bytes);
/* All were added: E_FORMAT (with `what`) when there is none. */
coli_status coli__tasks_seal(coli_tasks *t, const char *what);

uint32_t coli__tasks_n(const coli_tasks *t);
const coli__task *coli__tasks_at(const coli_tasks *t, uint32_t i);
const coli__ending *coli__tasks_ending(const coli_tasks *t, const coli__task *item, uint32_t i);
const int32_t *coli__tasks_ids(const coli_tasks *t, size_t at);
const char *coli__tasks_string(const coli_tasks *t, size_t at);

/* Without the white space at both ends. */
void coli__strip(const char **text, size_t *n_bytes);

#endif
