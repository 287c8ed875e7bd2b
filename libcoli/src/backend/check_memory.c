/* check_memory.c - tensors: the room they take, what they hold, and what stays behind. */
#include <string.h>

#include "../base/memory.h"
#include "../base/threads.h"
#include "check.h"

enum { D = 128, F = 64 };

static coli_bk_source some_block(coli__ck *ck)
{
    return coli__ck_expert_block(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), D, F);
}

/* A group of five rows for one expert. */
static coli__ck_group *group_for(coli__ck *ck, coli__ck_tensor *const *t)
{
    const uint32_t n_row = 5;
    return coli__ck_make_group(ck, t, 1, &n_row, coli__ck_random_rows(ck, 4, &(*t)->now.matrix[0]));
}

/* ---- room --------------------------------------------------------------------------------------- */

void coli__ck_accounting(coli__ck *ck)
{
    enum { N_CYCLE = 1000, N_SLOT = 8 };
    const coli_bk_source block = some_block(ck);
    coli_bk_tensor *slots[N_SLOT] = {0};
    CK_OK(ck, tensor_upload, ck->dev, &block, &slots[0]); // whatever is made once is made now
    CK_VOID(ck, tensor_free, ck->dev, slots[0]);
    const coli_bk_mem_info before = coli__ck_memory(ck);
    for (uint32_t i = 0; i < N_SLOT; i++) CK_OK(ck, tensor_upload, ck->dev, &block, &slots[i]);
    const coli_bk_mem_info full = coli__ck_memory(ck);
    for (uint32_t i = 0; i < N_SLOT; i++) CK_VOID(ck, tensor_free, ck->dev, slots[i]);
    for (uint32_t i = 0; i < N_CYCLE; i++) {
        CK_OK(ck, tensor_upload, ck->dev, &block, &slots[0]);
        CK_VOID(ck, tensor_free, ck->dev, slots[0]);
    }
    const coli_bk_mem_info after = coli__ck_memory(ck);
    COLI__CK_EXPECT(ck, before.total_bytes == after.total_bytes,
                    "mem_info's total_bytes changed from %llu to %llu",
                    (unsigned long long)before.total_bytes, (unsigned long long)after.total_bytes);
    // other processes use the device, too: a leak is one tensor per cycle, or a good part of them
    const uint64_t leak = N_CYCLE / 4 * block.n_bytes;
    COLI__CK_EXPECT(ck, after.free_bytes + leak > before.free_bytes,
                    "%d uploads and frees of %llu bytes lowered free_bytes by %llu", N_CYCLE,
                    (unsigned long long)block.n_bytes,
                    (unsigned long long)(before.free_bytes - after.free_bytes));
    COLI__CK_EXPECT(ck,
                    full.free_bytes <= before.free_bytes || full.is_assumed ||
                        full.free_bytes - before.free_bytes < leak,
                    "%d uploads raised free_bytes from %llu to %llu", N_SLOT,
                    (unsigned long long)before.free_bytes, (unsigned long long)full.free_bytes);
}

void coli__ck_fill(coli__ck *ck)
{
    enum { N_MOST = 256, LIMIT_S = 10 };
    const uint64_t most_bytes = (uint64_t)512 << 20;
    coli__ck_tensor *first = coli__ck_upload(ck, some_block(ck));
    const coli__ck_group *g = group_for(ck, &first);
    // one large matrix of zeros, again and again
    const coli_bk_mem_info memory = coli__ck_memory(ck);
    uint64_t n_bytes = memory.free_bytes / 24;
    if (n_bytes > most_bytes / 16) n_bytes = most_bytes / 16;
    if (ck->info.max_tensor_bytes && n_bytes > ck->info.max_tensor_bytes)
        n_bytes = ck->info.max_tensor_bytes;
    const uint32_t format = coli__ck_format(ck, 0);
    const uint64_t panel_bytes = coli_bk_layout_of(format, 1024).panel_bytes;
    const uint32_t n_panel = n_bytes > panel_bytes ? (uint32_t)(n_bytes / panel_bytes) : 1;
    coli_bk_source s = {
        .struct_size = sizeof s,
        .n_matrix = 1,
        .n_bytes = n_panel * panel_bytes,
        .matrix = {{.format = format, .n_out = n_panel * COLI_BK_PANEL, .n_in = 1024}}};
    void *pages;
    if (coli__pages_take(s.n_bytes, &pages) != COLI_OK)
        coli__ck_cannot(ck, COLI_E_NOMEM, "%s", coli_error_message());
    s.data = pages;
    coli_bk_tensor *many[N_MOST];
    uint32_t n = 0;
    coli_bk_status status = COLI_BK_OK;
    const uint64_t end_ns = coli__clock_ns() + LIMIT_S * (uint64_t)1000000000;
    while (n < N_MOST && n * s.n_bytes < most_bytes && coli__clock_ns() < end_ns) {
        coli_bk_tensor *const untouched = (coli_bk_tensor *)&many[n];
        many[n] = untouched;
        status = CK_CALL(ck, tensor_upload, ck->dev, &s, &many[n]);
        if (status != COLI_BK_OK) {
            COLI__CK_EXPECT(ck, many[n] == untouched, "tensor_upload failed and wrote a tensor");
            break;
        }
        n++;
    }
    if (status == COLI_BK_OK)
        coli__ck_skip(ck, "%u MiB fit and no more was tried", (uint32_t)(n * s.n_bytes >> 20));
    else
        coli__ck_want(ck, "tensor_upload on a full device", status, COLI_BK_NOMEM);
    coli__ck_run(ck, g);
    if (status != COLI_BK_OK && n > 0) {
        CK_VOID(ck, tensor_free, ck->dev, many[--n]);
        CK_OK(ck, tensor_upload, ck->dev, &s, &many[n++]);
        coli__ck_run(ck, g);
    }
    for (uint32_t i = 0; i < n; i++) CK_VOID(ck, tensor_free, ck->dev, many[i]);
    coli__pages_give(pages, s.n_bytes);
    coli__ck_run(ck, g);
    coli__ck_free(ck, first);
}

