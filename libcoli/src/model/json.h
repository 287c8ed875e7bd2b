/* json.h - JSON from files nobody vouches for: jansson behind limits on size and depth.
 *
 * The depth is counted over the bytes before the parser recurses into them.  Duplicate keys, bad
 * UTF-8, lone surrogates and NUL in strings are errors.  Key order is kept. */
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

/* Members with checks; `what` is the prefix of the message.  An absent member is E_FORMAT unless
 * the _or form gives a default; a member of the wrong type or range always is.  json null counts
 * as absent. */
coli_status coli__json_u32(const char *what, const json_t *object, const char *key, uint32_t min,
                           uint32_t max, uint32_t *out);
coli_status coli__json_u32_or(const char *what, const json_t *object, const char *key, uint32_t min,
                              uint32_t max, uint32_t fallback, uint32_t *out);
coli_status coli__json_number_or(const char *what, const json_t *object, const char *key, double min,
                                 double max, double fallback, double *out);
coli_status coli__json_bool_or(const char *what, const json_t *object, const char *key,
                               bool fallback, bool *out);
/* The string member's bytes, borrowed from the object; *out NULL when absent. */
coli_status coli__json_string_or_null(const char *what, const json_t *object, const char *key,
                                      const char **out);

#endif
