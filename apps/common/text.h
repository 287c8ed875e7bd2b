/* text.h - text that came from elsewhere: names of files, what stands in files, what a model said.
 * It may be no UTF-8, and it may hold control characters, which a terminal obeys. */
#ifndef APP_TEXT_H
#define APP_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The UTF-8 character that begins text[0..n_bytes): its length and *code; 0 where none does. */
size_t app_utf8_char(const char *text, size_t n_bytes, uint32_t *code);

/* The text with U+FFFD for every byte that is no UTF-8.  New memory (free), NUL-terminated. */
char *app_utf8_repair(const char *text, size_t n_bytes, size_t *n_out);

/* Write text such that a terminal shows it and obeys none of it: control characters become the
 * pictures Unicode has for them, those without one (U+0080 to U+009F) and bytes that are no UTF-8
 * become U+FFFD.  The characters of `kept`, newlines for example, stay as they are.  False when the
 * stream takes no more. */
bool app_put_shown(FILE *stream, const char *text, size_t n_bytes, const char *kept);

/* printf into new memory (free). */
__attribute__((format(printf, 1, 2))) char *app_format(const char *fmt, ...);

#endif
