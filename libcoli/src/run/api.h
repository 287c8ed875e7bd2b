/* api.h - the rule for structs that cross the library's boundary, in one place.
 *
 * They start with struct_size and only grow at the end.  A caller built against an older header
 * passes a smaller struct: what it lacks is zero, the default.  One built against a newer header
 * passes a larger one: accepted while the part that we do not know is zero. */
#ifndef COLI_RUN_API_H
#define COLI_RUN_API_H

#include <string.h>

#include "../base/error.h"

/* Copy the caller's options (NULL: all defaults) into `out` of out_bytes. */
static inline coli_status coli__opts_copy(const char *what, void *out, size_t out_bytes,
                                          const void *opts)
{
    memset(out, 0, out_bytes);
    if (!opts) return COLI_OK;
    uint32_t size;
    memcpy(&size, opts, sizeof size);
    if (size < sizeof size || size > 4096)
        return coli__fail(COLI_E_INVALID, "%s: struct_size is %u; set it to sizeof the struct",
                          what, size);
    for (size_t i = out_bytes; i < size; i++)
        if (((const unsigned char *)opts)[i])
            return coli__fail(COLI_E_UNSUPPORTED,
                              "%s: sets an option that this version does not know", what);
    memcpy(out, opts, size < out_bytes ? size : out_bytes);
    return COLI_OK;
}

/* Zero a struct of the caller's, whose struct_size says how large it is to him.  First thing in a
 * call, so that it is safe to read whatever happens then. */
static inline coli_status coli__struct_clear(const char *what, void *out)
{
    uint32_t size;
    memcpy(&size, out, sizeof size);
    if (size < sizeof size || size > 4096)
        return coli__fail(COLI_E_INVALID, "%s: struct_size is %u; set it to sizeof the struct",
                          what, size);
    memset((char *)out + sizeof size, 0, size - sizeof size);
    return COLI_OK;
}

/* Fill such a struct with as much of `full` as the caller knows of. */
static inline void coli__struct_fill(void *out, const void *full, size_t full_bytes)
{
    uint32_t size;
    memcpy(&size, out, sizeof size);
    const size_t n = size < full_bytes ? size : full_bytes;
    memcpy((char *)out + sizeof size, (const char *)full + sizeof size, n - sizeof size);
}

#endif
