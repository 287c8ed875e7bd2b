/* token_bytes.h - the very bytes of a token, for those that are part of a character: the library
 * turns ids to text, and text has no half characters. */
#ifndef COLI_TOKEN_BYTES_H
#define COLI_TOKEN_BYTES_H

#include <stddef.h>
#include <stdint.h>

typedef struct token_bytes token_bytes;

/* From a tokenizer.json; NULL where it has no vocabulary. */
token_bytes *token_bytes_open(const char *tokenizer_json);
/* Whole characters as they are, other bytes as <E2>: new memory (free); NULL for an unknown id. */
char *token_bytes_shown(const token_bytes *t, int32_t id);
void token_bytes_close(token_bytes *t);

#endif
