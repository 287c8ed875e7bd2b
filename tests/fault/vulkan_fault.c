/* vulkan_fault.c - what the Vulkan backend refuses, and what it leaves behind when something fails:
 * one report, nothing leaked, and the next call works. */
#include "vulkan_world.h"

static const uint32_t plain[3] = {COLI_BK_I4_G64_F16, COLI_BK_I4_G64_F16, COLI_BK_I4_G64_F16};
static const uint32_t one_row[] = {1};

static void make_world(vk_world *w, uint32_t n_expert)
{
    t_rng rng = {n_expert};
    vk_world_init(w, &rng, plain, 128, 64, n_expert, one_row, 1);
}

/* ---- opening -------------------------------------------------------------------------------- */

static void the_record_and_the_device(void **state)
{
    T_BEGIN;
    T_STR(vk_plugin.info.magic, COLI_BK_MAGIC);
    T_EQ(vk_plugin.info.struct_size, sizeof(coli_bk_info));
    T_EQ(vk_plugin.info.abi_major, COLI_BK_ABI_MAJOR);
    T_EQ(vk_plugin.info.abi_minor, COLI_BK_ABI_MINOR);
    T_STR(vk_plugin.info.name, "vulkan");

    vk_host host;
    vk_host_init(&host, "");
    uint32_t n = 0;
    VK_OK(&host, vk.device_count(&host.base.table, &n));
    uint32_t last_kind = 0;
    for (uint32_t i = 0; i < n; i++) { // discrete before integrated before processors
        coli_bk_device_info info = {.struct_size = sizeof info};
        VK_OK(&host, vk.device_info(&host.base.table, i, &info));
        T_GE(info.kind, last_kind);
        last_kind = info.kind;
        T_TRUE(info.name[0] && memchr(info.name, 0, sizeof info.name));
        T_EQ(info.formats, (1u << COLI_BK_N_FORMAT) - 1);
        T_TRUE(info.max_tensor_bytes > 0);
    }
    coli_bk_device_info info = {.struct_size = sizeof info};
    VK_FAILS(&host, vk.device_info(&host.base.table, n, &info), COLI_BK_INVALID, "there are");
    coli_bk_device *dev = NULL;
    VK_FAILS(&host, vk.open(&host.base.table, n, &dev), COLI_BK_INVALID, "there are");
    T_TRUE(!dev);
    // a host that knows fewer members, and one that knows more
    info.struct_size = 16;
    VK_FAILS(&host, vk.device_info(&host.base.table, vk_device, &info), COLI_BK_INVALID,
             "struct_size");
    struct {
        coli_bk_device_info info;
        uint8_t beyond[64];
    } larger = {.info.struct_size = sizeof larger};
    memset(larger.beyond, 0xA5, sizeof larger.beyond);
    VK_OK(&host, vk.device_info(&host.base.table, vk_device, &larger.info));
    T_EQ(larger.info.struct_size, sizeof larger);
    for (size_t i = 0; i < sizeof larger.beyond; i++) T_EQ(larger.beyond[i], 0xA5);
    T_EQ(host.base.n_block, 0);
    vk.close(NULL);

    // statistics for a host that has no clock_ms
    coli_bk_group_stats stats = {.struct_size = offsetof(coli_bk_group_stats, clock_ms),
                                 .clock_ms = 7};
    dev = vk_open(&host, "work=1MiB");
    VK_OK(&host, vk.group_stats(dev, &stats));
    T_EQ(stats.struct_size, offsetof(coli_bk_group_stats, clock_ms));
    T_TRUE(stats.clock_ms == 7);
    vk_shut(&host, dev);
}

static void options_are_understood_or_refused(void **state)
{
    T_BEGIN;
    static const char *const wrong[] = {"speed=1",        "dot",
                                        "dot=",           "dot=2",
                                        "dot=1x",         "buffer=1",
                                        "buffer=1 KB",    "validate=yes",
                                        "work=1GiB dit=", "staging=99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        vk_host host;
        vk_host_init(&host, wrong[i]);
        coli_bk_device *dev = NULL;
        VK_FAILS(&host, vk.open(&host.base.table, vk_device, &dev), COLI_BK_INVALID, "option");
        T_TRUE(!dev);
        T_EQ(host.base.n_block, 0);
    }
    vk_host host;
    vk_host_init(&host, "subgroup=3");
    coli_bk_device *dev = NULL;
    VK_FAILS(&host, vk.open(&host.base.table, vk_device, &dev), COLI_BK_UNSUPPORTED,
             "powers of two");
    vk_shut(&host,
            vk_open(&host, "  dot=0  storage16=0 staging=64KiB work=1MiB buffer=1GiB join=0 "));
}

