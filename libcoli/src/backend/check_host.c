/* check_host.c - the host that a checked plugin sees, and the protocol that every call keeps.
 *
 * The host counts its services: how often `fail` was called, what was allocated and not freed.  Memory
 * it hands out is filled with 0xA5 and has a frame around it, so that reading what was never written,
 * writing beyond the end, and freeing what is not the host's all show.
 *
 * Around each call the name of the entry is written where the parent process can read it: when the
 * child dies or goes silent, that is the call to blame. */
#include <stdio.h>
#include <string.h>

#include "../base/alloc.h"
#include "../base/threads.h"
#include "check.h"

/* Which of the case's threads this is: its place in coli__ck_shared.entry. */
static _Thread_local uint32_t thread_index;

/* ---- services ---------------------------------------------------------------------------------- */

static void service_fail(void *ctx, const char *text)
{
    coli__ck_host *h = ctx;
    pthread_mutex_lock(&h->mu);
    h->n_fail++;
    snprintf(h->message, sizeof h->message, "%s", text ? text : "");
    pthread_mutex_unlock(&h->mu);
    if (!text || !*text) coli__ck_fault(h->ck, "host->fail was called without a text");
    if (strchr(text, '\n'))
        coli__ck_fault(h->ck, "host->fail was called with more than one line: \"%s\"", text);
}

static void service_log(void *ctx, int32_t level, const char *text)
{
    coli__ck_host *h = ctx;
    if (level < COLI_BK_LOG_DEBUG || level > COLI_BK_LOG_WARNING || !text)
        coli__ck_fault(h->ck, "host->log was called with level %d and %s", (int)level,
                       text ? text : "no text");
}

static uint64_t service_clock(void *ctx)
{
    (void)ctx;
    return coli__clock_ns();
}

/* In front of each allocation, and a copy of `magic` behind it. */
typedef struct frame {
    uint64_t magic, n_bytes;
    void *base;
} frame;
enum { END_BYTES = 16 };
static const uint64_t MAGIC = 0xC011B10C5EEDFACEu;

static void *service_alloc(void *ctx, uint64_t n_bytes, uint64_t align, uint32_t flags)
{
    coli__ck_host *h = ctx;
    if (align < 8 || (align & (align - 1)) != 0 || align > 1u << 20)
        coli__ck_fault(h->ck, "host->alloc was asked for an alignment of %llu",
                       (unsigned long long)align);
    if (flags & ~(uint32_t)COLI_BK_ALLOC_PINNED)
        coli__ck_fault(h->ck, "host->alloc was called with unknown flags 0x%x", flags);
    if (++h->n_alloc == h->fail_alloc_at || n_bytes > (uint64_t)1 << 40) return NULL;
    uint8_t *base = coli__calloc(1, (size_t)(n_bytes + align + sizeof(frame) + END_BYTES));
    if (!base) return NULL;
    uint8_t *p = base + sizeof(frame);
    p += (align - (uintptr_t)p % align) % align;
    const frame f = {MAGIC, n_bytes, base};
    memcpy(p - sizeof f, &f, sizeof f);
    memset(p, 0xA5, (size_t)n_bytes);
    memcpy(p + n_bytes, &MAGIC, sizeof MAGIC);
    h->n_live++;
    return p;
}

static void service_free(void *ctx, void *memory)
{
    coli__ck_host *h = ctx;
    if (!memory) return;
    frame f;
    memcpy(&f, (uint8_t *)memory - sizeof f, sizeof f);
    if (f.magic != MAGIC)
        coli__ck_fault(h->ck,
                       "host->free was given memory that host->alloc did not give, or twice");
    if (memcmp((uint8_t *)memory + f.n_bytes, &MAGIC, sizeof MAGIC) != 0)
        coli__ck_fault(h->ck, "memory of host->alloc (%llu bytes) was written beyond its end",
                       (unsigned long long)f.n_bytes);
    f.magic = 0;
    memcpy((uint8_t *)memory - sizeof f, &f, sizeof f);
    h->n_live--;
    coli__free(f.base);
}

void coli__ck_host_init(coli__ck_host *host, coli__ck *ck, const char *options,
                        uint64_t wait_limit_ns)
{
    memset(host, 0, sizeof *host);
    pthread_mutex_init(&host->mu, NULL);
    host->ck = ck;
    host->table = (coli_bk_host){.struct_size = sizeof(coli_bk_host),
                                 .abi_minor = COLI_BK_ABI_MINOR,
                                 .ctx = host,
                                 .fail = service_fail,
                                 .log = service_log,
                                 .clock_ns = service_clock,
                                 .alloc = service_alloc,
                                 .free = service_free,
                                 .wait_limit_ns = wait_limit_ns,
                                 .options = options};
}

/* ---- calls ------------------------------------------------------------------------------------- */

