/* json.h - JSON from files nobody vouches for: jansson behind limits on size, depth and values.
 *
 * Depth and values are counted over the bytes before the parser takes memory for them.  Duplicate
 * keys, bad UTF-8, lone surrogates and NUL in strings are errors.  Key order is kept. */
#ifndef COLI_MODEL_JSON_H
#define COLI_MODEL_JSON_H

#include <jansson.h>

#include "../base/alloc.h"

/* Parse exactly n_bytes of text.  `what` names the source in messages ("config.json").
 * max_depth counts nested arrays and objects.  *out is a new reference (json_decref). */
coli_status coli__json_parse(const char *what, const char *text, size_t n_bytes, int max_depth,
                             json_t **out);

/* The same for a file: absent is E_NOTFOUND, larger than max_bytes E_FORMAT. */
coli_status coli__json_read(const char *path, uint64_t max_bytes, int max_depth, json_t **out);

/* config.json and its like.  Two bytes of text ("{}") can become 350 in memory, so where memory is
 * bounded the number of values must be: these cost 12 MB at most, besides the text. */
enum {
    COLI_CONFIG_MAX_BYTES = 1 << 20,
    COLI_CONFIG_MAX_DEPTH = 64,
    COLI_JSON_SMALL_VALUES = 1 << 16,
};

/* coli__json_parse for text of at most COLI_JSON_SMALL_VALUES values; more is E_FORMAT. */
coli_status coli__json_parse_small(const char *what, const char *text, size_t n_bytes,
                                   int max_depth, json_t **out);

/* The members of an object that may have very many, one after the other, in the memory that one
 * takes.  Start with {.what, .text, .n_bytes, .max_depth}; everything is borrowed. */
typedef struct coli__json_members {
    const char *what, *text;
    size_t n_bytes;
    int max_depth;
    size_t at, n_member; // where to go on; how many were there so far
    bool done;
} coli__json_members;

enum { COLI_JSON_MEMBER_MAX_BYTES = 1 << 20 };

/* The text of the next member, key and value; *member NULL behind the last one.  Only its end is
 * known then: whether it is JSON, its parser must say. */
coli_status coli__json_next_text(coli__json_members *m, const char **member, size_t *n_bytes);

/* The value in the text of a member whose key is `key`, spelled without escapes; false, and *value as
 * it was, for any other.  The value begins with its first byte and may have blanks behind it. */
bool coli__json_text_value(const char *member, size_t n_bytes, const char *key, const char **value,
                           size_t *n_value);

/* The next member as an object that holds nothing else (a new reference); NULL behind the last one.
 * A whole object is read with the checks of coli__json_parse, except that it does not notice when
 * two of its members have the same key. */
coli_status coli__json_next(coli__json_members *m, json_t **out);

/* Members with checks; `what` is the prefix of the message.  An absent member is E_FORMAT unless
 * the _or form gives a default; a member of the wrong type or range always is.  json null counts
 * as absent. */
coli_status coli__json_u32(const char *what, const json_t *object, const char *key, uint32_t min,
                           uint32_t max, uint32_t *out);
coli_status coli__json_u32_or(const char *what, const json_t *object, const char *key, uint32_t min,
                              uint32_t max, uint32_t fallback, uint32_t *out);
coli_status coli__json_number_or(const char *what, const json_t *object, const char *key,
                                 double min, double max, double fallback, double *out);
coli_status coli__json_bool_or(const char *what, const json_t *object, const char *key,
                               bool fallback, bool *out);
/* The string member's bytes, borrowed from the object; *out NULL when absent. */
coli_status coli__json_string_or_null(const char *what, const json_t *object, const char *key,
                                      const char **out);

#endif