/* A device that flushes denormals says that it does not join, unless told to, and refuses. */
static void joins_where_they_are_exact(void **state)
{
    T_BEGIN;
    vk_host host;
    for (uint32_t on = 0; on < 2; on++) {
        coli_bk_device_info info = {.struct_size = sizeof info};
        coli_bk_device *dev = vk_open(&host, on ? "join=1 work=1MiB" : "join=0 work=1MiB");
        VK_OK(&host, vk.device_info(&host.base.table, vk_device, &info));
        T_EQ(info.flags, on ? COLI_BK_CAN_JOIN : 0);
        vk_world w;
        make_world(&w, 1);
        vk_world_upload(&w, &host, dev);
        const coli_bk_join join = {0, 1};
        const uint32_t pair = 0;
        const float weight = 1;
        w.group.n_join = w.group.n_term = 1;
        w.group.joins = &join;
        w.group.term_pair = &pair;
        w.group.term_weight = &weight;
        if (on) {
            VK_OK(&host, vk.group_issue(dev, &w.group));
            vk_take(&host, dev);
        } else {
            VK_FAILS(&host, vk.group_issue(dev, &w.group), COLI_BK_UNSUPPORTED, "does not join");
        }
        vk_world_free(&w, dev);
        vk_shut(&host, dev);
    }
}

static void opened_again_and_again(void **state)
{
    T_BEGIN;
    vk_world w;
    make_world(&w, 2);
    for (uint32_t i = 0; i < 10; i++) {
        vk_host host;
        coli_bk_device *dev = vk_open(&host, "work=1MiB");
        vk_world_upload(&w, &host, dev);
        if (i % 2)
            vk_world_run(&w, &host, dev);
        else
            VK_OK(&host, vk.group_issue(dev, &w.group)); // and never take
        for (uint32_t e = 0; e < w.n_expert; e++) {      // some are left to close
            if ((i + e) % 3) vk.tensor_free(dev, w.tensors[e]);
            w.tensors[e] = NULL;
        }
        vk_shut(&host, dev);
    }
    vk_world_free(&w, NULL);
}

static void two_at_once(void **state)
{
    T_BEGIN;
    vk_host hosts[2];
    coli_bk_device *devs[2];
    vk_world w[2];
    for (uint32_t i = 0; i < 2; i++) {
        devs[i] = vk_open(&hosts[i], i ? "validate=1" : "");
        make_world(&w[i], 1 + i);
        vk_world_upload(&w[i], &hosts[i], devs[i]);
    }
    for (uint32_t i = 0; i < 2; i++) VK_OK(&hosts[i], vk.group_issue(devs[i], &w[i].group));
    for (uint32_t i = 2; i-- > 0;) {
        const coli_bk_result r = vk_take(&hosts[i], devs[i]);
        vk_world_check(&w[i], &r);
    }
    for (uint32_t i = 0; i < 2; i++) {
        vk_world_free(&w[i], devs[i]);
        vk_shut(&hosts[i], devs[i]);
    }
}

/* ---- arguments ------------------------------------------------------------------------------ */

