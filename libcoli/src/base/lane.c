/* lane.c - see lane.h.
 *
 *   IDLE --start--> BUSY --job returns--> IDLE
 *   IDLE --destroy--> thread joined          BUSY --destroy--> left behind
 *
 * Both sides look at `busy` for some microseconds before they sleep: jobs are often that short.
 * Locks: `mu` alone, never held while a job runs. */
#include "lane.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "alloc.h"
#include "threads.h"

enum { SPIN_ROUNDS = 200, SLICE_MS = 50 };

struct coli__lane {
    pthread_t thread;
    char name[16];
    pthread_mutex_t mu;
    pthread_cond_t changed;
    atomic_bool busy; // changed under mu
    bool stop;        // guarded by mu, as the two below
    void (*job)(void *ctx);
    void *ctx;
};

static void spin_while(coli__lane *lane, bool busy)
{
    for (uint32_t i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&lane->busy, memory_order_acquire) != busy) return;
        sched_yield();
    }
}

static void *lane_main(void *arg)
{
    coli__lane *lane = arg;
    coli__fp_enter();
#ifdef __linux__
    pthread_setname_np(pthread_self(), lane->name);
#endif
    for (;;) {
        spin_while(lane, false);
        pthread_mutex_lock(&lane->mu);
        while (!atomic_load(&lane->busy) && !lane->stop)
            pthread_cond_wait(&lane->changed, &lane->mu);
        const bool stop = !atomic_load(&lane->busy);
        pthread_mutex_unlock(&lane->mu);
        if (stop) return NULL;
        lane->job(lane->ctx);
        pthread_mutex_lock(&lane->mu);
        atomic_store_explicit(&lane->busy, false, memory_order_release);
        pthread_cond_broadcast(&lane->changed);
        pthread_mutex_unlock(&lane->mu);
    }
}

coli_status coli__lane_create(const char *name, coli__lane **out)
{
    *out = NULL;
    coli__lane *lane = coli__calloc(1, sizeof *lane);
    if (!lane) return COLI_E_NOMEM;
    snprintf(lane->name, sizeof lane->name, "%s", name);
    pthread_mutex_init(&lane->mu, NULL);
    pthread_cond_init(&lane->changed, NULL);
    const int error = coli__thread_start(&lane->thread, lane_main, lane);
    if (error) {
        pthread_cond_destroy(&lane->changed);
        pthread_mutex_destroy(&lane->mu);
        coli__free(lane);
        return coli__fail(COLI_E_NOMEM, "thread %s: %s", name, strerror(error));
    }
    *out = lane;
    return COLI_OK;
}

bool coli__lane_destroy(coli__lane *lane)
{
    if (!lane) return true;
    pthread_mutex_lock(&lane->mu);
    const bool hangs = atomic_load(&lane->busy);
    lane->stop = true; // also for a job that comes back after all
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->mu);
    if (hangs) {
        pthread_detach(lane->thread);
        return false;
    }
    pthread_join(lane->thread, NULL);
    pthread_cond_destroy(&lane->changed);
    pthread_mutex_destroy(&lane->mu);
    coli__free(lane);
    return true;
}

void coli__lane_start(coli__lane *lane, void (*job)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&lane->mu);
    assert(!atomic_load(&lane->busy));
    lane->job = job;
    lane->ctx = ctx;
    atomic_store_explicit(&lane->busy, true, memory_order_release);
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->mu);
}

/* The condition's clock is the wall's, which may jump: wait in slices and ask the monotonic one. */
static void wait_slice(coli__lane *lane)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += SLICE_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&lane->changed, &lane->mu, &until);
}

bool coli__lane_wait(coli__lane *lane, uint64_t limit_ns)
{
    spin_while(lane, true);
    if (!atomic_load_explicit(&lane->busy, memory_order_acquire)) return true;
    const uint64_t start = coli__clock_ns();
    pthread_mutex_lock(&lane->mu);
    while (atomic_load(&lane->busy) && coli__clock_ns() - start < limit_ns) wait_slice(lane);
    const bool idle = !atomic_load(&lane->busy);
    pthread_mutex_unlock(&lane->mu);
    return idle;
}
