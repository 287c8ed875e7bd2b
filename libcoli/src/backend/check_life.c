/* check_life.c - devices: what they say of themselves, open and close, structs of other sizes, and
 * arguments that must be refused. */
#include <stdio.h>
#include <string.h>

#include "../base/memory.h"
#include "check.h"

enum { D = 128, F = 64 };

static coli__ck_tensor *some_expert(coli__ck *ck)
{
    return coli__ck_expert(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), D, F);
}

static coli__ck_group *group_for(coli__ck *ck, coli__ck_tensor *const *t)
{
    const uint32_t n_row = 3;
    return coli__ck_make_group(ck, t, 1, &n_row, coli__ck_random_rows(ck, 4, &(*t)->now.matrix[0]));
}

/* ---- what a device says ---------------------------------------------------------------------------- */

static void text_ends(coli__ck *ck, const char *text, uint32_t n, const char *member)
{
    COLI__CK_EXPECT(ck, memchr(text, 0, n), "device_info: %s has no end within %u bytes", member,
                    n);
}

void coli__ck_devices(coli__ck *ck)
{
    uint32_t n = 0, again = 0;
    CK_OK(ck, device_count, &ck->host.table, &n);
    CK_OK(ck, device_count, &ck->host.table, &again);
    COLI__CK_EXPECT(ck, n == again && n < 1000, "device_count says %u, then %u", n, again);
    for (uint32_t i = 0; i < n; i++) {
        coli_bk_device_info info = {.struct_size = sizeof info};
        CK_OK(ck, device_info, &ck->host.table, i, &info);
        text_ends(ck, info.name, sizeof info.name, "name");
        text_ends(ck, info.driver, sizeof info.driver, "driver");
        text_ends(ck, info.uuid, sizeof info.uuid, "uuid");
        text_ends(ck, info.unusable, sizeof info.unusable, "unusable");
        COLI__CK_EXPECT(ck, info.name[0], "device_info: device %u has no name", i);
        COLI__CK_EXPECT(ck, info.kind <= COLI_BK_SIMULATED, "device_info: device %u is of kind %u",
                        i, info.kind);
        if (ck->plugin.abi_minor <= COLI_BK_ABI_MINOR)
            COLI__CK_EXPECT(
                ck,
                !(info.formats >> COLI_BK_N_FORMAT) && !(info.flags & ~(uint32_t)COLI_BK_CAN_JOIN),
                "device_info: unknown bits: formats 0x%x, flags 0x%x", info.formats, info.flags);
    }
    coli_bk_device_info info = {.struct_size = sizeof info};
    CK_REFUSED(ck, "a device beyond the last", device_info, &ck->host.table, n, &info);
    CK_REFUSED(ck, "device 4294967295", device_info, &ck->host.table, UINT32_MAX, &info);
    coli_bk_device *dev = NULL;
    CK_REFUSED(ck, "a device beyond the last", open, &ck->host.table, n, &dev);
    const coli_bk_mem_info memory = coli__ck_memory(ck);
    COLI__CK_EXPECT(ck, memory.total_bytes > 0, "mem_info says that the device has no memory");
    COLI__CK_EXPECT(ck, memory.is_assumed <= 1, "mem_info: is_assumed is %u", memory.is_assumed);
}

void coli__ck_stats(coli__ck *ck)
{
    if (!ck->api.group_stats) {
        coli__ck_skip(ck, "the plugin has no group_stats");
        return;
    }
    coli_bk_group_stats before = {.struct_size = sizeof before}, after = before;
    coli__ck_tensor *t[2] = {some_expert(ck), some_expert(ck)};
    static const uint32_t n_row[2] = {3, 2};
    const coli__ck_group *g =
        coli__ck_make_group(ck, t, 2, n_row, coli__ck_random_rows(ck, 4, &t[0]->now.matrix[0]));
    CK_OK(ck, group_stats, ck->dev, &before);
    for (uint32_t i = 0; i < 3; i++) coli__ck_run(ck, g);
    CK_OK(ck, group_stats, ck->dev, &after);
    COLI__CK_EXPECT(
        ck,
        after.n_group - before.n_group == 3 && after.n_expert - before.n_expert == 6 &&
            after.n_row - before.n_row == 15,
        "group_stats after 3 groups of 2 experts and 5 rows: %llu groups, %llu experts, "
        "%llu rows more",
        (unsigned long long)(after.n_group - before.n_group),
        (unsigned long long)(after.n_expert - before.n_expert),
        (unsigned long long)(after.n_row - before.n_row));
    COLI__CK_EXPECT(
        ck,
        after.to_device_ms >= before.to_device_ms && after.kernel_ms >= before.kernel_ms &&
            after.to_host_ms >= before.to_host_ms && after.upload_ms >= before.upload_ms,
        "group_stats: a time went backwards");
    for (uint32_t i = 0; i < 2; i++) coli__ck_free(ck, t[i]);
}