static void wrong_tensors(void **state)
{
    T_BEGIN;
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1 work=1MiB buffer=64KiB");
    vk_world w;
    make_world(&w, 1);
    vk_world_upload(&w, &host, dev);
    const coli_bk_source right = w.sources[0];
    coli_bk_tensor *t = NULL;

#define REFUSED(change, status, text)                                                              \
    do {                                                                                           \
        coli_bk_source s = right;                                                                  \
        change;                                                                                    \
        VK_FAILS(&host, vk.tensor_upload(dev, &s, &t), status, text);                              \
        T_TRUE(!t);                                                                                \
        VK_FAILS(&host, vk.tensor_overwrite(dev, w.tensors[0], &s), status, text);                 \
    } while (0)
    REFUSED(s.struct_size = 24, COLI_BK_INVALID, "struct_size");
    REFUSED(s.n_matrix = 2, COLI_BK_INVALID, "2 matrices");
    REFUSED(s.data = NULL, COLI_BK_INVALID, "expected a multiple");
    REFUSED(s.data = (const uint8_t *)s.data + 32, COLI_BK_INVALID, "expected a multiple");
    REFUSED(s.n_bytes -= 1, COLI_BK_INVALID, "expected a multiple");
    REFUSED(s.n_bytes -= 32, COLI_BK_INVALID, "the block has");
    REFUSED(s.matrix[1].offset = 32, COLI_BK_INVALID, "the block has");
    REFUSED(s.matrix[2].offset = UINT64_MAX - 63, COLI_BK_INVALID, "the block has");
    REFUSED(s.matrix[0].format = COLI_BK_N_FORMAT, COLI_BK_UNSUPPORTED, "unknown format 12");
    REFUSED(s.matrix[0].n_in = 0, COLI_BK_INVALID, "no shape");
    REFUSED(s.matrix[0].n_out = 1u << 31, COLI_BK_INVALID, "no shape");
    REFUSED(s.matrix[0].scale_exp = 61, COLI_BK_INVALID, "scale_exp 61");
    REFUSED(s.matrix[2].n_in = 63, COLI_BK_INVALID, "make no expert");
    REFUSED(s.matrix[1].format = COLI_BK_I4_G32_F16;
            s.n_bytes *= 2, COLI_BK_INVALID, "make no expert");
#undef REFUSED
    VK_FAILS(&host, vk.tensor_upload(dev, NULL, &t), COLI_BK_INVALID, "coli_bk_source");
    VK_FAILS(&host, vk.tensor_upload(dev, &right, NULL), COLI_BK_INVALID, "place");
    VK_FAILS(&host, vk.tensor_overwrite(dev, NULL, &right), COLI_BK_INVALID, "no tensor");

    // other shapes for the same tensor
    t_rng rng = {1};
    coli_bk_source other;
    T_OK(coli__ref_expert_block(&rng.state, plain, 64, 64, &other));
    VK_FAILS(&host, vk.tensor_overwrite(dev, w.tensors[0], &other), COLI_BK_INVALID, "shape");
    coli_bk_fence fence = 0;
    VK_FAILS(&host, vk.tensor_overwrite_async(dev, w.tensors[0], &other, &fence), COLI_BK_INVALID,
             "shape");
    VK_FAILS(&host, vk.fence_poll(dev, 1000, 0), COLI_BK_INVALID, "never given");
    VK_FAILS(&host, vk.fence_poll(dev, 0, 0), COLI_BK_INVALID, "never given");
    coli__free_aligned((void *)(uintptr_t)other.data);

    // larger than a buffer
    T_OK(coli__ref_matrix_block(&rng.state, COLI_BK_I8_G64_F16, 64, 1024, &other));
    T_TRUE(other.n_bytes > 64 << 10);
    VK_FAILS(&host, vk.tensor_upload(dev, &other, &t), COLI_BK_UNSUPPORTED, "a buffer of");
    coli__free_aligned((void *)(uintptr_t)other.data);
    // rows longer than the work buffer, which is no larger than a buffer
    T_OK(coli__ref_matrix_block(&rng.state, COLI_BK_I4_G64_F16, 1, 6400, &other));
    VK_OK(&host, vk.tensor_upload(dev, &other, &t));
    vk.tensor_free(dev, t);
    coli__free_aligned((void *)(uintptr_t)other.data);

    vk_world_run(&w, &host, dev); // nothing of all this changed the tensor
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

static void rows_that_do_not_fit(void **state)
{
    T_BEGIN;
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "work=64KiB");
    t_rng rng = {1};
    coli_bk_source s;
    coli_bk_tensor *t = NULL;
    T_OK(coli__ref_matrix_block(&rng.state, COLI_BK_I4_G64_F16, 20000, 64, &s));
    VK_FAILS(&host, vk.tensor_upload(dev, &s, &t), COLI_BK_UNSUPPORTED, "of work memory");
    coli__free_aligned((void *)(uintptr_t)s.data);
    vk_shut(&host, dev);
}

