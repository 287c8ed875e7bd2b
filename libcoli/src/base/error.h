/* error.h - write a failure's message once, where the fact is known; pass its status on. */
#ifndef COLI_BASE_ERROR_H
#define COLI_BASE_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coli/status.h"

/* Store the message for this thread and return `status`.  The message says what, where, expected
 * and found, with no newline and no trailing period: "model.coli: tensor x: needs 8 bytes at 4". */
__attribute__((format(printf, 2, 3))) coli_status coli__fail(coli_status status, const char *fmt,
                                                             ...);

/* Put `prefix: ` before this thread's message, for a caller that knows more (a file name). */
__attribute__((format(printf, 2, 3))) coli_status coli__fail_in(coli_status status,
                                                                const char *prefix_fmt, ...);

#define COLI_TRY(call)                                                                             \
    do {                                                                                           \
        const coli_status coli_try_status_ = (call);                                               \
        if (coli_try_status_ != COLI_OK) return coli_try_status_;                                  \
    } while (0)

/* The same for functions that clean up at a label `out:` and hold a variable `status`. */
#define COLI_TRY_OUT(call)                                                                         \
    do {                                                                                           \
        if ((status = (call)) != COLI_OK) goto out;                                                \
    } while (0)

#endif