void coli__ck_footprint(coli__ck *ck)
{
    if (!ck->api.alloc_footprint) {
        coli__ck_skip(ck, "the plugin has no alloc_footprint");
        return;
    }
    uint64_t before = 0;
    for (uint64_t n_bytes = 32; n_bytes < (uint64_t)1 << 36;
         n_bytes += n_bytes / 3 / 32 * 32 + 32) {
        uint64_t footprint;
        CK_VALUE(ck, alloc_footprint, &footprint, ck->dev, n_bytes);
        COLI__CK_EXPECT(ck, footprint >= n_bytes,
                        "alloc_footprint(%llu) is %llu: less than the bytes",
                        (unsigned long long)n_bytes, (unsigned long long)footprint);
        COLI__CK_EXPECT(ck, footprint >= before,
                        "alloc_footprint(%llu) is %llu, less than %llu for fewer bytes",
                        (unsigned long long)n_bytes, (unsigned long long)footprint,
                        (unsigned long long)before);
        before = footprint;
    }
}

/* ---- sources ------------------------------------------------------------------------------------- */

/* A copy of a block in pages that can be taken away. */
static coli_bk_source lend(coli__ck *ck, coli_bk_source s)
{
    void *pages;
    if (coli__pages_take(s.n_bytes, &pages) != COLI_OK)
        coli__ck_cannot(ck, COLI_E_NOMEM, "%s", coli_error_message());
    memcpy(pages, s.data, s.n_bytes);
    s.data = pages;
    return s;
}

static void take_away(coli_bk_source *s)
{
    coli__pages_give((void *)(uintptr_t)s->data, s->n_bytes);
}

void coli__ck_source_reused(coli__ck *ck)
{
    const coli_bk_source block = some_block(ck);
    coli_bk_source lent = lend(ck, block);
    coli__ck_tensor *t = coli__ck_upload(ck, lent);
    t->now = block;
    take_away(&lent);
    coli__ck_hint(ck, "the source was unmapped when tensor_upload had returned: host memory looks "
                      "used after return");
    coli__ck_run(ck, group_for(ck, &t));
    if (ck->api.tensor_overwrite) {
        const coli_bk_source next = some_block(ck);
        lent = lend(ck, next);
        CK_OK(ck, tensor_overwrite, ck->dev, t->handle, &lent);
        take_away(&lent);
        coli__ck_replaced(t, next);
        coli__ck_hint(ck, "the source was unmapped when tensor_overwrite had returned: host memory "
                          "looks used after return");
        coli__ck_run(ck, group_for(ck, &t));
    }
    coli__ck_free(ck, t);
}

void coli__ck_host_memory(coli__ck *ck)
{
    if (!ck->api.host_alloc || !ck->api.host_free) {
        coli__ck_skip(ck, "the plugin has no host_alloc and host_free");
        return;
    }
    coli_bk_source block = some_block(ck);
    void *memory;
    CK_VALUE(ck, host_alloc, &memory, ck->dev, block.n_bytes);
    if (!memory) {
        coli__ck_skip(ck, "host_alloc gave NULL, which is allowed");
        return;
    }
    COLI__CK_EXPECT(ck, (uintptr_t)memory % 64 == 0,
                    "host_alloc gave memory that is not 64-byte "
                    "aligned");
    memcpy(memory, block.data, block.n_bytes);
    block.data = memory;
    coli__ck_tensor *t = coli__ck_upload(ck, block);
    coli__ck_run(ck, group_for(ck, &t));
    coli__ck_free(ck, t);
    CK_VOID(ck, host_free, ck->dev, memory);
}