/* ---- structs of other sizes ------------------------------------------------------------------------- */

enum { MORE = 64 }; // bytes that a newer host's structs are longer

/* After a call: nothing was written behind what the plugin can know, and the size is still ours. */
static void behind_untouched(coli__ck *ck, const uint8_t *behind, uint32_t size, uint32_t found,
                             const char *entry)
{
    for (uint32_t i = 0; i < MORE; i++)
        COLI__CK_EXPECT(ck, behind[i] == 0xA5 || ck->plugin.abi_minor > COLI_BK_ABI_MINOR,
                        "%s wrote behind the struct that it knows: byte %u of a newer host's",
                        entry, i);
    COLI__CK_EXPECT(ck, found == size, "%s changed struct_size from %u to %u", entry, size, found);
}

/* A struct that is longer than ours. */
#define NEWER(type)                                                                                \
    struct {                                                                                       \
        type is;                                                                                   \
        uint8_t behind[MORE];                                                                      \
    }
#define MAKE_NEWER(x)                                                                              \
    do {                                                                                           \
        memset((x).behind, 0xA5, MORE);                                                            \
        (x).is.struct_size = sizeof(x);                                                            \
    } while (0)
#define STILL_NEWER(ck, x, entry)                                                                  \
    behind_untouched(ck, (x).behind, sizeof(x), (x).is.struct_size, entry)

static void newer_outputs(coli__ck *ck)
{
    NEWER(coli_bk_device_info) info = {.is = {0}};
    MAKE_NEWER(info);
    CK_OK(ck, device_info, &ck->host.table, ck->device, &info.is);
    STILL_NEWER(ck, info, "device_info");
    NEWER(coli_bk_mem_info) memory = {.is = {0}};
    MAKE_NEWER(memory);
    CK_OK(ck, mem_info, ck->dev, &memory.is);
    STILL_NEWER(ck, memory, "mem_info");
    if (!ck->api.group_stats) return;
    NEWER(coli_bk_group_stats) stats = {.is = {0}};
    MAKE_NEWER(stats);
    CK_OK(ck, group_stats, ck->dev, &stats.is);
    STILL_NEWER(ck, stats, "group_stats");
}

static void newer_inputs(coli__ck *ck)
{
    NEWER(coli_bk_source)
    source = {.is =
                  coli__ck_expert_block(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), D, F)};
    MAKE_NEWER(source);
    coli__ck_tensor *t = coli__ck_new(ck, 1, sizeof *t);
    t->now = source.is;
    CK_OK(ck, tensor_upload, ck->dev, &source.is, &t->handle);
    const coli__ck_group *g = group_for(ck, &t);
    NEWER(coli_bk_group) group = {.is = g->args};
    MAKE_NEWER(group);
    CK_OK(ck, group_issue, ck->dev, &group.is);
    NEWER(coli_bk_result) r = {.is = {0}};
    MAKE_NEWER(r);
    CK_OK(ck, group_take, ck->dev, ck->host.table.wait_limit_ns, &r.is);
    STILL_NEWER(ck, r, "group_take");
    coli__ck_right(ck, g, &r.is);

    // a host of minor 0: its group ends before the joins, and what stands behind is not its own
    coli_bk_group old = g->args;
    memset((uint8_t *)&old + offsetof(coli_bk_group, n_join), 0xA5,
           sizeof old - offsetof(coli_bk_group, n_join));
    old.struct_size = offsetof(coli_bk_group, n_join);
    coli__ck_hint(ck, "the group's struct_size ends before n_join: a host of minor 0");
    CK_OK(ck, group_issue, ck->dev, &old);
    const coli_bk_result result = coli__ck_take(ck);
    coli__ck_right(ck, g, &result);
    coli__ck_free(ck, t);
}

static void newer_products(coli__ck *ck)
{
    if (!ck->api.matmul) return;
    coli__ck_tensor *w =
        coli__ck_upload(ck, coli__ck_matrix_block(ck, coli__ck_format(ck, 0), 20, D));
    coli__ck_product *p =
        coli__ck_make_product(ck, w, coli__ck_random_rows(ck, 3, &w->now.matrix[0]));
    NEWER(coli_bk_matmul) args = {.is = p->args};
    MAKE_NEWER(args);
    CK_OK(ck, matmul, ck->dev, &args.is);
    coli__ck_product_right(ck, p);
    coli__ck_free(ck, w);
}

