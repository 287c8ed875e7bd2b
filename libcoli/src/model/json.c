/* json.c - see json.h. */
#include "json.h"

#include <stdio.h>
#include <string.h>

#include "../base/file.h"

/* Where the string that begins at text[i], a quote, ends: at its other quote, or at n_bytes. */
static size_t string_end(const char *text, size_t n_bytes, size_t i)
{
    for (i++; i < n_bytes && text[i] != '"'; i++)
        if (text[i] == '\\') i++;
    return i < n_bytes ? i : n_bytes;
}

static coli_status too_deep(const char *what, int max_depth)
{
    return coli__fail(COLI_E_FORMAT, "%s: JSON is nested deeper than %d", what, max_depth);
}

/* Count what text would become.  A value is the whole, or the first behind a bracket, or stands
 * behind a comma, so *n_value is never too small, and an empty object or list counts twice, which is
 * what it costs; malformed text is left for the parser to name. */
static coli_status count(const char *what, const char *text, size_t n_bytes, int max_depth,
                         size_t *n_value)
{
    int depth = 0;
    *n_value = 1;
    for (size_t i = 0; i < n_bytes; i++) {
        const char c = text[i];
        if (c == '"') i = string_end(text, n_bytes, i);
        if (c == '[' || c == '{' || c == ',') (*n_value)++;
        if (c == ']' || c == '}') depth--;
        if ((c == '[' || c == '{') && ++depth > max_depth) return too_deep(what, max_depth);
    }
    return COLI_OK;
}

static coli_status parse(const char *what, const char *text, size_t n_bytes, json_t **out)
{
    json_error_t error;
    *out = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (*out) return COLI_OK;
    if (json_error_code(&error) == json_error_out_of_memory)
        return coli__fail(COLI_E_NOMEM, "%s: out of memory", what);
    return coli__fail(COLI_E_FORMAT, "%s: line %d, column %d: %s", what, error.line, error.column,
                      error.text);
}

coli_status coli__json_parse(const char *what, const char *text, size_t n_bytes, int max_depth,
                             json_t **out)
{
    size_t n_value;
    *out = NULL;
    COLI_TRY(count(what, text, n_bytes, max_depth, &n_value));
    return parse(what, text, n_bytes, out);
}

coli_status coli__json_parse_small(const char *what, const char *text, size_t n_bytes,
                                   int max_depth, json_t **out)
{
    size_t n_value;
    *out = NULL;
    COLI_TRY(count(what, text, n_bytes, max_depth, &n_value));
    if (n_value > COLI_JSON_SMALL_VALUES)
        return coli__fail(COLI_E_FORMAT, "%s: more than %d values", what, COLI_JSON_SMALL_VALUES);
    return parse(what, text, n_bytes, out);
}

/* -- member by member -------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_blanks(const char *text, size_t n_bytes, size_t i)
{
    while (i < n_bytes && is_blank(text[i])) i++;
    return i;
}

/* The comma or closing bracket that ends the member beginning at *end. */
static coli_status find_end(const coli__json_members *m, size_t *end)
{
    int depth = 1;
    for (size_t i = *end; i < m->n_bytes; i++) {
        const char c = m->text[i];
        if (c == '"') i = string_end(m->text, m->n_bytes, i);
        if ((c == '[' || c == '{') && ++depth > m->max_depth)
            return too_deep(m->what, m->max_depth);
        const bool closed = (c == ']' || c == '}') && --depth == 0;
        if (!closed && (c != ',' || depth > 1)) continue;
        *end = i;
        return COLI_OK;
    }
    return coli__fail(COLI_E_FORMAT, "%s: its JSON ends inside an object", m->what);
}

/* The object ends at text[end]. */
static coli_status finish(coli__json_members *m, size_t end)
{
    m->done = true;
    if (m->text[end] != '}')
        return coli__fail(COLI_E_FORMAT, "%s: byte %zu: expected '}', found ']'", m->what, end);
    const size_t behind = skip_blanks(m->text, m->n_bytes, end + 1);
    if (behind == m->n_bytes) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: byte %zu: expected the end, found 0x%02x", m->what,
                      behind, (unsigned)(unsigned char)m->text[behind]);
}

coli_status coli__json_next_text(coli__json_members *m, const char **member, size_t *n_bytes)
{
    *member = NULL;
    *n_bytes = 0;
    if (m->done) return COLI_OK;
    if (m->at == 0) {
        m->at = skip_blanks(m->text, m->n_bytes, 0);
        if (m->at == m->n_bytes || m->text[m->at] != '{')
            return coli__fail(COLI_E_FORMAT, "%s: expected an object", m->what);
        m->at++;
    }
    const size_t begin = m->at;
    size_t end = begin;
    COLI_TRY(find_end(m, &end));
    m->at = end + 1;
    if (m->text[end] != ',') COLI_TRY(finish(m, end));
    const bool blank = skip_blanks(m->text, end, begin) == end;
    if (m->done && m->n_member == 0 && blank) return COLI_OK; // {}
    m->n_member++;
    *member = m->text + begin;
    *n_bytes = end - begin;
    return COLI_OK;
}

bool coli__json_text_value(const char *member, size_t n_bytes, const char *key, const char **value,
                           size_t *n_value)
{
    const size_t n_key = strlen(key), at = skip_blanks(member, n_bytes, 0);
    if (n_bytes - at < n_key + 2 || member[at] != '"' || member[at + 1 + n_key] != '"' ||
        memcmp(member + at + 1, key, n_key) != 0)
        return false;
    const size_t colon = skip_blanks(member, n_bytes, at + n_key + 2);
    if (colon == n_bytes || member[colon] != ':') return false;
    const size_t begin = skip_blanks(member, n_bytes, colon + 1);
    *value = member + begin;
    *n_value = n_bytes - begin;
    return true;
}

coli_status coli__json_next(coli__json_members *m, json_t **out)
{
    const char *text;
    size_t n_bytes;
    *out = NULL;
    COLI_TRY(coli__json_next_text(m, &text, &n_bytes));
    if (!text) return COLI_OK;
    char where[64];
    snprintf(where, sizeof where, "member at byte %zu", (size_t)(text - m->text));
    if (n_bytes > COLI_JSON_MEMBER_MAX_BYTES)
        return coli__fail(COLI_E_FORMAT, "%s: %s: expected at most %d bytes, found %zu", m->what,
                          where, COLI_JSON_MEMBER_MAX_BYTES, n_bytes);
    coli__buf object = {0};
    coli_status status = coli__buf_append(&object, "{", 1);
    if (status == COLI_OK) status = coli__buf_append(&object, text, n_bytes);
    if (status == COLI_OK) status = coli__buf_append(&object, "}", 1);
    if (status == COLI_OK)
        status = coli__json_parse_small(where, object.data, object.n_bytes, m->max_depth, out);
    coli__buf_finish(&object);
    if (status != COLI_OK) return coli__fail_in(status, "%s", m->what);
    if (json_object_size(*out) == 1) return COLI_OK;
    json_decref(*out);
    *out = NULL;
    return coli__fail(COLI_E_FORMAT, "%s: %s: expected a key and a value", m->what, where);
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

coli_status coli__json_number_or(const char *what, const json_t *object, const char *key,
                                 double min, double max, double fallback, double *out)
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
