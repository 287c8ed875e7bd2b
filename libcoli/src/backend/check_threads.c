/* check_threads.c - calls from the threads that the contract allows. */
#include <stdatomic.h>
#include <string.h>

#include "../base/threads.h"
#include "check.h"
#include "coli/exact.h"

enum { D = 128, F = 64, HAMMER_MS = 1500 };

static coli__ck_tensor *some_expert(coli__ck *ck)
{
    return coli__ck_expert(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), D, F);
}

static coli__ck_group *group_for(coli__ck *ck, coli__ck_tensor *const *t)
{
    const uint32_t n_row = 3;
    return coli__ck_make_group(ck, t, 1, &n_row, coli__ck_random_rows(ck, 4, &(*t)->now.matrix[0]));
}

/* ---- both sequences ------------------------------------------------------------------------------ */

typedef struct hammer {
    uint64_t end_ns;
    coli__ck_group *groups[3];
    coli__ck_product *product; // NULL without matmul
    coli_bk_source blocks[2];  // what the slot holds in turn
    coli__ck_tensor *slot;
    uint32_t n_copied;
} hammer;

static void hammer_work(coli__ck *ck, void *ctx)
{
    const hammer *h = ctx;
    for (uint32_t i = 0; coli__clock_ns() < h->end_ns; i++) {
        const coli__ck_group *g = h->groups[i % 3];
        CK_OK(ck, group_issue, ck->dev, &g->args);
        if (h->product) coli__ck_product_run(ck, h->product);
        const coli_bk_result r = coli__ck_take(ck);
        coli__ck_right(ck, g, &r);
    }
}

/* Bring `block` into the slot in one of the ways there are. */
static void copy(coli__ck *ck, hammer *h, const coli_bk_source *block, uint32_t way)
{
    coli_bk_fence fence = 0;
    if (way == 0 && ck->api.tensor_overwrite) {
        CK_OK(ck, tensor_overwrite, ck->dev, h->slot->handle, block);
    } else if (way == 1 && ck->api.tensor_overwrite_async && ck->api.fence_poll) {
        coli_bk_status status;
        CK_OK(ck, tensor_overwrite_async, ck->dev, h->slot->handle, block, &fence);
        do status = CK_CALL(ck, fence_poll, ck->dev, fence, 1000000);
        while (status == COLI_BK_BUSY);
        coli__ck_want(ck, "fence_poll", status, COLI_BK_OK);
    } else {
        CK_VOID(ck, tensor_free, ck->dev, h->slot->handle);
        CK_OK(ck, tensor_upload, ck->dev, block, &h->slot->handle);
    }
}

static void hammer_copy(coli__ck *ck, void *ctx)
{
    hammer *h = ctx;
    for (; coli__clock_ns() < h->end_ns; h->n_copied++)
        copy(ck, h, &h->blocks[h->n_copied % 2], h->n_copied % 3);
}

static void hammer_any(coli__ck *ck, void *ctx)
{
    const hammer *h = ctx;
    while (coli__clock_ns() < h->end_ns) {
        coli__ck_memory(ck);
        uint64_t footprint;
        if (ck->api.alloc_footprint) CK_VALUE(ck, alloc_footprint, &footprint, ck->dev, 4096);
        coli_bk_group_stats stats = {.struct_size = sizeof stats};
        if (ck->api.group_stats) CK_OK(ck, group_stats, ck->dev, &stats);
        coli_bk_device_info info = {.struct_size = sizeof info};
        CK_OK(ck, device_info, &ck->host.table, ck->device, &info);
    }
}

void coli__ck_two_sequences(coli__ck *ck)
{
    static void (*const all[3])(coli__ck *, void *) = {hammer_work, hammer_copy, hammer_any};
    coli__ck_tensor *t[3], *w = NULL;
    hammer h = {0};
    for (uint32_t i = 0; i < 3; i++) {
        t[i] = some_expert(ck);
        h.groups[i] = group_for(ck, &t[i]);
    }
    if (ck->api.matmul) {
        w = coli__ck_upload(ck, coli__ck_matrix_block(ck, coli__ck_format(ck, 0), 48, D));
        h.product = coli__ck_make_product(ck, w, coli__ck_random_rows(ck, 5, &w->now.matrix[0]));
    }
    h.slot = some_expert(ck);
    for (uint32_t i = 0; i < 2; i++)
        h.blocks[i] =
            coli__ck_expert_block(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), D, F);
    h.end_ns = coli__clock_ns() + HAMMER_MS * (uint64_t)1000000;
    coli__ck_hint(ck, "groups, copies and queries run at the same time");
    ck->host.n_fail = 0;
    ck->is_parallel = true;
    coli__ck_threads(ck, 3, all, &h);
    ck->is_parallel = false;
    COLI__CK_EXPECT(ck, ck->host.n_fail == 0,
                    "host->fail was called (\"%s\") though nothing failed", ck->host.message);
    if (h.n_copied > 0) {
        coli__ck_replaced(h.slot, h.blocks[(h.n_copied - 1) % 2]);
        coli__ck_run(ck, group_for(ck, &h.slot));
    }
    for (uint32_t i = 0; i < 3; i++) coli__ck_free(ck, t[i]);
    coli__ck_free(ck, h.slot);
    if (w) coli__ck_free(ck, w);
}