/* A whole life on this host. */
static void live(coli__ck *ck, const coli_bk_host *table)
{
    coli_bk_device *const mine = ck->dev;
    ck->dev = NULL;
    CK_OK(ck, open, table, ck->device, &ck->dev);
    coli__ck_tensor *t = some_expert(ck);
    coli__ck_run(ck, group_for(ck, &t));
    coli__ck_free(ck, t);
    coli__ck_close(ck, ck->dev);
    ck->dev = mine;
}

void coli__ck_struct_sizes(coli__ck *ck)
{
    newer_outputs(ck);
    newer_inputs(ck);
    newer_products(ck);
    NEWER(coli_bk_host) newer = {.is = ck->host.table};
    MAKE_NEWER(newer);
    newer.is.abi_minor = COLI_BK_ABI_MINOR + 7;
    coli__ck_hint(ck, "a host of a newer minor");
    live(ck, &newer.is);
    coli_bk_host older = ck->host.table;
    older.abi_minor = 0;
    coli__ck_hint(ck, "a host of minor 0");
    live(ck, &older);
}

void coli__ck_bare_host(coli__ck *ck)
{
    coli_bk_host bare = ck->host.table;
    bare.log = NULL;
    bare.clock_ns = NULL;
    coli__ck_hint(ck, "host->log and host->clock_ns are NULL, which they may be");
    live(ck, &bare);
}

/* ---- what must be refused ---------------------------------------------------------------------------- */

/* One mistake in a good expert. */
static void spoil(coli_bk_source *s, uint32_t mistake, const char **what)
{
    coli_bk_matrix *m = s->matrix;
#define MISTAKE(i, text, ...)                                                                      \
    if (mistake == (i)) {                                                                          \
        *what = text;                                                                              \
        __VA_ARGS__;                                                                               \
    }
    MISTAKE(0, "no matrix", s->n_matrix = 0)
    MISTAKE(1, "two matrices", s->n_matrix = 2)
    MISTAKE(2, "four matrices", s->n_matrix = 4)
    MISTAKE(3, "an unknown format", m[1].format = COLI_BK_N_FORMAT)
    MISTAKE(4, "format 4294967295", m[0].format = UINT32_MAX)
    MISTAKE(5, "a block that ends before its last matrix", s->n_bytes -= 32)
    MISTAKE(6, "a matrix that lies behind the block", m[1].offset = s->n_bytes)
    MISTAKE(7, "an offset near 2^64", m[2].offset = UINT64_MAX - 63)
    MISTAKE(8, "rows of no weights", m[0].n_in = 0)
    MISTAKE(9, "no rows", m[0].n_out = 0)
    MISTAKE(10, "gate and up of different heights", m[1].n_out -= 1)
    MISTAKE(11, "gate and up of different widths", m[1].n_in -= 1)
    MISTAKE(12, "a down that is not as wide as gate is high", m[2].n_in -= 1)
    MISTAKE(13, "a down that is not as high as gate is wide", m[2].n_out -= 1)
    MISTAKE(14, "no data", s->data = NULL)
#undef MISTAKE
}
enum { N_MISTAKE = 15 };

void coli__ck_wrong_sources(coli__ck *ck)
{
    const coli_bk_source good =
        coli__ck_expert_block(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), D, F);
    int nothing;
    coli_bk_tensor *const untouched = (coli_bk_tensor *)&nothing;
    for (uint32_t i = 0; i < N_MISTAKE; i++) {
        coli_bk_source bad = good;
        coli_bk_tensor *out = untouched;
        const char *what = "";
        spoil(&bad, i, &what);
        coli__ck_hint(ck, what);
        CK_REFUSED(ck, what, tensor_upload, ck->dev, &bad, &out);
        COLI__CK_EXPECT(ck, out == untouched, "tensor_upload refused %s and wrote a tensor", what);
    }
    // gate and up in groups of different sizes, where the device has both
    for (uint32_t i = 0; i < coli__ck_n_format(ck); i++) {
        const uint32_t f = coli__ck_format(ck, i);
        coli_bk_source bad = good;
        if (coli_bk_layout_of(f, 1).group == coli_bk_layout_of(bad.matrix[0].format, 1).group ||
            coli_bk_matrix_bytes(f, F, D) > coli_bk_matrix_bytes(bad.matrix[1].format, F, D))
            continue;
        coli_bk_tensor *out = NULL;
        bad.matrix[1].format = f;
        CK_REFUSED(ck, "gate and up in groups of different sizes", tensor_upload, ck->dev, &bad,
                   &out);
    }
    coli__ck_hint(ck, NULL);
    coli__ck_tensor *t = coli__ck_upload(ck, good);
    coli__ck_run(ck, group_for(ck, &t));
    coli__ck_free(ck, t);
}

