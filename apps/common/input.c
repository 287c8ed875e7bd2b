/* input.c - see input.h. */
#include "input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "terminal.h"

static FILE *open_input(const char *path)
{
    if (strcmp(path, "-") == 0) return stdin;
    FILE *file = fopen(path, "rb");
    if (!file) app_error("%s: %s", path, strerror(errno));
    return file;
}

static const char *name_of(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

int app_read_all(const char *path, char **text, size_t *n_bytes)
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
    } while (got > 0);
    const bool failed = ferror(file);
    const int reason = errno;
    if (file != stdin) fclose(file);
    if (failed) {
        app_error("%s: %s", name_of(path), strerror(reason));
        free(data);
        return APP_FAILED;
    }
    data[n] = 0;
    *text = data;
    *n_bytes = n;
    return APP_OK;
}

int app_jsonl_open(app_jsonl *j, const char *path)
{
    *j = (app_jsonl){.path = name_of(path), .file = open_input(path)};
    return j->file ? APP_OK : APP_BAD;
}

void app_jsonl_close(app_jsonl *j)
{
    if (j->file && j->file != stdin) fclose(j->file);
    free(j->line);
    *j = (app_jsonl){0};
}

bool app_jsonl_line(app_jsonl *j)
{
    ssize_t n;
    do {
        n = getline(&j->line, &j->cap, j->file);
        if (n < 0) return false;
        j->n_line++;
    } while (strspn(j->line, " \t\r\n") == (size_t)n);
    j->n_bytes = (size_t)n;
    return true;
}

bool app_jsonl_next(app_jsonl *j, json_t **object)
{
    *object = NULL;
    if (!app_jsonl_line(j)) return false;
    json_error_t error;
    json_t *value =
        json_loadb(j->line, j->n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    const unsigned long long n_line = j->n_line;
    if (json_is_object(value)) {
        *object = value;
        return true;
    }
    if (value)
        snprintf(j->error, sizeof j->error, "line %llu: expected a JSON object", n_line);
    else
        snprintf(j->error, sizeof j->error, "line %llu, column %d: %s", n_line, error.column,
                 error.text);
    json_decref(value);
    return true;
}

bool app_json_line(json_t *value)
{
    char *text = value ? json_dumps(value, 0) : NULL;
    json_decref(value);
    if (!text) {
        app_error("out of memory: a line of JSON");
        exit(APP_FAILED);
    }
    fputs(text, stdout);
    fputc('\n', stdout);
    free(text);
    return fflush(stdout) == 0 && !ferror(stdout);
}

bool app_json_error_line(const char *text)
{
    json_t *value = json_pack("{s:s}", "error", text);
    return app_json_line(value ? value : json_pack("{s:s}", "error", "the message is not UTF-8"));
}

int app_read_ids(const char *path, uint32_t n_vocab, int32_t **ids, size_t *n_ids)
{
    *ids = NULL;
    *n_ids = 0;
    char *text;
    size_t n_bytes;
    int code = app_read_all(path, &text, &n_bytes);
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
