/* input.h - what people give the programs to read: whole files, lines, JSON; and JSON to write. */
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

/* The lines of a file that are not blank, one after another. */
typedef struct app_lines {
    FILE *file;
    const char *name; // of the file, for messages
    char *line;       // the last one, its newline included; NUL-terminated
    size_t n_bytes, cap;
    uint64_t n_line; // of the last line, from 1
    char error[256]; // why that line is no JSON object
    int failed;      // errno of the read that failed
} app_lines;

int app_lines_open(app_lines *l, const char *path); // "-": standard input; an exit code
/* The next line.  False at the end and where reading fails; app_lines_close knows which. */
bool app_lines_next(app_lines *l);
/* The next line as a JSON object (new reference), or NULL and `error`. */
bool app_lines_next_object(app_lines *l, json_t **object);
/* Fill `error`: what jansson says about the line, or, with NULL, that it is no object. */
void app_lines_blame(app_lines *l, const json_error_t *error);
/* The exit code of reading: APP_FAILED, with a message, where the file could not be read to its
 * end. */
int app_lines_close(app_lines *l);

/* A string of any bytes; those that are no UTF-8 become U+FFFD. */
json_t *app_json_string(const char *text, size_t n_bytes);
/* A value as JSON in new memory (free).  The control characters that JSON allows are escaped, too:
 * the same value, and a terminal is not driven by it. */
char *app_json_text(const json_t *value);
/* Write one value as a line of JSON to stdout and flush; takes over the reference. */
void app_json_line(json_t *value);
/* {"error": "text"} as such a line. */
void app_json_error_line(const char *text);

/* The ids in a file: a JSON array, or an object with the array "ids".  New memory (free).  An exit
 * code. */
int app_read_ids(const char *path, uint32_t n_vocab, int32_t **ids, size_t *n_ids);

#endif
