/* threads.h - a pool of persistent workers and the facts about processors it needs.
 *
 * coli__pool_run is one synchronisation: it hands out the items 0..n_item-1 to the workers and the
 * caller, and returns when all are done.  Which worker takes which item is open, so an item may only
 * write what no other item of the same run touches: results then do not depend on the thread count. */
#ifndef COLI_BASE_THREADS_H
#define COLI_BASE_THREADS_H

#include "error.h"

typedef struct coli__pool coli__pool;
typedef void (*coli__pool_fn)(void *ctx, uint32_t item, uint32_t worker); // worker < n_worker

/* n_thread counts the caller of coli__pool_run; 0 means one per usable processor, at most 1024. */
coli_status coli__pool_create(uint32_t n_thread, coli__pool **out);
void coli__pool_destroy(coli__pool *pool); // joins the workers; NULL is fine
uint32_t coli__pool_n_worker(const coli__pool *pool);

/* Run fn for every item.  One caller at a time.  No allocation.  n_item <= 1 runs inline. */
void coli__pool_run(coli__pool *pool, uint32_t n_item, coli__pool_fn fn, void *ctx);

/* Synchronisations so far: runs of more than one item.  The tests count them per layer. */
uint64_t coli__pool_n_sync(const coli__pool *pool);

/* Processors this process may run on (affinity and cgroup quota included), at least 1. */
uint32_t coli__n_processor(void);

/* Monotonic time. */
uint64_t coli__clock_ns(void);

/* Exactness needs round-to-nearest and denormals kept, whatever the host program has set.
 * enter() sets that for the calling thread and returns what was there; leave() puts it back. */
typedef struct coli__fp {
    uint64_t saved;
} coli__fp;
coli__fp coli__fp_enter(void);
void coli__fp_leave(coli__fp fp);

#endif