/* ---- overwrites ---------------------------------------------------------------------------------- */

/* The next content of a tensor: other weights, and other scale_exps, which are content, too. */
static coli_bk_source next_block(coli__ck *ck)
{
    coli_bk_source s = some_block(ck);
    s.matrix[coli__random(&ck->seed) % 3].scale_exp -= 1;
    return s;
}

void coli__ck_overwrite(coli__ck *ck)
{
    if (!ck->api.tensor_overwrite) {
        coli__ck_skip(ck, "the plugin has no tensor_overwrite");
        return;
    }
    coli__ck_tensor *t = coli__ck_upload(ck, some_block(ck)),
                    *other = coli__ck_upload(ck, some_block(ck));
    coli__ck_group *g = group_for(ck, &t), *neighbour = group_for(ck, &other);
    coli__ck_run(ck, g);
    for (uint32_t i = 0; i < 10; i++) {
        const coli_bk_source next = next_block(ck);
        CK_OK(ck, tensor_overwrite, ck->dev, t->handle, &next);
        coli__ck_replaced(t, next);
        coli__ck_expected(ck, g);
        coli__ck_run(ck, g);
        coli__ck_run(ck, neighbour);
    }
    const uint32_t format = coli__ck_format(ck, 0);
    const coli_bk_source wrong[] = {coli__ck_expert_block(ck, format, format, D, 2 * F),
                                    coli__ck_expert_block(ck, format, format, F, D),
                                    coli__ck_matrix_block(ck, format, F, D)};
    for (uint32_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        coli__ck_hint(ck, "overwrite with another shape");
        CK_REFUSED(ck, "another shape", tensor_overwrite, ck->dev, t->handle, &wrong[i]);
        coli__ck_run(ck, g); // the old content is whole
    }
    coli__ck_free(ck, t);
    coli__ck_free(ck, other);
}

/* Wait for a fence as the host does: with a limit, again while BUSY. */
static void wait_for(coli__ck *ck, coli_bk_fence fence)
{
    const uint64_t end_ns = coli__clock_ns() + ck->host.table.wait_limit_ns;
    coli_bk_status status;
    while ((status = CK_CALL(ck, fence_poll, ck->dev, fence, 50000000)) == COLI_BK_BUSY)
        COLI__CK_EXPECT(ck, coli__clock_ns() < end_ns, "a fence was not done within %llu s",
                        (unsigned long long)(ck->host.table.wait_limit_ns / 1000000000));
    coli__ck_want(ck, "fence_poll", status, COLI_BK_OK);
}

/* What another thread waits for. */
static void wait_in_thread(coli__ck *ck, void *ctx)
{
    wait_for(ck, *(const coli_bk_fence *)ctx);
}

void coli__ck_overwrite_async(coli__ck *ck)
{
    if (!ck->api.tensor_overwrite_async || !ck->api.fence_poll) {
        coli__ck_skip(ck, "the plugin has no tensor_overwrite_async and fence_poll");
        return;
    }
    void (*const waiter)(coli__ck *, void *) = wait_in_thread;
    coli__ck_tensor *t[2] = {coli__ck_upload(ck, some_block(ck)),
                             coli__ck_upload(ck, some_block(ck))};
    for (uint32_t i = 0; i < 10; i++) {
        coli_bk_source lent[2];
        coli_bk_fence fences[2] = {0, 0};
        for (uint32_t k = 0; k < 2; k++) {
            const coli_bk_source next = next_block(ck);
            lent[k] = lend(ck, next);
            CK_OK(ck, tensor_overwrite_async, ck->dev, t[k]->handle, &lent[k], &fences[k]);
            COLI__CK_EXPECT(ck, fences[k] != 0, "tensor_overwrite_async gave the fence 0");
            coli__ck_replaced(t[k], next);
        }
        const uint32_t first = i % 2; // either order
        coli__ck_threads(ck, 1, &waiter, &fences[first]);
        take_away(&lent[first]);
        wait_for(ck, fences[1 - first]);
        take_away(&lent[1 - first]);
        coli__ck_hint(ck, "the source was unmapped once its fence was done");
        for (uint32_t k = 0; k < 2; k++) {
            coli__ck_want(ck, "fence_poll of a fence that was done",
                          CK_CALL(ck, fence_poll, ck->dev, fences[k], 0), COLI_BK_OK);
            coli__ck_run(ck, group_for(ck, &t[k]));
        }
    }
    const uint32_t format = coli__ck_format(ck, 0);
    const coli_bk_source wrong = coli__ck_expert_block(ck, format, format, D, 2 * F);
    coli_bk_fence fence = 0;
    CK_REFUSED(ck, "another shape", tensor_overwrite_async, ck->dev, t[0]->handle, &wrong, &fence);
    coli__ck_run(ck, group_for(ck, &t[0]));
    for (uint32_t k = 0; k < 2; k++) coli__ck_free(ck, t[k]);
}

