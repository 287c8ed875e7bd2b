/* tokenizer.h - byte-level BPE as tokenizer.json describes it.  Immutable after open: any number of
 * threads may use one tokenizer. */
#ifndef COLI_MODEL_TOKENIZER_H
#define COLI_MODEL_TOKENIZER_H

#include "json.h"

typedef struct coli__tok coli__tok;

/* What the two files may have. */
#define COLI_TOK_MAX_BYTES        (UINT64_C(256) << 20)
#define COLI_TOK_CONFIG_MAX_BYTES (UINT64_C(16) << 20)
enum { COLI_TOK_MAX_DEPTH = 32 };

/* tokenizer_config_path may be NULL or name an absent file: then its added_tokens_decoder is not
 * merged in.
 * Errors  E_FORMAT (malformed or contradictory), E_UNSUPPORTED (names what is not implemented),
 *         E_NOTFOUND, E_NOMEM, E_IO */
coli_status coli__tok_open(const char *tokenizer_json_path, const char *tokenizer_config_path,
                           coli__tok **out);
/* The same from parsed files; the names are for messages, config may be NULL. */
coli_status coli__tok_from_json(const char *what, json_t *root, const char *config_what,
                                json_t *config, coli__tok **out);
void coli__tok_close(coli__tok *tok);

/* A stretch of the text that is a person's words: no added token is recognised in it. */
typedef struct coli__span {
    size_t begin, end;
} coli__span;

/* Text to ids.  Added tokens are recognised unless they touch a plain span.
 *
 *   text   UTF-8, at most 1 GiB
 *   plain  (n_plain) in order, not overlapping, within the text; NULL with 0
 *   ids    new memory (coli__free), NULL when there are none
 *
 * Errors  E_INVALID (names the byte that is not UTF-8, or the span), E_LIMIT, E_NOMEM
 * Cost    O(n log n) for the patterns of the known families */
coli_status coli__tok_encode(const coli__tok *tok, const char *text, size_t n_bytes,
                             const coli__span *plain, size_t n_plain, int32_t **ids, size_t *n_ids);

/* The bytes of one token, borrowed; NULL and 0 for an id that has none (padding rows). */
const char *coli__tok_bytes(const coli__tok *tok, int32_t id, size_t *n_bytes);
/* Marked special in the file (hidden from a reader); false for <think> and its like. */
bool coli__tok_is_special(const coli__tok *tok, int32_t id);
/* The id of an added token by its text, or -1. */
int32_t coli__tok_added_id(const coli__tok *tok, const char *content);
/* One more than the largest id that has text. */
uint32_t coli__tok_n_id(const coli__tok *tok);

/* Append the text of ids.  Ill-formed UTF-8 becomes U+FFFD as the reference does it; ids that have
 * no text give none. */
coli_status coli__tok_decode(const coli__tok *tok, const int32_t *ids, size_t n_ids,
                             bool skip_special, coli__buf *out);

/* Streaming: bytes in, whole UTF-8 characters out.  Start zeroed.  push appends to `out` what has
 * become complete, flush an unfinished tail as U+FFFD: together the same as coli__tok_decode. */
typedef struct coli__utf8_stream {
    unsigned char tail[4];
    uint32_t n_tail;
} coli__utf8_stream;
coli_status coli__utf8_push(coli__utf8_stream *s, const char *bytes, size_t n_bytes,
                            coli__buf *out);
coli_status coli__utf8_flush(coli__utf8_stream *s, coli__buf *out);

/* Tests only: run the patterns in PCRE2's interpreter although compiled code is at hand. */
void coli__tok_use_jit(coli__tok *tok, bool on);

/* Offset of the first ill-formed byte, or n_bytes. */
size_t coli__utf8_check(const char *bytes, size_t n_bytes);

#endif