/* ---- two devices --------------------------------------------------------------------------------- */

typedef struct pair {
    coli__ck *ck[2]; // the case, and its like with another device and host
    const coli__ck_group *groups[2];
} pair;

static void run_one(coli__ck *ck, const coli__ck_group *g)
{
    for (uint32_t i = 0; i < 300; i++) coli__ck_run(ck, g);
}
static void run_first(coli__ck *ck, void *ctx)
{
    (void)ck;
    run_one(((pair *)ctx)->ck[0], ((pair *)ctx)->groups[0]);
}
static void run_second(coli__ck *ck, void *ctx)
{
    (void)ck;
    run_one(((pair *)ctx)->ck[1], ((pair *)ctx)->groups[1]);
}

void coli__ck_two_devices(coli__ck *ck)
{
    static void (*const both[2])(coli__ck *, void *) = {run_first, run_second};
    coli__ck *second = coli__ck_new(ck, 1, sizeof *second);
    uint32_t n = 0;
    CK_OK(ck, device_count, &ck->host.table, &n);
    memcpy(second, ck, sizeof *second);
    second->kept = NULL;
    second->n_kept = 0;
    coli__ck_host_init(&second->host, second, ck->host.table.options, ck->host.table.wait_limit_ns);
    coli_bk_device_info info = {.struct_size = sizeof info};
    if (ck->device + 1 < n) { // else the same device, opened again
        CK_OK(ck, device_info, &ck->host.table, ck->device + 1, &info);
        if (!info.unusable[0] && info.formats == ck->info.formats) second->device++;
    }
    coli__ck_open(second, &second->dev);
    pair p = {.ck = {ck, second}};
    coli__ck_tensor *t[2];
    for (uint32_t i = 0; i < 2; i++) {
        t[i] = coli__ck_new(ck, 1, sizeof **t);
        t[i]->now = coli__ck_expert_block(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), D, F);
        CK_OK(p.ck[i], tensor_upload, p.ck[i]->dev, &t[i]->now, &t[i]->handle);
        p.groups[i] = group_for(ck, &t[i]);
    }
    coli__ck_hint(ck, "two devices work at the same time");
    coli__ck_threads(ck, 2, both, &p);
    for (uint32_t i = 0; i < 2; i++) CK_VOID(p.ck[i], tensor_free, p.ck[i]->dev, t[i]->handle);
    coli__ck_close(second, second->dev);
    COLI__CK_EXPECT(ck, second->host.n_live == 0, "after close, %d blocks of host->alloc were left",
                    second->host.n_live);
}

/* ---- strangers ----------------------------------------------------------------------------------- */

typedef struct relay {
    coli__ck_tensor *t;
    const coli__ck_group *g;
} relay;

static void stranger_uploads(coli__ck *ck, void *ctx)
{
    relay *r = ctx;
    CK_OK(ck, tensor_upload, ck->dev, &r->t->now, &r->t->handle);
}
static void stranger_issues(coli__ck *ck, void *ctx)
{
    CK_OK(ck, group_issue, ck->dev, &((relay *)ctx)->g->args);
}
static void stranger_takes(coli__ck *ck, void *ctx)
{
    const coli_bk_result result = coli__ck_take(ck);
    coli__ck_right(ck, ((relay *)ctx)->g, &result);
}
static void stranger_frees(coli__ck *ck, void *ctx)
{
    CK_VOID(ck, tensor_free, ck->dev, ((relay *)ctx)->t->handle);
}

void coli__ck_strangers(coli__ck *ck)
{
    static void (*const one_by_one[])(coli__ck *, void *) = {stranger_issues, stranger_takes,
                                                             stranger_frees};
    relay r = {.t = coli__ck_new(ck, 1, sizeof *r.t)};
    r.t->now = coli__ck_expert_block(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), D, F);
    void (*const upload)(coli__ck *, void *) = stranger_uploads;
    coli__ck_hint(ck, "each call comes from a new thread");
    coli__ck_threads(ck, 1, &upload, &r);
    r.g = group_for(ck, &r.t);
    for (uint32_t i = 0; i < 3; i++) coli__ck_threads(ck, 1, &one_by_one[i], &r);
}

/* ---- floating-point mode -------------------------------------------------------------------------- */

void coli__ck_float_mode(coli__ck *ck)
{
    coli__ck_tensor *t = some_expert(ck);
    COLI__CK_EXPECT(ck, coli_exact_check(),
                    "tensor_upload changed the caller's floating-point mode");
    const coli__ck_group *g = group_for(ck, &t);
    CK_OK(ck, group_issue, ck->dev, &g->args);
    COLI__CK_EXPECT(ck, coli_exact_check(), "group_issue changed the caller's floating-point mode");
    const coli_bk_result r = coli__ck_take(ck);
    COLI__CK_EXPECT(ck, coli_exact_check(), "group_take changed the caller's floating-point mode");
    coli__ck_right(ck, g, &r);
    coli__ck_free(ck, t);
}
