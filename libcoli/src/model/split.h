/* split.h - the patterns of a pre-tokenizer, run through PCRE2.  Immutable after compile. */
#ifndef COLI_MODEL_SPLIT_H
#define COLI_MODEL_SPLIT_H

#include "../base/alloc.h"

typedef struct coli__split coli__split;

/* Compile a pattern in the dialect of tokenizer.json.  What is not understood is refused by name
 * with E_UNSUPPORTED, what is malformed with E_FORMAT; `what` is the prefix of the message. */
coli_status coli__split_compile(const char *what, const char *pattern, coli__split **out);
void coli__split_free(coli__split *split);

/* What one thread needs to run a pattern.  NULL is fine for the release. */
typedef struct coli__split_work coli__split_work;
coli_status coli__split_work_create(const coli__split *split, coli__split_work **out);
void coli__split_work_free(coli__split_work *work);

/* The first match at or behind `from`: *begin < *end, or *begin == *end == n_bytes for none.
 * text is well-formed UTF-8.  E_LIMIT when the pattern needs more than a fixed multiple of the
 * text's length in steps or memory. */
coli_status coli__split_next(const coli__split *split, coli__split_work *work, const char *text,
                             size_t n_bytes, size_t from, size_t *begin, size_t *end);

/* Tests only: run the interpreter even where the compiled code could. */
void coli__split_use_jit(coli__split *split, bool on);

#endif
