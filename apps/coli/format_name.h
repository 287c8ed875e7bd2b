/* format_name.h - from what people type to the name of a weight format. */
#ifndef COLI_FORMAT_NAME_H
#define COLI_FORMAT_NAME_H

#include <stddef.h>

/* "int4" and "--group 32" to the format's full name in out; names that are full already stay. */
const char *format_name(const char *format, const char *group, char *out, size_t cap);

/* Whether both are formats, and --group (NULL: not given) has something to say that they do not say
 * themselves.  An exit code; what is wrong was printed. */
int format_check(const char *command, const char *group, const char *experts, const char *trunk);

#endif
