/* threads.c - a fork-join pool whose workers stay awake between the phases of a token.
 *
 * The idea.  A token is a few hundred short phases, microseconds apart.  Sleeping between them
 * would cost more than the work, so a worker that has run dry spins for a while before it sleeps,
 * and the caller spins for the last items of others.
 *
 * One run.  The caller publishes {fn, ctx, n_item} and raises `epoch` (release); a worker that sees
 * a new epoch (acquire) takes chunks of items until there are none, then reports in `n_idle`.  The
 * caller takes items too and returns when every worker has reported: so no worker still reads a run
 * when the next one is published.
 *
 * Chunks.  Neighbouring items mostly read neighbouring memory, so a worker takes several in a row.
 * Half of what is left is shared out in equal chunks, one per worker, then half of the rest, down to
 * single items, so that all are done at about the same time.  Two workers, 24 items:
 *
 *     chunk    0      1      2    3    4   5   6  7  8  9
 *     items    0-5    6-11   12-14 15-17 18 19 20 21 22 23
 *
 *   worker:  WAITING --epoch changed--> TAKING --no item left--> reported --> WAITING
 *            WAITING --SPIN rounds without news--> ASLEEP on `wake` --broadcast--> WAITING
 *
 * A sleeper is counted under `mu` before it checks the epoch a last time, and the caller looks at
 * the count after it raised the epoch (both sequentially consistent): one of the two sees the
 * other.
 *
 * Locks: `mu` alone.  Never held while fn runs. */
#include "threads.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "alloc.h"

/* Rounds of waiting before sleep; about 50 microseconds here.  Some yields among them let the
 * others run where threads outnumber processors. */
enum { SPIN_ROUNDS = 4000, YIELD_EVERY = 64 };

/* A worker's phase and what it has spent in each; its own cache lines, because it writes them. */
typedef struct clock_slot {
    _Alignas(64) uint64_t since_ns;
    uint32_t phase, before; // before: the last one that was not waiting
    uint64_t ns[COLI_MAX_PHASE];
    uint64_t alone_ns[COLI_MAX_PHASE];  // of these, the caller's between runs
    uint64_t waited_ns[COLI_MAX_PHASE]; // ns[COLI_PHASE_WAITING] by `before`, to the end of the run
} clock_slot;

struct coli__pool {
    /* immutable after create */
    uint32_t n_worker; // the caller is worker 0
    pthread_t *threads;
    uint32_t n_started;
    clock_slot *slots; // (n_worker) each written by its worker, by the caller between runs

    /* written by the caller before epoch is raised */
    coli__pool_range_fn fn;
    void *ctx;
    uint32_t n_item;
    uint64_t n_sync;
    bool is_running;                   // the caller's
    uint64_t run_begin_ns, run_end_ns; // of the last run, or the present one; while the clock is on

    /* atomic */
    _Alignas(64) atomic_uint epoch;
    _Alignas(64) atomic_uint next_chunk;
    _Alignas(64) atomic_uint n_idle;
    atomic_uint n_asleep;
    atomic_bool stop;
    atomic_bool clock_is_on; // changed between runs only

    /* sleepers only */
    pthread_mutex_t mu;
    pthread_cond_t wake;
};

typedef struct start_args {
    coli__pool *pool;
    uint32_t worker;
    bool is_bound;
    coli__bits cpus; // to these
} start_args;

void coli__relax(uint32_t round)
{
    if (round % YIELD_EVERY == YIELD_EVERY - 1) {
        sched_yield();
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

bool coli__pool_take(const coli__pool *pool, atomic_uint *next_chunk, uint32_t n_item,
                     uint32_t *first, uint32_t *end)
{
    const uint32_t n = pool->n_worker;
    uint32_t chunk = atomic_fetch_add_explicit(next_chunk, 1, memory_order_relaxed);
    uint32_t left = n_item, size;
    for (; (size = left / (2 * n)) > 1 && chunk >= n; chunk -= n) left -= n * size;
    if (size == 0) size = 1;
    const uint64_t at = (uint64_t)n_item - left + (uint64_t)chunk * size;
    if (at >= n_item) return false;
    *first = (uint32_t)at;
    *end = (uint32_t)at + size;
    return true;
}

static void take_items(coli__pool *pool, uint32_t worker)
{
    for (uint32_t first, end; coli__pool_take(pool, &pool->next_chunk, pool->n_item, &first, &end);)
        pool->fn(pool->ctx, first, end, worker);
    coli__pool_phase(pool, worker, COLI_PHASE_WAITING);
}

static void wait_for_epoch(coli__pool *pool, uint32_t seen)
{
    for (uint32_t round = 0; round < SPIN_ROUNDS; round++) {
        if (atomic_load_explicit(&pool->epoch, memory_order_acquire) != seen) return;
        coli__relax(round);
    }
    pthread_mutex_lock(&pool->mu);
    atomic_fetch_add(&pool->n_asleep, 1);
    while (atomic_load(&pool->epoch) == seen) pthread_cond_wait(&pool->wake, &pool->mu);
    atomic_fetch_sub(&pool->n_asleep, 1);
    pthread_mutex_unlock(&pool->mu);
}

static void *worker_main(void *arg)
{
    const start_args args = *(start_args *)arg;
    coli__free(arg);
    coli__pool *pool = args.pool;
    coli__fp_enter();
    if (args.is_bound) coli__numa_bind(&args.cpus);
#ifdef __linux__
    pthread_setname_np(pthread_self(), "coli-worker");
#endif
    for (uint32_t seen = 0;; seen++) {
        wait_for_epoch(pool, seen);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return NULL;
        take_items(pool, args.worker);
        atomic_fetch_add_explicit(&pool->n_idle, 1, memory_order_release);
    }
}

static void raise_epoch(coli__pool *pool)
{
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->n_asleep) == 0) return;
    pthread_mutex_lock(&pool->mu);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mu);
}

