/* items.h - coli_tasks of lines and texts in the small tokenizer, without a model. */
#ifndef COLI_TEST_ITEMS_H
#define COLI_TEST_ITEMS_H

#include "small_tokenizer.h"

#include "libcoli/src/run/scores.h"

enum { ITEMS_CTX = 2000 };

static inline coli__tok *items_tokenizer(void) // of the process
{
    static coli__tok *tok;
    if (!tok && small_open(&tok) != COLI_OK) abort();
    return tok;
}

/* From the lines of a .jsonl; to be sealed. */
static inline coli_status items_unsealed(const char *lines, size_t n_bytes, uint32_t every,
                                         coli_tasks **out)
{
    COLI_TRY(coli__tasks_create(items_tokenizer(), "3.6", ITEMS_CTX, every, out));
    const coli_status status = coli__tasks_add_lines(*out, "x.jsonl", lines, n_bytes);
    if (status == COLI_OK) return COLI_OK;
    coli_tasks_close(*out);
    *out = NULL;
    return status;
}

static inline coli_status items_of(const char *lines, size_t n_bytes, coli_tasks **out)
{
    COLI_TRY(items_unsealed(lines, n_bytes, 1, out));
    const coli_status status = coli__tasks_seal(*out, "x.jsonl");
    if (status == COLI_OK) return COLI_OK;
    coli_tasks_close(*out);
    *out = NULL;
    return status;
}

/* Scores that nobody made: the nll of a text is its number of ids; ending e has the sum -1 - e; answers are
 * those that are expected, but every second one has an x behind it. */
static inline coli_status items_scores(const coli_tasks *t, uint32_t n_vocab, coli_scores **out)
{
    COLI_TRY(coli__scores_create(t, out));
    coli_scores *s = *out;
    memcpy(s->model, "0123456789abcdef0123456789abcdef", 32);
    s->n_vocab = n_vocab;
    coli_status status = COLI_OK;
    for (uint32_t i = 0, n_exact = 0; i < coli__tasks_n(t) && status == COLI_OK; i++) {
        const coli__task *item = coli__tasks_at(t, i);
        coli__score *score = &s->items[i];
        score->sums_at = s->sums.n_bytes / sizeof(double);
        score->answer_at = s->answers.n_bytes;
        if (item->kind == COLI_TASK_TEXT) score->nll = item->n_id;
        for (uint32_t e = 0; e < item->n_ending && status == COLI_OK; e++) {
            const double sum = -1.0 - e;
            status = coli__buf_append(&s->sums, &sum, sizeof sum);
        }
        if (item->kind != COLI_TASK_EXACT || status != COLI_OK) continue;
        status = coli__buf_str(&s->answers, coli__tasks_string(t, item->answer));
        if (status == COLI_OK && n_exact++ % 2) status = coli__buf_str(&s->answers, "x");
        if (status == COLI_OK) status = coli__buf_append(&s->answers, "", 1);
    }
    if (status == COLI_OK) return COLI_OK;
    coli_scores_free(s);
    *out = NULL;
    return status;
}

#endif