/* ---- leaks --------------------------------------------------------------------------------------- */

enum { N_ROUND = 500, LEAK_BYTES = 8, LEAK_RESIDENT_BYTES = 2048 }; // per call: more is a leak

/* What may grow. */
typedef struct held {
    uint64_t allocated, resident, device;
    int64_t n_host;
} held;

static held holding(coli__ck *ck)
{
    return (held){coli__memory_allocated(), coli__memory_resident(),
                  UINT64_MAX / 2 - coli__ck_memory(ck).free_bytes, ck->host.n_live};
}

static uint64_t grown(uint64_t before, uint64_t after)
{
    return after > before ? after - before : 0;
}

/* Repeat a call in four rounds.  The first is for what is made once; something that grows in each of
 * the others, by more than a few bytes a call, is a leak, and a cache that grows once is none. */
static void repeat(coli__ck *ck, const char *what, void (*call)(coli__ck *ck, void *ctx), void *ctx)
{
    held least = {UINT64_MAX, UINT64_MAX, UINT64_MAX, INT64_MAX};
    held before = {0};
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < N_ROUND; i++) call(ck, ctx);
        const held after = holding(ck);
        if (round > 0) {
            const held by = {grown(before.allocated, after.allocated),
                             grown(before.resident, after.resident),
                             grown(before.device, after.device), after.n_host - before.n_host};
            if (by.allocated < least.allocated) least.allocated = by.allocated;
            if (by.resident < least.resident) least.resident = by.resident;
            if (by.device < least.device) least.device = by.device;
            if (by.n_host < least.n_host) least.n_host = by.n_host;
        }
        before = after;
    }
    COLI__CK_EXPECT(ck, least.n_host < N_ROUND / 8,
                    "%s leaks: %lld blocks of host->alloc more after each %d", what,
                    (long long)least.n_host, N_ROUND);
    COLI__CK_EXPECT(ck, least.allocated < N_ROUND * LEAK_BYTES,
                    "%s leaks: %llu bytes of memory more after each %d", what,
                    (unsigned long long)least.allocated, N_ROUND);
    COLI__CK_EXPECT(ck, least.resident < N_ROUND * LEAK_RESIDENT_BYTES,
                    "%s leaks: the process grows by %llu bytes with each %d", what,
                    (unsigned long long)least.resident, N_ROUND);
    COLI__CK_EXPECT(ck, least.device < N_ROUND * LEAK_BYTES,
                    "%s leaks: mem_info's free_bytes falls by %llu with each %d", what,
                    (unsigned long long)least.device, N_ROUND);
}

static void one_tensor(coli__ck *ck, void *ctx)
{
    coli_bk_tensor *tensor;
    CK_OK(ck, tensor_upload, ck->dev, ctx, &tensor);
    CK_VOID(ck, tensor_free, ck->dev, tensor);
}

static void one_group(coli__ck *ck, void *ctx)
{
    coli__ck_run(ck, ctx);
}

typedef struct overwriting {
    coli__ck_tensor *t;
    coli_bk_source blocks[2];
    uint32_t i;
} overwriting;

static void one_overwrite(coli__ck *ck, void *ctx)
{
    overwriting *o = ctx;
    CK_OK(ck, tensor_overwrite, ck->dev, o->t->handle, &o->blocks[o->i++ % 2]);
}

static void one_async(coli__ck *ck, void *ctx)
{
    overwriting *o = ctx;
    coli_bk_fence fence = 0;
    CK_OK(ck, tensor_overwrite_async, ck->dev, o->t->handle, &o->blocks[o->i++ % 2], &fence);
    wait_for(ck, fence);
}

void coli__ck_leaks(coli__ck *ck)
{
    coli__ck_tensor *t = coli__ck_upload(ck, some_block(ck));
    coli_bk_source block = some_block(ck);
    repeat(ck, "an upload with its free", one_tensor, &block);
    repeat(ck, "a group", one_group, group_for(ck, &t));
    overwriting o = {.t = t, .blocks = {some_block(ck), some_block(ck)}};
    if (ck->api.tensor_overwrite) repeat(ck, "an overwrite", one_overwrite, &o);
    if (ck->api.tensor_overwrite_async && ck->api.fence_poll)
        repeat(ck, "an overwrite in the background", one_async, &o);
    coli__ck_free(ck, t);
    if (coli__memory_allocated() == 0) // what was looked at is fine
        coli__ck_skip(ck, "this system does not tell what a process holds; only mem_info and "
                          "host->alloc were looked at, and show no leak");
}