static void wrong_groups(void **state)
{
    T_BEGIN;
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1 work=1MiB join=1");
    vk_world w, other;
    make_world(&w, 3);
    vk_world_upload(&w, &host, dev);
    t_rng rng = {8};
    vk_world_init(&other, &rng, plain, 64, 64, 1, one_row, 1);
    vk_world_upload(&other, &host, dev);
    vk_product p;
    vk_product_init(&p, &rng, COLI_BK_I4_G64_F16, 20, 128, 2);
    vk_product_upload(&p, &host, dev);
    coli_bk_result r = {.struct_size = sizeof r};

#define REFUSED(change, text)                                                                      \
    do {                                                                                           \
        coli_bk_group g = w.group;                                                                 \
        coli_bk_tensor *experts[3];                                                                \
        uint32_t row[3];                                                                           \
        memcpy(experts, w.tensors, sizeof experts);                                                \
        memcpy(row, w.row, sizeof row);                                                            \
        g.experts = experts;                                                                       \
        g.row = row;                                                                               \
        change;                                                                                    \
        VK_FAILS(&host, vk.group_issue(dev, &g), COLI_BK_INVALID, text);                           \
        T_EQ(vk.group_take(dev, 0, &r), COLI_BK_EMPTY);                                            \
    } while (0)
    const coli_bk_join join = {0, 2}, beyond = {1, 2};
    const uint32_t pairs[] = {0, 3};
    const float weights[] = {1, 1};
    REFUSED(g.struct_size = 40, "struct_size");
    REFUSED(g.experts = NULL, "without experts");
    REFUSED(g.n_row = NULL, "without experts");
    REFUSED(g.row = NULL, "without row numbers");
    REFUSED(g.q = NULL, "without row numbers");
    REFUSED(g.d = NULL, "without row numbers");
    REFUSED(experts[1] = NULL, "expert 1 of a group is no expert");
    REFUSED(experts[2] = other.tensors[0], "expert 2 of a group has another shape");
    REFUSED(experts[0] = (coli_bk_tensor *)(uintptr_t)p.args.w, "is no expert");
    REFUSED(row[2] = g.n_x, "pair 2 takes row");
    REFUSED(g.group = 32, "groups of 32");
    REFUSED(g.n_group = 3, "3 groups");
    REFUSED(g.n_join = 1; g.n_term = 2, "without their tables");
    REFUSED(g.n_join = 1; g.n_term = 2; g.joins = &join; g.term_pair = pairs;
            g.term_weight = weights, "term 1 is pair 3");
    REFUSED(g.n_join = 1; g.n_term = 2; g.joins = &beyond; g.term_pair = pairs;
            g.term_weight = weights, "join 0: terms 1 to 3");
#undef REFUSED
    VK_FAILS(&host, vk.group_issue(dev, NULL), COLI_BK_INVALID, "coli_bk_group");
    VK_FAILS(&host, vk.group_take(dev, 0, NULL), COLI_BK_INVALID, "coli_bk_result");

#define REFUSED(change, text)                                                                      \
    do {                                                                                           \
        coli_bk_matmul a = p.args;                                                                 \
        change;                                                                                    \
        VK_FAILS(&host, vk.matmul(dev, &a), COLI_BK_INVALID, text);                                \
    } while (0)
    REFUSED(a.struct_size = 16, "struct_size");
    REFUSED(a.w = NULL, "no tensor");
    REFUSED(a.w = w.tensors[0], "no tensor of one matrix");
    REFUSED(a.group = 32, "groups of 32");
    REFUSED(a.n_group = 1, "1 groups");
    REFUSED(a.q = NULL, "missing");
    REFUSED(a.d = NULL, "missing");
    REFUSED(a.y = NULL, "missing");
    REFUSED(a.ld = 19, "below 20");
#undef REFUSED
    VK_FAILS(&host, vk.matmul(dev, NULL), COLI_BK_INVALID, "coli_bk_matmul");
    VK_FAILS(&host, vk.matmul_batch(dev, NULL, 2), COLI_BK_INVALID, "no list");
    VK_OK(&host, vk.matmul_batch(dev, NULL, 0));
    VK_OK(&host, vk.matmul(dev, &p.args));
    vk_product_check(&p);

    // a host of version 1.0, which knows no joins
    coli_bk_group old = w.group;
    old.struct_size = offsetof(coli_bk_group, n_join);
    old.n_join = 77;
    VK_OK(&host, vk.group_issue(dev, &old));
    r = vk_take(&host, dev);
    vk_world_check(&w, &r);
    // no experts at all
    coli_bk_group nothing = {.struct_size = sizeof nothing};
    VK_OK(&host, vk.group_issue(dev, &nothing));
    T_EQ(vk_take(&host, dev).n_row, 0);

    vk_product_free(&p, dev);
    vk_world_free(&other, dev);
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

/* ---- memory --------------------------------------------------------------------------------- */

static uint64_t free_bytes(vk_host *host, coli_bk_device *dev)
{
    coli_bk_mem_info info = {.struct_size = sizeof info};
    VK_OK(host, vk.mem_info(dev, &info));
    T_LE(info.free_bytes, info.total_bytes);
    return info.free_bytes;
}

/* Tensors until there is no room: the books are right, the tensors exact, and a freed slot is used
 * again. */
static void full_of_tensors(void **state)
{
    T_BEGIN;
    vk_host host;
    coli_bk_device *dev =
        vk_open(&host, "validate=1 memory=1MiB buffer=200KiB work=64KiB staging=64KiB");
    vk_world w;
    t_rng rng = {4};
    vk_world_init(&w, &rng, plain, 128, 128, VK_MAX_EXPERT, one_row, 1);
    const uint64_t n_bytes = w.sources[0].n_bytes, footprint = vk.alloc_footprint(dev, n_bytes);
    T_GE(footprint, n_bytes);
    T_GE(vk.alloc_footprint(dev, n_bytes + 1), footprint);
    T_TRUE(vk.alloc_footprint(dev, UINT64_MAX) == UINT64_MAX);
    const uint64_t before = free_bytes(&host, dev);
    uint32_t n = 0;
    coli_bk_status status = COLI_BK_OK;
    for (; n < VK_MAX_EXPERT && !status; n += !status) {
        const uint64_t left = free_bytes(&host, dev);
        status = vk.tensor_upload(dev, &w.sources[n], &w.tensors[n]);
        T_EQ(free_bytes(&host, dev), left - (status ? 0 : footprint));
    }
    T_EQ(status, COLI_BK_NOMEM);
    T_TRUE(strstr(host.base.message, "are free") && n > 20 && !w.tensors[n]);
    T_EQ(host.base.n_fail, 1);

    w.group.n_expert = w.n_expert = w.n_pair = n;
    vk_world_run(&w, &host, dev);
    vk.tensor_free(dev, w.tensors[n / 2]);
    VK_OK(&host, vk.tensor_upload(dev, &w.sources[n / 2], &w.tensors[n / 2]));
    coli_bk_tensor *more = NULL;
    VK_FAILS(&host, vk.tensor_upload(dev, &w.sources[0], &more), COLI_BK_NOMEM, "are free");
    vk_world_run(&w, &host, dev);
    for (uint32_t i = 0; i < n; i++) { // in a scattered order: some twice, the rest below
        const uint32_t e = (i * 7 + 3) % n;
        if (w.tensors[e]) vk.tensor_free(dev, w.tensors[e]);
        w.tensors[e] = NULL;
    }
    for (uint32_t e = 0; e < n; e++) {
        if (w.tensors[e]) vk.tensor_free(dev, w.tensors[e]);
        w.tensors[e] = NULL;
    }
    T_LE(before - free_bytes(&host, dev), 64 << 10); // the readback memory of the groups stays
    w.n_expert = VK_MAX_EXPERT;
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

/* Tensors of different sizes come and go; the books always agree with what is there. */
T_PROP(tensors_come_and_go, 2)
{
    enum { N = 12 };
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1 buffer=256KiB work=64KiB staging=64KiB");
    vk_product p[N] = {0};
    const uint64_t before = free_bytes(&host, dev);
    uint64_t used = 0;
    for (uint32_t i = 0; i < 120; i++) {
        const uint32_t k = t_below(&rng, N);
        if (p[k].args.w) {
            VK_OK(&host, vk.matmul(dev, &p[k].args));
            vk_product_check(&p[k]);
            used -= vk.alloc_footprint(dev, p[k].source.n_bytes);
            vk_product_free(&p[k], dev);
            p[k] = (vk_product){0};
        } else {
            vk_product_init(&p[k], &rng, t_below(&rng, COLI_BK_N_FORMAT), t_range(&rng, 1, 300),
                            t_range(&rng, 1, 300), 1);
            vk_product_upload(&p[k], &host, dev);
            used += vk.alloc_footprint(dev, p[k].source.n_bytes);
        }
        T_LE(before - free_bytes(&host, dev), used + (64 << 10) + 4096); // and the readback memory
        T_GE(before - free_bytes(&host, dev), used);
    }
    for (uint32_t k = 0; k < N; k++) vk_product_free(&p[k], dev);
    vk_shut(&host, dev);
}

/* Nothing grows over many groups and overwrites. */
static void nothing_grows(void **state)
{
    T_BEGIN;
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "work=1MiB");
    vk_world w;
    make_world(&w, 3);
    vk_world_upload(&w, &host, dev);
    vk_world_run(&w, &host, dev);
    const uint64_t before = free_bytes(&host, dev);
    const uint64_t n_block = host.base.n_block;
    for (uint32_t i = 0; i < 300; i++) {
        VK_OK(&host, vk.group_issue(dev, &w.group));
        vk_take(&host, dev);
        VK_OK(&host, vk.tensor_overwrite(dev, w.tensors[i % 3], &w.sources[i % 3]));
    }
    T_EQ(free_bytes(&host, dev), before);
    T_EQ(host.base.n_block, n_block);
    vk_world_run(&w, &host, dev);
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

/* The host's memory runs out at each request in turn. */
static void no_memory_of_the_host(void **state)
{
    T_BEGIN;
    static const uint32_t many[] = {
        40}; // more than a round takes, so that the rows are joined here
    t_rng rng = {2};
    vk_world w;
    vk_world_init(&w, &rng, plain, 128, 64, 2, many, 1);
    const coli_bk_join join = {0, 2};
    const uint32_t pairs[] = {0, 1};
    const float weights[] = {0.5f, 0.5f};
    w.group.n_join = 1;
    w.group.n_term = 2;
    w.group.joins = &join;
    w.group.term_pair = pairs;
    w.group.term_weight = weights;
    uint32_t n_failed = 0;
    for (uint64_t nth = 1;; nth++) {
        vk_host host;
        vk_host_init(&host, "work=64KiB join=1");
        coli_bk_device *dev = NULL;
        coli__alloc_fail_at(nth);
        coli_bk_status s = vk.open(&host.base.table, vk_device, &dev);
        for (uint32_t i = 0; i < 2 && !s; i++)
            s = vk.tensor_upload(dev, &w.sources[i], &w.tensors[i]);
        if (!s) s = vk.group_issue(dev, &w.group);
        coli_bk_result r = {.struct_size = sizeof r};
        if (!s) s = vk.group_take(dev, host.base.table.wait_limit_ns, &r);
        coli__alloc_fail_at(0);
        T_EQ(host.base.n_fail, s != COLI_BK_OK);
        if (s) T_EQ(s, COLI_BK_NOMEM);
        if (dev && s) { // and again, with enough
            for (uint32_t i = 0; i < 2; i++)
                if (!w.tensors[i])
                    VK_OK(&host, vk.tensor_upload(dev, &w.sources[i], &w.tensors[i]));
            VK_OK(&host, vk.group_issue(dev, &w.group));
            T_EQ(vk_take(&host, dev).n_row, 79);
        }
        for (uint32_t i = 0; i < 2; i++) {
            if (w.tensors[i]) vk.tensor_free(dev, w.tensors[i]);
            w.tensors[i] = NULL;
        }
        vk_shut(&host, dev);
        if (!s) break;
        n_failed++;
    }
    T_TRUE(n_failed > 8);
    vk_world_free(&w, NULL);
}

static void pinned_memory(void **state)
{
    T_BEGIN;
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1 work=1MiB");
    T_TRUE(!vk.host_alloc(dev, 0));
    T_TRUE(!vk.host_alloc(dev, UINT64_C(1) << 60));
    T_EQ(host.base.n_fail, 0);
    void *a = vk.host_alloc(dev, 1), *b = vk.host_alloc(dev, 100000);
    T_TRUE(a && b && (uintptr_t)b % 64 == 0);
    memset(b, 1, 100000);
    vk.host_free(dev, a);
    vk.host_free(dev, NULL);
    vk.host_free(dev, b);
    vk_shut(&host, dev);
}

/* ---- a device that does not answer ---------------------------------------------------------- */

/* A group that is not done in time: the device is lost, every later call says so at once, and
 * closing works. */
static void lost(void **state)
{
    T_BEGIN;
    t_rng rng = {6};
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "");
    vk_world w;
    static const uint32_t many[] = {200};
    vk_world_init(&w, &rng, plain, 512, 512, 8, many, 1);
    vk_world_upload(&w, &host, dev);
    VK_OK(&host, vk.group_issue(dev, &w.group));
    coli_bk_result r = {.struct_size = sizeof r};
    VK_FAILS(&host, vk.group_take(dev, 1, &r), COLI_BK_LOST, "was not done");
    VK_FAILS(&host, vk.group_take(dev, 1, &r), COLI_BK_LOST, "lost before");
    VK_FAILS(&host, vk.group_issue(dev, &w.group), COLI_BK_LOST, "lost before");
    VK_FAILS(&host, vk.tensor_overwrite(dev, w.tensors[0], &w.sources[0]), COLI_BK_LOST, "lost");
    coli_bk_tensor *t = NULL;
    coli_bk_fence fence = 0;
    coli_bk_mem_info info = {.struct_size = sizeof info};
    VK_FAILS(&host, vk.tensor_upload(dev, &w.sources[0], &t), COLI_BK_LOST, "lost before");
    VK_FAILS(&host, vk.tensor_overwrite_async(dev, w.tensors[0], &w.sources[0], &fence),
             COLI_BK_LOST, "lost before");
    VK_FAILS(&host, vk.matmul_batch(dev, NULL, 0), COLI_BK_LOST, "lost before");
    VK_FAILS(&host, vk.mem_info(dev, &info), COLI_BK_LOST, "lost before");
    VK_FAILS(&host, vk.fence_poll(dev, 1, 0), COLI_BK_LOST, "lost before");
    T_TRUE(!vk.host_alloc(dev, 64));
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

/* The same for calls that wait with the host's limit; and a fence that is not done is BUSY, not
 * lost. */
static void lost_with_the_hosts_limit(void **state)
{
    T_BEGIN;
    t_rng rng = {6};
    vk_host host;
    vk_host_init(&host, "");
    coli_bk_device *dev = NULL;
    host.base.table.wait_limit_ns = 1000;
    VK_OK(&host, vk.open(&host.base.table, vk_device, &dev));
    coli_bk_source s;
    T_OK(coli__ref_matrix_block(&rng.state, COLI_BK_I8_G64_F16, 4096, 4096, &s));
    coli_bk_tensor *t = NULL;
    VK_FAILS(&host, vk.tensor_upload(dev, &s, &t), COLI_BK_LOST, "no answer within");
    T_TRUE(!t);
    VK_FAILS(&host, vk.tensor_upload(dev, &s, &t), COLI_BK_LOST, "lost before");
    coli__free_aligned((void *)(uintptr_t)s.data);
    // The limit is over, so close either sees the device idle or leaves it alone, and says so.
    static coli_bk_device
        *left; // what is left is not forgotten, so it is no leak to a leak checker
    left = dev;
    vk.close(left);
    T_TRUE(host.n_warning == 1 || host.base.n_block == 0);
}

int main(void)
{
    vk_find_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_record_and_the_device),
        cmocka_unit_test(options_are_understood_or_refused),
        cmocka_unit_test(joins_where_they_are_exact),
        cmocka_unit_test(opened_again_and_again),
        cmocka_unit_test(two_at_once),
        cmocka_unit_test(wrong_tensors),
        cmocka_unit_test(rows_that_do_not_fit),
        cmocka_unit_test(wrong_groups),
        cmocka_unit_test(full_of_tensors),
        cmocka_unit_test(tensors_come_and_go),
        cmocka_unit_test(nothing_grows),
        cmocka_unit_test(no_memory_of_the_host),
        cmocka_unit_test(pinned_memory),
        cmocka_unit_test(lost),
        cmocka_unit_test(lost_with_the_hosts_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