int coli__thread_start(pthread_t *thread, void *(*start)(void *), void *arg)
{
#ifdef _WIN32
    return pthread_create(thread, NULL, start, arg);
#else
    sigset_t all, before;
    sigfillset(&all);
    const int own[] = {SIGBUS, SIGSEGV, SIGFPE,
                       SIGILL}; // what a thread does to itself: see guard_posix.c
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, start, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
#endif
}

static coli_status start_worker(coli__pool *pool, uint32_t worker, const coli__numa *numa)
{
    start_args *args = coli__calloc(1, sizeof *args);
    if (!args) return COLI_E_NOMEM;
    args->pool = pool;
    args->worker = worker;
    args->is_bound = numa->n_node > 0;
    if (args->is_bound) args->cpus = numa->cpus[coli__numa_node_of(numa, worker, pool->n_worker)];
    const int error = coli__thread_start(&pool->threads[pool->n_started], worker_main, args);
    if (error) {
        coli__free(args);
        return coli__fail(COLI_E_NOMEM, "thread %u of %u: %s", worker, pool->n_worker,
                          strerror(error));
    }
    pool->n_started++;
    return COLI_OK;
}

coli_status coli__pool_create(uint32_t n_thread, coli__pool **out)
{
    static const coli__numa nowhere = {0};
    return coli__pool_create_on(n_thread, &nowhere, out);
}

coli_status coli__pool_create_on(uint32_t n_thread, const coli__numa *numa, coli__pool **out)
{
    enum { MAX_THREAD = 1024 };
    *out = NULL;
    if (n_thread == 0)
        n_thread = coli__n_processor() < MAX_THREAD ? coli__n_processor() : MAX_THREAD;
    if (n_thread > MAX_THREAD)
        return coli__fail(COLI_E_INVALID, "%u threads; at most %d make sense", n_thread,
                          MAX_THREAD);
    coli__pool *pool = coli__alloc64(sizeof *pool);
    if (!pool) return COLI_E_NOMEM;
    pool->n_worker = n_thread;
    pthread_mutex_init(&pool->mu, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->threads = coli__calloc(n_thread, sizeof *pool->threads);
    pool->slots = coli__alloc64(n_thread * sizeof *pool->slots);
    coli_status status = pool->threads && pool->slots ? COLI_OK : COLI_E_NOMEM;
    for (uint32_t w = 1; w < n_thread && status == COLI_OK; w++)
        status = start_worker(pool, w, numa);
    if (status != COLI_OK) {
        coli__pool_destroy(pool);
        return status;
    }
    *out = pool;
    return COLI_OK;
}

void coli__pool_destroy(coli__pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, true);
    raise_epoch(pool);
    for (uint32_t i = 0; i < pool->n_started; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mu);
    coli__free(pool->threads);
    coli__free_aligned(pool->slots);
    coli__free_aligned(pool);
}

uint32_t coli__pool_n_worker(const coli__pool *pool)
{
    return pool->n_worker;
}
uint64_t coli__pool_n_sync(const coli__pool *pool)
{
    return pool->n_sync;
}

/* -- the clock --------------------------------------------------------------------------------- */

/* A worker reads its slot only between the epoch that follows start and its report in n_idle, and
 * the caller touches the slots only when all have reported: the pool's own order is enough. */
static void reset_slots(coli__pool *pool, uint32_t phase)
{
    const uint64_t now = coli__clock_ns();
    for (uint32_t w = 0; w < pool->n_worker; w++)
        pool->slots[w] =
            (clock_slot){.since_ns = now, .phase = w ? COLI_PHASE_WAITING : phase, .before = phase};
}

void coli__pool_clock_start(coli__pool *pool, uint32_t phase)
{
    reset_slots(pool, phase);
    atomic_store(&pool->clock_is_on, true);
}

