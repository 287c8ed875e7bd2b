/* wide.h - Windows alone: text is UTF-8 inside and UTF-16 at the system.
 *
 * Nothing here takes memory: Windows knows no path of 32768 characters, so each has its place on the
 * stack.  Windows takes 260 characters of a path unless the path is absolute, clean and begins with
 * \\?\, so longer ones are made so.  Functions report by errno. */
#ifndef COLI_BASE_WIDE_H
#define COLI_BASE_WIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <wchar.h>

enum { COLI_WIDE_CHARS = 32768 };

typedef struct coli__wide {
    wchar_t text[COLI_WIDE_CHARS]; // NUL-terminated
} coli__wide;

/* A path for the functions whose names end with W.  False: ENAMETOOLONG, EILSEQ. */
bool coli__wide_path(const char *path, coli__wide *out);

/* UTF-16 as UTF-8, NUL-terminated; half a surrogate pair becomes U+FFFD.  False: it does not fit. */
bool coli__wide_to_utf8(const wchar_t *wide, char *out, size_t cap_bytes);

/* errno from GetLastError(). */
void coli__wide_set_errno(void);

#endif
