/* dynlib.h - shared libraries loaded at run time.  Paths are UTF-8 and absolute. */
#ifndef COLI_BASE_DYNLIB_H
#define COLI_BASE_DYNLIB_H

#include "error.h"

typedef struct coli__dynlib coli__dynlib;

/* Load with all symbols bound now and visible to nobody else.  Dependencies are looked for beside
 * the library and where the system keeps its own, never in the working directory.  E_NOTFOUND: no
 * such file; E_FORMAT: the system refuses it, with its text. */
coli_status coli__dynlib_open(const char *path, coli__dynlib **out);
void coli__dynlib_close(coli__dynlib *lib); // NULL is fine

/* Address of an exported symbol; NULL when there is none. */
void *coli__dynlib_symbol(coli__dynlib *lib, const char *name);

/* Directory of the library (or program) that contains this code; coli__free. */
coli_status coli__dynlib_own_dir(char **out);

/* ".so", ".dll" or ".dylib". */
const char *coli__dynlib_suffix(void);
/* What stands between directories of a search path. */
char coli__path_list_separator(void);
/* Whether a name has a directory in it, and is thus a path. */
bool coli__path_has_dir(const char *path);
/* The absolute form of an existing or absent path, without following the last link; coli__free. */
coli_status coli__path_absolute(const char *path, char **out);

#endif