/* Charge the time until now to the present phase, which `next` follows.  Waiting within runs is also charged
 * to what it was for: at a run's end to the phase before, at its begin, until there is an item, to the next. */
static void charge(const coli__pool *pool, clock_slot *s, uint32_t next, uint64_t now)
{
    const uint64_t since = s->since_ns, begin = pool->run_begin_ns, end = pool->run_end_ns;
    s->ns[s->phase] += now - since;
    if (s == pool->slots && !pool->is_running) s->alone_ns[s->phase] += now - since;
    s->since_ns = now;
    if (s->phase != COLI_PHASE_WAITING) return;
    if (pool->is_running && since > begin) {
        s->waited_ns[s->before] += now - since;
        return;
    }
    if (end > since) s->waited_ns[s->before] += end - since;
    if (pool->is_running && now > begin) // another processor's clock may be a moment behind
        s->waited_ns[next == COLI_PHASE_WAITING ? s->before : next] += now - begin;
}

/* The caller comes to a run, or is through with it. */
static void note_run(coli__pool *pool, bool begins)
{
    if (coli__pool_clock_is_on(pool)) {
        const uint64_t now = coli__clock_ns();
        charge(pool, pool->slots, pool->slots->phase, now);
        *(begins ? &pool->run_begin_ns : &pool->run_end_ns) = now;
    }
    pool->is_running = begins;
}

void coli__pool_clock_stop(coli__pool *pool, uint64_t ns[COLI_MAX_PHASE],
                           uint64_t wall_ns[COLI_MAX_PHASE])
{
    const uint64_t now = coli__clock_ns();
    memset(ns, 0, COLI_MAX_PHASE * sizeof *ns);
    memset(wall_ns, 0, COLI_MAX_PHASE * sizeof *wall_ns);
    if (!atomic_exchange(&pool->clock_is_on, false)) return;
    for (uint32_t w = 0; w < pool->n_worker; w++) {
        clock_slot *s = &pool->slots[w];
        charge(pool, s, s->phase, now);
        for (uint32_t p = 0; p < COLI_MAX_PHASE; p++) {
            ns[p] += s->ns[p];
            wall_ns[p] += s->ns[p] - s->alone_ns[p] + s->waited_ns[p];
        }
    }
    for (uint32_t p = 0; p < COLI_MAX_PHASE; p++)
        wall_ns[p] = wall_ns[p] / pool->n_worker + pool->slots[0].alone_ns[p];
    wall_ns[COLI_PHASE_WAITING] = 0;
}

bool coli__pool_clock_is_on(const coli__pool *pool)
{
    return atomic_load_explicit(&pool->clock_is_on, memory_order_relaxed);
}

void coli__pool_phase(coli__pool *pool, uint32_t worker, uint32_t phase)
{
    if (!coli__pool_clock_is_on(pool)) return;
    clock_slot *s = &pool->slots[worker];
    if (s->phase == phase && phase != COLI_PHASE_WAITING) return;
    charge(pool, s, phase, coli__clock_ns());
    if (s->phase != COLI_PHASE_WAITING)
        s->before = s->phase; // who came too late waits as the last time
    s->phase = phase;
}

/* -- running ----------------------------------------------------------------------------------- */

void coli__pool_run_ranges(coli__pool *pool, uint32_t n_item, coli__pool_range_fn fn, void *ctx)
{
    const uint32_t phase = pool->slots[0].phase;
    if (n_item > 1) pool->n_sync++;
    if (n_item <= 1 || pool->n_worker == 1) {
        const bool is_all = pool->n_worker == 1; // else the others' waiting is for the caller
        if (is_all) note_run(pool, true);
        if (n_item > 0) fn(ctx, 0, n_item, 0);
        if (is_all) note_run(pool, false);
        coli__pool_phase(pool, 0, phase);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    pool->n_item = n_item;
    atomic_store_explicit(&pool->next_chunk, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->n_idle, 0, memory_order_relaxed);
    note_run(pool, true);
    raise_epoch(pool);
    take_items(pool, 0);
    const uint32_t others = pool->n_worker - 1;
    for (uint32_t round = 0; atomic_load_explicit(&pool->n_idle, memory_order_acquire) != others;
         round++)
        coli__relax(round);
    note_run(pool, false);
    coli__pool_phase(pool, 0, phase);
}

typedef struct each_item {
    coli__pool_fn fn;
    void *ctx;
} each_item;

static void run_each(void *ctx, uint32_t first, uint32_t end, uint32_t worker)
{
    const each_item *each = ctx;
    for (uint32_t item = first; item < end; item++) each->fn(each->ctx, item, worker);
}

void coli__pool_run(coli__pool *pool, uint32_t n_item, coli__pool_fn fn, void *ctx)
{
    each_item each = {fn, ctx};
    coli__pool_run_ranges(pool, n_item, run_each, &each);
}
