/* dynlib.h - shared libraries loaded at run time, and the paths of their files.  Paths are UTF-8. */
#ifndef COLI_BASE_DYNLIB_H
#define COLI_BASE_DYNLIB_H

#include "error.h"

typedef struct coli__dynlib coli__dynlib;

/* Load with all symbols bound now and visible to nobody else.  path is absolute.  What the library
 * needs is looked for as the system does for any: beside it on Windows, along its own run path
 * elsewhere; never in the working directory.
 * Errors  E_NOTFOUND: no such file; E_IO: no file, or one that cannot be read; E_FORMAT: the system
 *         cannot load it.  The message is the reason alone, without the path. */
coli_status coli__dynlib_open(const char *path, coli__dynlib **out);
void coli__dynlib_close(coli__dynlib *lib); // NULL is fine; never closing it is, too

/* Address of an exported symbol; NULL when there is none. */
void *coli__dynlib_symbol(coli__dynlib *lib, const char *name);
/* What stands behind an address in a loaded library: whether it could be called, or read. */
bool coli__dynlib_is_code(const void *address);
bool coli__dynlib_is_readable(const void *address, size_t n_bytes);

/* Directory of the library (or program) that contains this code, absolute; coli__free. */
coli_status coli__dynlib_own_dir(char **out);

/* ".so", ".dll" or ".dylib". */
const char *coli__dynlib_suffix(void);
/* What stands between directories of a search path. */
char coli__path_list_separator(void);
/* Whether a name has a directory in it, and is thus a path. */
bool coli__path_has_dir(const char *path);
bool coli__path_is_absolute(const char *path);
/* The absolute form of an existing or absent path, without following the last link; coli__free. */
coli_status coli__path_absolute(const char *path, char **out);
/* Whether two paths lead to one file or directory, also by links; false when one leads nowhere. */
bool coli__path_same(const char *a, const char *b);

#endif
