/* json.c - see json.h. */
#include "json.h"

#include <math.h>
#include <string.h>

#include "../base/file.h"

/* Deepest nesting of arrays and objects, or max_depth + 1 as soon as that is passed.  Brackets
 * inside strings do not count; malformed text is left for the parser to name. */
static int nesting(const char *text, size_t n_bytes, int max_depth)
{
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < n_bytes; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > deepest) deepest = depth;
            if (deepest > max_depth) return deepest;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return deepest;
}

coli_status coli__json_parse(const char *what, const char *text, size_t n_bytes, int max_depth,
                             json_t **out)
{
    *out = NULL;
    if (nesting(text, n_bytes, max_depth) > max_depth)
        return coli__fail(COLI_E_FORMAT, "%s: JSON is nested deeper than %d", what, max_depth);
    json_error_t error;
    *out = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (*out) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: line %d, column %d: %s", what, error.line, error.column,
                      error.text);
}

coli_status coli__json_read(const char *path, uint64_t max_bytes, int max_depth, json_t **out)
{
    *out = NULL;
    coli__buf text = {0};
    coli_status status = coli__file_read(path, max_bytes, &text);
    if (status == COLI_OK)
        status = coli__json_parse(path, text.data ? text.data : "", text.n_bytes, max_depth, out);
    coli__buf_finish(&text);
    return status;
}

static const json_t *member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static coli_status u32_of(const char *what, const json_t *value, const char *key, uint32_t min,
                          uint32_t max, uint32_t *out)
{
    if (!json_is_integer(value))
        return coli__fail(COLI_E_FORMAT, "%s: %s: expected a whole number", what, key);
    const json_int_t number = json_integer_value(value);
    if (number < (json_int_t)min || number > (json_int_t)max)
        return coli__fail(COLI_E_FORMAT, "%s: %s: expected %u to %u, found %lld", what, key, min,
                          max, (long long)number);
    *out = (uint32_t)number;
    return COLI_OK;
}

coli_status coli__json_u32(const char *what, const json_t *object, const char *key, uint32_t min,
                           uint32_t max, uint32_t *out)
{
    const json_t *value = member(object, key);
    if (!value) return coli__fail(COLI_E_FORMAT, "%s: %s is missing", what, key);
    return u32_of(what, value, key, min, max, out);
}

coli_status coli__json_u32_or(const char *what, const json_t *object, const char *key, uint32_t min,
                              uint32_t max, uint32_t fallback, uint32_t *out)
{
    *out = fallback;
    const json_t *value = member(object, key);
    return value ? u32_of(what, value, key, min, max, out) : COLI_OK;
}

coli_status coli__json_number_or(const char *what, const json_t *object, const char *key, double min,
                                 double max, double fallback, double *out)
{
    *out = fallback;
    const json_t *value = member(object, key);
    if (!value) return COLI_OK;
    if (!json_is_number(value))
        return coli__fail(COLI_E_FORMAT, "%s: %s: expected a number", what, key);
    const double number = json_number_value(value);
    if (!(number >= min && number <= max))
        return coli__fail(COLI_E_FORMAT, "%s: %s: expected %g to %g, found %g", what, key, min, max,
                          number);
    *out = number;
    return COLI_OK;
}

coli_status coli__json_bool_or(const char *what, const json_t *object, const char *key,
                               bool fallback, bool *out)
{
    *out = fallback;
    const json_t *value = member(object, key);
    if (!value) return COLI_OK;
    if (!json_is_boolean(value))
        return coli__fail(COLI_E_FORMAT, "%s: %s: expected true or false", what, key);
    *out = json_is_true(value);
    return COLI_OK;
}

coli_status coli__json_string_or_null(const char *what, const json_t *object, const char *key,
                                      const char **out)
{
    *out = NULL;
    const json_t *value = member(object, key);
    if (!value) return COLI_OK;
    if (!json_is_string(value))
        return coli__fail(COLI_E_FORMAT, "%s: %s: expected a string", what, key);
    *out = json_string_value(value);
    return COLI_OK;
}
