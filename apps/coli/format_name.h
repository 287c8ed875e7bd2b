/* format_name.h - from what people type to the name of a weight format. */
#ifndef COLI_FORMAT_NAME_H
#define COLI_FORMAT_NAME_H

#include <stddef.h>

/* "int4" and "--group 32" to the format's full name in out; names that are full already stay, and
 * so does NULL. */
const char *format_name(const char *format, const char *group, char *out, size_t cap);

#endif
