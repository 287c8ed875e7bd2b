/* threads.h - a pool of persistent workers and the facts about processors it needs.
 *
 * coli__pool_run is one synchronisation: it hands out the items 0..n_item-1 to the workers and the
 * caller, and returns when all are done.  Which worker takes which item is open, so an item may only
 * write what no other item of the same run touches: results then do not depend on the thread count. */
#ifndef COLI_BASE_THREADS_H
#define COLI_BASE_THREADS_H

#include <pthread.h>
#include <stdatomic.h>

#include "error.h"
#include "numa.h"

typedef struct coli__pool coli__pool;
typedef void (*coli__pool_fn)(void *ctx, uint32_t item, uint32_t worker); // worker < n_worker

/* n_thread counts the caller of coli__pool_run; 0 means one per usable processor, at most 1024. */
coli_status coli__pool_create(uint32_t n_thread, coli__pool **out);
/* With its workers dealt out to the nodes; the caller of coli__pool_run is wherever it is. */
coli_status coli__pool_create_on(uint32_t n_thread, const coli__numa *numa, coli__pool **out);
void coli__pool_destroy(coli__pool *pool); // joins the workers; NULL is fine
uint32_t coli__pool_n_worker(const coli__pool *pool);

/* Run fn for every item.  One caller at a time.  No allocation.  n_item <= 1 runs inline. */
void coli__pool_run(coli__pool *pool, uint32_t n_item, coli__pool_fn fn, void *ctx);

/* The same for neighbouring items at once: [first, end). */
typedef void (*coli__pool_range_fn)(void *ctx, uint32_t first, uint32_t end, uint32_t worker);
void coli__pool_run_ranges(coli__pool *pool, uint32_t n_item, coli__pool_range_fn fn, void *ctx);

/* For work whose items are known only while a run is going on: an item of the run is then a worker, which
 * takes neighbouring items here, as run_ranges hands them out, until there are none.  *next_chunk is 0
 * before the first. */
bool coli__pool_take(const coli__pool *pool, atomic_uint *next_chunk, uint32_t n_item,
                     uint32_t *first, uint32_t *end);

/* One round of waiting for another thread; round counts up from 0. */
void coli__relax(uint32_t round);

/* Synchronisations so far: runs of more than one item.  The tests count them per layer. */
uint64_t coli__pool_n_sync(const coli__pool *pool);

/* Where the workers' time goes.  Between start and stop, each worker is in one phase: `phase` moves
 * it to another and charges the time since the last move to the one it leaves.  A worker without an
 * item is in COLI_PHASE_WAITING by itself; after a run the caller is in the phase that it was in
 * before.  When the clock is off, `phase` is a look at a flag.  Nothing is allocated, and staying in
 * a phase costs nothing: only a move reads the time. */
enum { COLI_PHASE_WAITING, COLI_MAX_PHASE = 14 };
void coli__pool_clock_start(coli__pool *pool, uint32_t phase); // of the caller, which is worker 0
/* The times since start; zeros when it was not started.
 *   ns       of all workers together
 *   wall_ns  how long each phase took on the wall: of a run, the workers' mean, their waiting for its begin
 *            charged to the phase after, that in an item and for its end to the phase before; between runs,
 *            the caller's time */
void coli__pool_clock_stop(coli__pool *pool, uint64_t ns[COLI_MAX_PHASE],
                           uint64_t wall_ns[COLI_MAX_PHASE]);
bool coli__pool_clock_is_on(const coli__pool *pool);                      // from any thread
void coli__pool_phase(coli__pool *pool, uint32_t worker, uint32_t phase); // the worker's own thread

/* pthread_create for a thread that takes no signals: those of the host program are for its own. */
int coli__thread_start(pthread_t *thread, void *(*start)(void *), void *arg);

/* Processors this process may run on (affinity and cgroup quota included), at least 1. */
uint32_t coli__n_processor(void);

/* Ask the system for the right to use AMX's tiles, for the whole process; false: it refuses or knows
 * none.  Once is enough, more do no harm.  Signal stacks that are too small for tiles make it refuse. */
bool coli__tiles_permit(void);

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