/* A product that is refused writes nothing. */
static void refuse_product(coli__ck *ck, const coli_bk_matmul *args, const char *of_what)
{
    coli__ck_hint(ck, of_what);
    CK_REFUSED(ck, of_what, matmul, ck->dev, args);
    for (uint64_t i = 0; i < args->n_row * args->ld; i++) {
        uint32_t bits;
        memcpy(&bits, &args->y[i], sizeof bits);
        COLI__CK_EXPECT(ck, bits == 0xA5A5A5A5u, "matmul refused %s and wrote y", of_what);
    }
}

void coli__ck_handles(coli__ck *ck)
{
    CK_VOID(ck, tensor_free, ck->dev, NULL);
    if (!ck->api.matmul) return; // groups have their own case
    coli__ck_tensor *t = some_expert(ck);
    coli__ck_tensor *w =
        coli__ck_upload(ck, coli__ck_matrix_block(ck, coli__ck_format(ck, 0), 20, D));
    coli__ck_product *p =
        coli__ck_make_product(ck, w, coli__ck_random_rows(ck, 3, &w->now.matrix[0]));
    coli_bk_matmul bad = p->args;
    bad.w = t->handle;
    refuse_product(ck, &bad, "an expert where a matrix is expected");
    bad.w = NULL;
    refuse_product(ck, &bad, "NULL where a matrix is expected");
    bad = p->args;
    bad.group = 96 - bad.group;
    refuse_product(ck, &bad, "activations in groups of another size than the matrix'");
    bad = p->args;
    bad.n_group++;
    refuse_product(ck, &bad, "activations with a group too many");
    bad = p->args;
    bad.ld = w->now.matrix[0].n_out - 1;
    refuse_product(ck, &bad, "an ld below n_out");
    coli__ck_hint(ck, NULL);
    coli__ck_product_run(ck, p);
    coli__ck_free(ck, t);
    coli__ck_free(ck, w);
}

/* ---- open and close ---------------------------------------------------------------------------------- */

/* Everything that a device took from host->alloc came back. */
static void close_clean(coli__ck *ck, coli_bk_device *dev, int32_t n_live_before, const char *when)
{
    coli__ck_close(ck, dev);
    COLI__CK_EXPECT(ck, ck->host.n_live == n_live_before, "close %s left %d blocks of host->alloc",
                    when, ck->host.n_live - n_live_before);
}

void coli__ck_close_any_time(coli__ck *ck)
{
    coli_bk_device *const mine = ck->dev;
    const int32_t n_live = ck->host.n_live;
    coli__ck_close(ck, NULL);

    coli__ck_open(ck, &ck->dev);
    close_clean(ck, ck->dev, n_live, "of an idle device");

    coli__ck_open(ck, &ck->dev);
    coli__ck_tensor *t = some_expert(ck);
    CK_OK(ck, group_issue, ck->dev, &group_for(ck, &t)->args);
    coli__ck_hint(ck, "closing with a group that was not taken and a tensor that was not freed");
    close_clean(ck, ck->dev, n_live, "with a group not taken and a tensor not freed");

    if (ck->api.host_alloc && ck->api.host_free) {
        coli__ck_open(ck, &ck->dev);
        t = some_expert(ck);
        ck->api.host_alloc(ck->dev, 65536);
        coli__ck_hint(ck, "closing with memory of host_alloc that was not freed");
        close_clean(ck, ck->dev, n_live, "with memory of host_alloc not freed");
    }

    if (ck->api.tensor_overwrite_async && ck->api.fence_poll) {
        coli__ck_open(ck, &ck->dev);
        t = some_expert(ck);
        const coli_bk_source next =
            coli__ck_expert_block(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), D, F);
        coli_bk_fence fence = 0;
        CK_OK(ck, tensor_overwrite_async, ck->dev, t->handle, &next, &fence);
        coli__ck_hint(ck, "closing with a fence that nobody waited for");
        close_clean(ck, ck->dev, n_live, "with a fence that nobody waited for");
    }
    ck->dev = mine;
}