void coli__ck_begin(coli__ck *ck, const char *entry)
{
    snprintf(ck->shared->entry[thread_index], sizeof ck->shared->entry[0], "%s", entry);
    if (strcmp(entry, "open") == 0) ck->shared->n_open++;
    if (!ck->is_parallel) ck->host.n_fail = 0;
}

void coli__ck_end(coli__ck *ck)
{
    ck->shared->entry[thread_index][0] = 0;
}

const char *coli__ck_status_name(coli_bk_status status)
{
    switch (status) {
#define NAME(name, value, text)                                                                    \
    case value:                                                                                    \
        return #name;
        COLI_BK_STATUS_LIST(NAME)
#undef NAME
    default:
        return "no status of the list";
    }
}

coli_bk_status coli__ck_status(coli__ck *ck, const char *entry, coli_bk_status status)
{
    coli__ck_end(ck);
    if (status < COLI_BK_OK || status > COLI_BK_BUSY)
        coli__ck_fault(ck, "%s returned %d, which is no status", entry, (int)status);
    if (ck->is_parallel) return status;
    const bool is_failure =
        status != COLI_BK_OK && status != COLI_BK_EMPTY && status != COLI_BK_BUSY;
    const uint32_t n = ck->host.n_fail;
    if (is_failure && n == 0)
        coli__ck_fault(ck, "%s returned %s without a call of host->fail", entry,
                       coli__ck_status_name(status));
    if (is_failure && n > 1)
        coli__ck_fault(ck, "%s called host->fail %u times for one failure", entry, n);
    // device_count may say why there is none
    if (!is_failure && n > 0 && strcmp(entry, "device_count") != 0)
        coli__ck_fault(ck, "%s called host->fail (\"%s\") and returned %s", entry, ck->host.message,
                       coli__ck_status_name(status));
    return status;
}

void coli__ck_want(coli__ck *ck, const char *entry, coli_bk_status status, coli_bk_status wanted)
{
    if (status == wanted) return;
    if (status == COLI_BK_OK || status == COLI_BK_EMPTY || status == COLI_BK_BUSY)
        coli__ck_fault(ck, "%s returned %s, expected %s", entry, coli__ck_status_name(status),
                       coli__ck_status_name(wanted));
    coli__ck_fault(ck, "%s returned %s, expected %s: \"%s\"", entry, coli__ck_status_name(status),
                   coli__ck_status_name(wanted), ck->host.message);
}

void coli__ck_want_refusal(coli__ck *ck, const char *entry, coli_bk_status status,
                           const char *of_what)
{
    if (status != COLI_BK_INVALID && status != COLI_BK_UNSUPPORTED)
        coli__ck_fault(ck, "%s of %s returned %s, expected INVALID or UNSUPPORTED", entry, of_what,
                       coli__ck_status_name(status));
}

/* ---- life of a device -------------------------------------------------------------------------- */

void coli__ck_open(coli__ck *ck, coli_bk_device **out)
{
    *out = NULL;
    CK_OK(ck, open, &ck->host.table, ck->device, out);
    COLI__CK_EXPECT(ck, *out, "open returned OK and no device");
}

void coli__ck_close(coli__ck *ck, coli_bk_device *dev)
{
    CK_VOID(ck, close, dev);
}

coli_bk_mem_info coli__ck_memory(coli__ck *ck)
{
    coli_bk_mem_info info = {.struct_size = sizeof info};
    CK_OK(ck, mem_info, ck->dev, &info);
    COLI__CK_EXPECT(ck, info.free_bytes <= info.total_bytes,
                    "mem_info says %llu bytes of %llu are free",
                    (unsigned long long)info.free_bytes, (unsigned long long)info.total_bytes);
    return info;
}

/* ---- threads ----------------------------------------------------------------------------------- */

typedef struct start {
    coli__ck *ck;
    void (*fn)(coli__ck *ck, void *ctx);
    void *ctx;
    uint32_t index;
} start;

static void *run_thread(void *arg)
{
    const start *s = arg;
    thread_index = s->index;
    s->fn(s->ck, s->ctx);
    return NULL;
}

void coli__ck_threads(coli__ck *ck, uint32_t n, void (*const *fns)(coli__ck *ck, void *ctx),
                      void *ctx)
{
    pthread_t threads[COLI__CK_N_THREAD];
    start starts[COLI__CK_N_THREAD];
    for (uint32_t i = 0; i < n; i++) {
        starts[i] = (start){ck, fns[i], ctx, i + 1};
        if (pthread_create(&threads[i], NULL, run_thread, &starts[i]) != 0)
            coli__ck_cannot(ck, COLI_E_NOMEM, "cannot start a thread");
    }
    for (uint32_t i = 0; i < n; i++) pthread_join(threads[i], NULL);
}
