/* child.h - run a function where it may crash or hang without taking this process with it.
 *
 * On POSIX systems the function runs in a forked process; its messages come through a pipe, and a
 * small piece of memory is shared, so that the parent can read what the child was doing when it died.
 * Elsewhere it runs in a thread: a hang is still noticed, and the thread left behind; a crash is not
 * survived. */
#ifndef COLI_BASE_CHILD_H
#define COLI_BASE_CHILD_H

#include "error.h"

enum { COLI__CHILD_MESSAGE = 1024 }; // bytes of the longest message

typedef struct coli__child coli__child;
typedef void (*coli__child_fn)(coli__child *self, void *ctx);

/* shared_bytes of zeroed memory are seen by both.  ctx is the child's copy of it, as everything. */
coli_status coli__child_start(coli__child_fn fn, void *ctx, size_t shared_bytes, coli__child **out);
void *coli__child_shared(const coli__child *child);
/* Kills it when it still runs.  NULL is fine. */
void coli__child_destroy(coli__child *child);

typedef enum coli__child_event {
    COLI__CHILD_SAID,   // a message
    COLI__CHILD_DONE,   // fn returned, or the child left
    COLI__CHILD_DIED,   // a signal or an exit code ended it: coli__child_death
    COLI__CHILD_SILENT, // nothing within the limit; it still runs
} coli__child_event;

/* Wait for the next of these.  message has COLI__CHILD_MESSAGE bytes. */
coli__child_event coli__child_wait(coli__child *child, uint64_t limit_ns, void *message,
                                   size_t *n_bytes);
/* "Segmentation fault", "exit code 3"; for a child that died. */
const char *coli__child_death(const coli__child *child);

/* Whether children are processes.  Where they are threads, what they loaded is this process's. */
bool coli__child_is_process(void);

/* For the child itself, from any of its threads: send at most COLI__CHILD_MESSAGE bytes; leave at
 * once, with all its threads (where it is a thread: this thread). */
void coli__child_say(coli__child *self, const void *message, size_t n_bytes);
_Noreturn void coli__child_leave(coli__child *self);

#endif