void coli__ck_options(coli__ck *ck)
{
    coli_bk_host table = ck->host.table;
    coli_bk_device *dev = NULL;
    table.options = "no-such-option=1";
    const coli_bk_status status = CK_CALL(ck, open, &table, ck->device, &dev);
    COLI__CK_EXPECT(
        ck, status != COLI_BK_OK,
        "open accepted the option \"%s\", which nobody knows: a misspelt option must be "
        "refused",
        table.options);
    COLI__CK_EXPECT(ck, !dev, "open failed and wrote a device");
    live(ck, &ck->host.table);
}

void coli__ck_open_often(coli__ck *ck)
{
    coli_bk_device *const mine = ck->dev;
    const int32_t n_live = ck->host.n_live;
    for (uint32_t i = 0; i < 100; i++) {
        coli__ck_open(ck, &ck->dev);
        if (i % 20 == 1) {
            coli__ck_tensor *t = some_expert(ck);
            coli__ck_run(ck, group_for(ck, &t));
            coli__ck_free(ck, t);
        }
        close_clean(ck, ck->dev, n_live, "in a loop of open and close");
    }
    coli_bk_device *two[2];
    coli__ck_tensor *t[2];
    for (uint32_t i = 0; i < 2; i++) {
        coli__ck_open(ck, &two[i]);
        ck->dev = two[i];
        t[i] = some_expert(ck);
    }
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t i = 0; i < 2; i++) {
            ck->dev = two[i];
            coli__ck_run(ck, group_for(ck, &t[i]));
        }
    ck->dev = two[0]; // in the order of opening, not the reverse
    coli__ck_free(ck, t[0]);
    coli__ck_close(ck, two[0]);
    ck->dev = two[1];
    coli__ck_run(ck, group_for(ck, &t[1]));
    coli__ck_free(ck, t[1]);
    close_clean(ck, two[1], n_live, "of two devices");
    ck->dev = mine;
}

/* ---- without host memory ------------------------------------------------------------------------------ */

/* A call that may fail for want of memory; then it is made again, and must work. */
static bool survives(coli__ck *ck, const char *entry, coli_bk_status status)
{
    if (status == COLI_BK_OK) return true;
    COLI__CK_EXPECT(ck, status == COLI_BK_NOMEM || status == COLI_BK_FAILED,
                    "%s returned %s when host->alloc gave NULL, expected NOMEM", entry,
                    coli__ck_status_name(status));
    return false;
}

void coli__ck_no_host_memory(coli__ck *ck)
{
    coli_bk_device *const mine = ck->dev;
    const int32_t n_live = ck->host.n_live;
    const coli_bk_source block =
        coli__ck_expert_block(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), D, F);
    coli__ck_tensor of = {.now = block}, *t = &of;
    const coli__ck_group *g = group_for(ck, &t);
    coli__ck_hint(ck, "host->alloc gave NULL once");
    uint32_t n = 0;
    do {
        coli_bk_device *dev = NULL;
        coli_bk_tensor *handle = NULL;
        ck->host.n_alloc = 0;
        ck->host.fail_alloc_at = ++n;
        while (!survives(ck, "open", CK_CALL(ck, open, &ck->host.table, ck->device, &dev)))
            COLI__CK_EXPECT(ck, !dev && ck->host.n_live == n_live,
                            "open failed and left a device or %d blocks of host->alloc",
                            ck->host.n_live - n_live);
        ck->dev = dev;
        while (!survives(ck, "tensor_upload", CK_CALL(ck, tensor_upload, dev, &block, &handle)))
            COLI__CK_EXPECT(ck, !handle, "tensor_upload failed and wrote a tensor");
        coli_bk_group args = g->args;
        args.experts = &handle;
        coli_bk_result r = {.struct_size = sizeof r};
        coli_bk_status status;
        do { // a group may be lost in issue or in take
            while (!survives(ck, "group_issue", CK_CALL(ck, group_issue, dev, &args))) {
            }
            status = CK_CALL(ck, group_take, dev, ck->host.table.wait_limit_ns, &r);
        } while (!survives(ck, "group_take", status));
        coli__ck_right(ck, g, &r);
        CK_VOID(ck, tensor_free, dev, handle);
        close_clean(ck, dev, n_live, "after a host allocation had failed");
    } while (n < ck->host.n_alloc);
    ck->host.fail_alloc_at = 0;
    ck->dev = mine;
    if (ck->host.n_alloc == 0) coli__ck_skip(ck, "the plugin takes no memory from the host");
}
