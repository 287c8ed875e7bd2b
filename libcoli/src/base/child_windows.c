/* child_windows.c - child.h by a thread: there is no fork.  A thread that hangs is left behind; should
 * it come back, it ends with the next thing that it says. */
#include "child.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "alloc.h"

typedef struct packet {
    struct packet *next;
    size_t n_bytes;
    char bytes[COLI__CHILD_MESSAGE];
} packet;

/* Counted: the thread that runs fn and the parent each hold it. */
struct coli__child {
    pthread_mutex_t mu; // guards all below
    pthread_cond_t changed;
    packet *first, **last;
    bool has_left, is_abandoned; // the thread; the parent, who waits no longer
    uint32_t n_holder;
    /* set by the thread before fn, then immutable */
    pthread_t thread;
    /* immutable after start */
    coli__child_fn fn;
    void *ctx;
    void *shared;
};

static void release(coli__child *c)
{
    pthread_mutex_lock(&c->mu);
    const bool is_last = --c->n_holder == 0;
    pthread_mutex_unlock(&c->mu);
    if (!is_last) return;
    while (c->first) {
        packet *p = c->first;
        c->first = p->next;
        coli__free(p);
    }
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->mu);
    coli__free(c->shared);
    coli__free(c);
}

void coli__child_leave(coli__child *self)
{
    pthread_mutex_lock(&self->mu);
    self->has_left = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->mu);
    if (pthread_equal(pthread_self(), self->thread)) release(self);
    pthread_exit(NULL); // after another thread of fn has left, fn goes on until it says something
    __builtin_unreachable(); // it is declared as if it returned
}

static void *run(void *arg)
{
    coli__child *c = arg;
    c->thread = pthread_self();
    c->fn(c, c->ctx);
    coli__child_leave(c);
}

coli_status coli__child_start(coli__child_fn fn, void *ctx, size_t shared_bytes, coli__child **out)
{
    *out = NULL;
    coli__child *c = coli__calloc(1, sizeof *c);
    if (!c) return COLI_E_NOMEM;
    c->shared = coli__calloc(shared_bytes, 1);
    if (!c->shared) {
        coli__free(c);
        return COLI_E_NOMEM;
    }
    pthread_mutex_init(&c->mu, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->last = &c->first;
    c->n_holder = 2;
    c->fn = fn;
    c->ctx = ctx;
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, c) != 0) {
        c->n_holder = 1;
        release(c);
        return coli__fail(COLI_E_NOMEM, "cannot start a thread");
    }
    pthread_detach(thread);
    *out = c;
    return COLI_OK;
}

void *coli__child_shared(const coli__child *child)
{
    return child->shared;
}

void coli__child_destroy(coli__child *child)
{
    if (!child) return;
    pthread_mutex_lock(&child->mu);
    child->is_abandoned = true;
    pthread_mutex_unlock(&child->mu);
    release(child);
}

coli__child_event coli__child_wait(coli__child *child, uint64_t limit_ns, void *message,
                                   size_t *n_bytes)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    const uint64_t ns = (uint64_t)until.tv_nsec + limit_ns % 1000000000;
    until.tv_sec += (time_t)(limit_ns / 1000000000 + ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    coli__child_event event = COLI__CHILD_SILENT;
    pthread_mutex_lock(&child->mu);
    while (!child->first && !child->has_left)
        if (pthread_cond_timedwait(&child->changed, &child->mu, &until) != 0) break;
    if (child->first) {
        packet *p = child->first;
        child->first = p->next;
        if (!child->first) child->last = &child->first;
        memcpy(message, p->bytes, p->n_bytes);
        *n_bytes = p->n_bytes;
        coli__free(p);
        event = COLI__CHILD_SAID;
    } else if (child->has_left) {
        event = COLI__CHILD_DONE;
    }
    pthread_mutex_unlock(&child->mu);
    return event;
}

bool coli__child_is_process(void)
{
    return false;
}

const char *coli__child_death(const coli__child *child)
{
    (void)child;
    return "";
}

void coli__child_say(coli__child *self, const void *message, size_t n_bytes)
{
    packet *p = coli__calloc(1, sizeof *p);
    if (!p) return; // the parent will find it silent
    memcpy(p->bytes, message, n_bytes);
    p->n_bytes = n_bytes;
    pthread_mutex_lock(&self->mu);
    *self->last = p;
    self->last = &p->next;
    pthread_cond_signal(&self->changed);
    const bool is_over = self->is_abandoned || self->has_left; // ctx may be gone, too
    pthread_mutex_unlock(&self->mu);
    if (is_over) coli__child_leave(self);
}
