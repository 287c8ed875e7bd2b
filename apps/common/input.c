/* input.c - see input.h. */
#include "input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "system.h"
#include "terminal.h"
#include "text.h"

static FILE *open_input(const char *path)
{
    if (strcmp(path, "-") == 0) return stdin;
    FILE *file = app_system_open(path);
    if (!file) app_error("%s: %s", path, strerror(errno));
    return file;
}

static const char *name_of(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

/* A read that failed: what cannot be read by its nature is a bad input. */
static int fail_reading(const char *name, int reason)
{
    app_error("%s: %s", name, strerror(reason));
    return reason == EISDIR ? APP_BAD : APP_FAILED;
}

int app_read_all(const char *path, size_t max_bytes, char **text, size_t *n_bytes)
{
    *text = NULL;
    *n_bytes = 0;
    FILE *file = open_input(path);
    if (!file) return APP_BAD;
    size_t cap = 0, n = 0, got;
    char *data = NULL;
    do {
        if (cap - n < 2) data = app_realloc(data, cap = cap ? 2 * cap : 65536, 1);
        got = fread(data + n, 1, cap - n - 1, file);
        n += got;
    } while (got > 0 && n <= max_bytes);
    const bool failed = ferror(file);
    const int reason = errno;
    if (file != stdin) fclose(file);
    if (failed || n > max_bytes) {
        free(data);
        if (failed) return fail_reading(name_of(path), reason);
        app_error("%s: expected at most %zu MiB, found more", name_of(path), max_bytes >> 20);
        return APP_BAD;
    }
    data[n] = 0;
    *text = data;
    *n_bytes = n;
    return APP_OK;
}

int app_lines_open(app_lines *l, const char *path)
{
    *l = (app_lines){.name = name_of(path), .file = open_input(path)};
    return l->file ? APP_OK : APP_BAD;
}

int app_lines_close(app_lines *l)
{
    int code = APP_OK;
    if (l->failed) code = fail_reading(l->name, l->failed);
    if (l->too_long) {
        app_error("%s: line %llu: expected at most %zu MiB, found more", l->name,
                  (unsigned long long)l->n_line + 1, APP_MAX_TEXT >> 20);
        code = APP_BAD;
    }
    if (l->file && l->file != stdin) fclose(l->file);
    free(l->line);
    *l = (app_lines){0};
    return code;
}

/* getline with an end: false at the end of the file, where reading fails and where a line is too
 * long. */
static bool get_line(app_lines *l)
{
    size_t n = 0;
    int c;
    do {
        c = getc(l->file);
        if (c == EOF) break;
        if (n == APP_MAX_TEXT) {
            l->too_long = true;
            return false;
        }
        if (l->cap - n < 2) l->line = app_realloc(l->line, l->cap = l->cap ? 2 * l->cap : 256, 1);
        l->line[n++] = (char)c;
    } while (c != '\n');
    if (ferror(l->file)) l->failed = errno;
    if (n == 0 || l->failed) return false;
    l->line[n] = 0;
    l->n_bytes = n;
    l->n_line++;
    return true;
}

bool app_lines_next(app_lines *l)
{
    do {
        if (!get_line(l)) return false;
    } while (strspn(l->line, " \t\r\n") == l->n_bytes);
    return true;
}

void app_lines_blame(app_lines *l, const json_error_t *error)
{
    const unsigned long long n_line = l->n_line;
    if (!error)
        snprintf(l->error, sizeof l->error, "line %llu: expected a JSON object", n_line);
    else
        snprintf(l->error, sizeof l->error, "line %llu, column %d: %s", n_line, error->column,
                 error->text);
}

bool app_lines_next_object(app_lines *l, json_t **object)
{
    *object = NULL;
    if (!app_lines_next(l)) return false;
    json_error_t error;
    json_t *value =
        json_loadb(l->line, l->n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (json_is_object(value)) {
        *object = value;
        return true;
    }
    app_lines_blame(l, value ? NULL : &error);
    json_decref(value);
    return true;
}

json_t *app_json_string(const char *text, size_t n_bytes)
{
    size_t n;
    char *good = app_utf8_repair(text, n_bytes, &n);
    json_t *string = json_stringn(good, n);
    free(good);
    return string;
}

char *app_json_text(const json_t *value)
{
    char *dumped = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (!dumped) { // strings are UTF-8: app_json_string
        app_error("out of memory: a line of JSON");
        exit(APP_FAILED);
    }
    const size_t n_bytes = strlen(dumped);
    char *text = app_alloc(n_bytes + 1, strlen("\\u007f"));
    for (size_t i = 0, n = 0, step; i < n_bytes; i += step) {
        uint32_t code;
        step = app_utf8_char(dumped + i, n_bytes - i, &code); // never 0: jansson writes UTF-8
        if (code >= 0x7F && code < 0xA0) {
            n += (size_t)sprintf(text + n, "\\u%04X", (unsigned)code);
        } else {
            memcpy(text + n, dumped + i, step);
            n += step;
        }
    }
    free(dumped);
    return text;
}

void app_json_line(json_t *value)
{
    char *text = app_json_text(value);
    json_decref(value);
    puts(text);
    app_flush();
    free(text);
}

void app_json_error_line(const char *text)
{
    json_t *line = json_object();
    json_object_set_new(line, "error", app_json_string(text, strlen(text)));
    app_json_line(line);
}

void app_lines_error(const app_lines *l, const char *text)
{
    char *numbered = app_format("line %llu: %s", (unsigned long long)l->n_line, text);
    app_json_error_line(numbered);
    free(numbered);
}

int app_read_ids(const char *path, uint32_t n_vocab, int32_t **ids, size_t *n_ids)
{
    *ids = NULL;
    *n_ids = 0;
    char *text;
    size_t n_bytes;
    int code = app_read_all(path, APP_MAX_IDS, &text, &n_bytes);
    if (code != APP_OK) return code;
    const char *name = name_of(path);
    json_error_t error;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    const json_t *array = json_is_object(root) ? json_object_get(root, "ids") : root;
    code = APP_BAD;
    if (!root) {
        app_error("%s: line %d, column %d: %s", name, error.line, error.column, error.text);
        goto out;
    }
    if (!json_is_array(array)) {
        app_error("%s: expected a JSON array of token ids, or an object with one under \"ids\"",
                  name);
        goto out;
    }
    const size_t n = json_array_size(array);
    if (n == 0) {
        app_error("%s: the array of ids is empty", name);
        goto out;
    }
    int32_t *found = app_alloc(n, sizeof *found);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(array, i);
        const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id >= (json_int_t)n_vocab) {
            char *shown = json_dumps(item, JSON_ENCODE_ANY | JSON_COMPACT);
            app_error("%s: id %zu: expected a whole number from 0 to %u, found %.40s", name, i,
                      n_vocab - 1, shown ? shown : "?");
            free(shown);
            free(found);
            goto out;
        }
        found[i] = (int32_t)id;
    }
    *ids = found;
    *n_ids = n;
    code = APP_OK;
out:
    json_decref(root);
    return code;
}
