/* host.c - what plugins may call, and what their statuses mean to coli.h; see plugin.h.
 *
 * Memory for plugins carries a header in front, so that free needs no size:
 *
 *     base            memory - sizeof(block)    memory, aligned as asked for
 *     | ... unused ... | block                 | n_bytes ... |
 *
 * Pinned memory is whole pages of its own: unlocking it can then not unlock a neighbour's. */
#include <stdio.h>
#include <string.h>

#include "../base/alloc.h"
#include "../base/memory.h"
#include "../base/threads.h"
#include "../model/tokenizer.h"
#include "plugin.h"

/* ---- services ------------------------------------------------------------------------------ */

void coli__plugin_text(char *text, size_t cap)
{
    text[cap - 1] = 0;
    const size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F) text[i] = ' ';
    for (size_t at = 0; at < n; at++) {
        at += coli__utf8_check(text + at, n - at);
        if (at < n) text[at] = '?';
    }
}

static void keep_line(char *out, size_t cap, const char *text)
{
    snprintf(out, cap, "%s", text ? text : "");
    coli__plugin_text(out, cap);
}

static void host_fail(void *ctx, const char *text)
{
    coli__host *host = ctx;
    pthread_mutex_lock(&host->mu);
    host->n_fail++;
    keep_line(host->message, sizeof host->message, text);
    pthread_mutex_unlock(&host->mu);
}

static void host_log(void *ctx, int32_t level, const char *text)
{
    coli__host *host = ctx;
    char line[1024];
    if (!host->log) return;
    keep_line(line, sizeof line, text);
    host->log(host->log_user, level, line);
}

static uint64_t host_clock_ns(void *ctx)
{
    (void)ctx;
    return coli__clock_ns();
}

typedef struct block {
    void *base;
    uint64_t n_base_bytes;
    uint32_t flags;
} block;

static void *take(uint64_t n_bytes, uint32_t flags)
{
    void *base = NULL;
    if (!(flags & COLI_BK_ALLOC_PINNED))
        return n_bytes <= SIZE_MAX / 2 ? coli__alloc64_raw((size_t)n_bytes) : NULL;
    if (coli__pages_take(n_bytes, &base) != COLI_OK) return NULL;
    if (coli__pages_lock(base, n_bytes)) return base;
    coli__pages_give(base, n_bytes);
    return NULL;
}

static void give(const block *b)
{
    if (b->flags & COLI_BK_ALLOC_PINNED)
        coli__pages_give(b->base, b->n_base_bytes);
    else
        coli__free_aligned(b->base);
}

static void count_block(coli__host *host, int64_t change)
{
    pthread_mutex_lock(&host->mu);
    host->n_block += (uint64_t)change;
    pthread_mutex_unlock(&host->mu);
}

static void *host_alloc(void *ctx, uint64_t n_bytes, uint64_t align, uint32_t flags)
{
    const bool power_of_two = align && (align & (align - 1)) == 0;
    block b = {.flags = flags};
    if (!power_of_two || align < 8) return NULL;
    if (align < _Alignof(block)) align = _Alignof(block);
    if (!coli__add(n_bytes, sizeof b, &b.n_base_bytes) ||
        !coli__add(b.n_base_bytes, align, &b.n_base_bytes))
        return NULL;
    b.base = take(b.n_base_bytes, flags);
    if (!b.base) return NULL;
    const uintptr_t first = (uintptr_t)b.base + sizeof b;
    void *memory = (char *)b.base + sizeof b + (-first & (align - 1));
    memcpy((char *)memory - sizeof b, &b, sizeof b);
    count_block(ctx, 1);
    return memory;
}

static void host_free(void *ctx, void *memory)
{
    block b;
    if (!memory) return;
    memcpy(&b, (char *)memory - sizeof b, sizeof b);
    give(&b);
    count_block(ctx, -1);
}

coli_status coli__host_init(coli__host *host, const char *options, uint64_t wait_limit_ns)
{
    *host = (coli__host){.table = {.struct_size = sizeof host->table,
                                   .abi_minor = COLI_BK_ABI_MINOR,
                                   .ctx = host,
                                   .fail = host_fail,
                                   .log = host_log,
                                   .clock_ns = host_clock_ns,
                                   .alloc = host_alloc,
                                   .free = host_free,
                                   .wait_limit_ns = wait_limit_ns,
                                   .options = options ? options : ""}};
    if (pthread_mutex_init(&host->mu, NULL) == 0) return COLI_OK;
    *host = (coli__host){0};
    return coli__fail(COLI_E_NOMEM, "out of memory: a mutex");
}

void coli__host_finish(coli__host *host)
{
    if (!host || !host->table.ctx) return;
    pthread_mutex_destroy(&host->mu);
    *host = (coli__host){0};
}

/* ---- statuses ------------------------------------------------------------------------------ */

static coli_status meaning(coli_bk_status status)
{
    switch (status) {
    case COLI_BK_OK:
        return COLI_OK;
    case COLI_BK_INVALID:
        return COLI_E_INVALID;
    case COLI_BK_NOMEM:
        return COLI_E_NOMEM;
    case COLI_BK_UNSUPPORTED:
        return COLI_E_UNSUPPORTED;
    default:
        return COLI_E_IO;
    }
}

static const char *status_text(coli_bk_status status)
{
    switch (status) {
#define COLI_BK_STATUS_TEXT(name, value, text)                                                     \
    case COLI_BK_##name:                                                                           \
        return text;
        COLI_BK_STATUS_LIST(COLI_BK_STATUS_TEXT)
#undef COLI_BK_STATUS_TEXT
    default:
        return NULL;
    }
}

coli_status coli__backend_fail(const coli__plugin *plugin, coli__host *host, const char *entry,
                               coli_bk_status status)
{
    char said[sizeof host->message], words[64];
    if (status == COLI_BK_OK) return COLI_OK;
    pthread_mutex_lock(&host->mu);
    memcpy(said, host->message, sizeof said);
    host->message[0] = 0;
    pthread_mutex_unlock(&host->mu);
    const char *text = status_text(status);
    if (!text) snprintf(words, sizeof words, "status %d, which nobody knows", (int)status);
    return coli__fail(meaning(status), "backend %s: %s: %s: %s", plugin->info.name, entry,
                      text ? text : words, said[0] ? said : "it does not say why");
}
