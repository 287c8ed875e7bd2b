/* input.h - what people give the programs to read: whole files, lines, JSON. */
#ifndef APP_INPUT_H
#define APP_INPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* All of a file ("-": standard input) into new memory (free), NUL-terminated.  An exit code;
 * messages name the file. */
int app_read_all(const char *path, char **text, size_t *n_bytes);

/* One JSON object per line; blank lines are skipped.
 *   next    the next object: true with *object (new reference), or with NULL and `error` filled
 * when the line is none; false at the end line    the same without parsing: the text is in `line`,
 * n_bytes long */
typedef struct app_jsonl {
    FILE *file;
    const char *path;
    char *line;
    size_t n_bytes, cap;
    uint64_t n_line; // of the last line, from 1
    char error[256];
} app_jsonl;
int app_jsonl_open(app_jsonl *j, const char *path); // "-": standard input; an exit code
bool app_jsonl_next(app_jsonl *j, json_t **object);
bool app_jsonl_line(app_jsonl *j);
void app_jsonl_close(app_jsonl *j);

/* Write one value as a line of JSON to stdout and flush; takes over the reference.  False when
 * stdout takes no more. */
bool app_json_line(json_t *value);
/* {"error": "text"} as such a line. */
bool app_json_error_line(const char *text);

/* The ids in a file: a JSON array, or an object with the array "ids".  New memory (free).  An exit
 * code. */
int app_read_ids(const char *path, uint32_t n_vocab, int32_t **ids, size_t *n_ids);

#endif
