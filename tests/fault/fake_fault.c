/* fake_fault.c - the simulated device as its host sees it: memory, faults on request, time, and what
 * it says to a host that breaks its promises.  Through the loaded plugin alone. */
#include "fake_plugin.h"

#include <time.h>

#include "libcoli/src/backend/reference.h"
#include "libcoli/src/base/alloc.h"

/* ---- a small world ------------------------------------------------------------------------------ */

enum { D = 70, F = 100, GROUP = 64, N_GROUP = 2, N_SOURCE = 3, N_ROW = 2 };
#define ONE_MS UINT64_C(1000000)

/* Three experts of one shape and a matrix, two rows, and what each expert makes of them. */
static coli_bk_source experts[N_SOURCE], matrix;
static int8_t q[N_ROW * N_GROUP * GROUP];
static float d[N_ROW * N_GROUP], expert_y[N_SOURCE][N_ROW][D], matrix_y[N_ROW][F];
static uint64_t expert_bytes;

static int make_world(void **state)
{
    const uint32_t formats[3] = {COLI_BK_I4_G64_F16, COLI_BK_I4_G64_F16, COLI_BK_I8_G64_F16};
    uint64_t seed = 1;
    coli__ref_rows(&seed, N_ROW, D, GROUP, q, d);
    for (uint32_t e = 0; e < N_SOURCE; e++) {
        if (coli__ref_expert_block(&seed, formats, D, F, &experts[e]) != COLI_OK) return -1;
        for (uint32_t i = 0; i < N_ROW; i++) {
            bool in_range;
            coli__ref_expert(&experts[e], q + i * N_GROUP * GROUP, d + i * N_GROUP, expert_y[e][i],
                             &in_range);
        }
    }
    if (coli__ref_matrix_block(&seed, COLI_BK_I4_G64_F16, F, D, &matrix) != COLI_OK) return -1;
    for (uint32_t i = 0; i < N_ROW; i++)
        coli__ref_product(&matrix.matrix[0], matrix.data, q + i * N_GROUP * GROUP, d + i * N_GROUP,
                          matrix_y[i]);
    expert_bytes = experts[0].n_bytes;
    return fake_load(state);
}

static int free_world(void **state)
{
    (void)state;
    for (uint32_t e = 0; e < N_SOURCE; e++) coli__free_aligned((void *)(uintptr_t)experts[e].data);
    coli__free_aligned((void *)(uintptr_t)matrix.data);
    return 0;
}

/* A group of one expert with both rows. */
static const uint32_t both_rows[N_ROW] = {0, 1}, n_both = N_ROW;

static coli_bk_group group_of(coli_bk_tensor *const *expert)
{
    return (coli_bk_group){.struct_size = sizeof(coli_bk_group),
                           .n_expert = 1,
                           .experts = expert,
                           .n_row = &n_both,
                           .row = both_rows,
                           .n_x = N_ROW,
                           .group = GROUP,
                           .n_group = N_GROUP,
                           .q = q,
                           .d = d};
}

static coli_bk_matmul product_of(const coli_bk_tensor *w, float *y)
{
    return (coli_bk_matmul){.struct_size = sizeof(coli_bk_matmul),
                            .n_row = N_ROW,
                            .w = w,
                            .group = GROUP,
                            .n_group = N_GROUP,
                            .q = q,
                            .d = d,
                            .y = y,
                            .ld = F};
}

static coli_bk_tensor *upload(fake_host *h, coli_bk_device *dev, const coli_bk_source *s)
{
    coli_bk_tensor *t = NULL;
    T_BK(h, fake.tensor_upload(dev, s, &t), COLI_BK_OK, "");
    return t;
}

/* The tensor holds this expert, to the bit. */
static void check_expert(fake_host *h, coli_bk_device *dev, coli_bk_tensor *t, uint32_t e)
{
    coli_bk_result r = {.struct_size = sizeof r};
    const coli_bk_group g = group_of(&t);
    T_BK(h, fake.group_issue(dev, &g), COLI_BK_OK, "");
    T_BK(h, fake.group_take(dev, UINT64_MAX, &r), COLI_BK_OK, "");
    T_EQ(r.n_row, N_ROW);
    for (uint32_t i = 0; i < N_ROW; i++) {
        T_EQ(r.flag[i], 0);
        T_MEM(r.y + i * r.ld, expert_y[e][i], sizeof expert_y[e][i]);
    }
}

static uint64_t free_bytes(fake_host *h, coli_bk_device *dev)
{
    coli_bk_mem_info m = {.struct_size = sizeof m};
    T_BK(h, fake.mem_info(dev, &m), COLI_BK_OK, "");
    T_LE(m.free_bytes, m.total_bytes);
    return m.free_bytes;
}

/* Close a device whose host did everything right. */
static void close_clean(fake_host *h, coli_bk_device *dev)
{
    fake.close(dev);
    if (h->n_warning) print_error("%s\n", h->warning);
    T_EQ(h->n_warning, 0);
    T_EQ(h->n_alloc, 0);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- devices and options ------------------------------------------------------------------------ */

T_TEST(the_descriptor)
{
    T_BEGIN;
    T_STR(fake_info->magic, COLI_BK_MAGIC);
    T_EQ(fake_info->struct_size, sizeof *fake_info);
    T_EQ(fake_info->abi_major, COLI_BK_ABI_MAJOR);
    T_EQ(fake_info->abi_minor, COLI_BK_ABI_MINOR);
    T_STR(fake_info->name, "fake");
    T_TRUE(fake_info->build[0] != 0);
}

T_TEST(devices_and_what_they_say)
{
    T_BEGIN;
    fake_host h;
    fake_host_init(&h, "devices=3 vram=2GiB dev1.join=0 formats=int4 dev2.formats=none");
    uint32_t n = 0;
    T_BK(&h, fake.device_count(&h.table, &n), COLI_BK_OK, "");
    T_EQ(n, 3);
    for (uint32_t i = 0; i < n; i++) {
        coli_bk_device_info info = {.struct_size = sizeof info};
        T_BK(&h, fake.device_info(&h.table, i, &info), COLI_BK_OK, "");
        T_EQ(info.struct_size, sizeof info);
        T_EQ(info.kind, COLI_BK_SIMULATED);
        T_EQ(info.mem_total, INT64_C(2) << 30);
        T_EQ(info.flags, i == 1 ? 0 : COLI_BK_CAN_JOIN);
        T_EQ(info.formats, i == 2 ? 0 : 0xFC0);
        T_STR(info.unusable, "");
    }
    coli_bk_device_info info = {.struct_size = sizeof info};
    coli_bk_device *dev = NULL;
    T_BK(&h, fake.device_info(&h.table, 3, &info), COLI_BK_INVALID, "no device 3");
    T_BK(&h, fake.open(&h.table, 3, &dev), COLI_BK_INVALID, "no device 3");
    T_TRUE(!dev);
    fake.close(NULL);
}

T_TEST(an_unknown_knob_opens_nothing)
{
    T_BEGIN;
    fake_host h;
    fake_host_init(&h, "vram=1GiB speed=11");
    uint32_t n = 77;
    coli_bk_device_info info = {.struct_size = sizeof info};
    coli_bk_device *dev = NULL;
    T_BK(&h, fake.device_count(&h.table, &n), COLI_BK_INVALID, "fake: \"speed=11\": expected");
    T_BK(&h, fake.device_info(&h.table, 0, &info), COLI_BK_INVALID, "\"speed=11\"");
    T_BK(&h, fake.open(&h.table, 0, &dev), COLI_BK_INVALID, "\"speed=11\"");
    T_EQ(n, 77);
    T_TRUE(!dev);
}

/* A host that knows less gets less; one that knows more is not looked at beyond. */
T_TEST(structs_of_other_sizes)
{
    T_BEGIN;
    fake_host h;
    fake_host_init(&h, "");
    struct {
        coli_bk_device_info info;
        uint8_t behind[64];
    } large;
    memset(&large, 0xA5, sizeof large);
    large.info.struct_size = sizeof large;
    T_BK(&h, fake.device_info(&h.table, 0, &large.info), COLI_BK_OK, "");
    T_EQ(large.info.struct_size, sizeof large);
    for (size_t i = 0; i < sizeof large.behind; i++) T_EQ(large.behind[i], 0xA5);

    coli_bk_device_info small;
    memset(&small, 0xA5, sizeof small);
    small.struct_size = offsetof(coli_bk_device_info, mem_total);
    T_BK(&h, fake.device_info(&h.table, 0, &small), COLI_BK_OK, "");
    T_EQ(small.kind, COLI_BK_SIMULATED);
    T_EQ((uint8_t)small.name[0], 0xA5);
    T_TRUE(small.mem_total == UINT64_C(0xA5A5A5A5A5A5A5A5));

    // a host that is too small to tell anything
    h.table.struct_size = offsetof(coli_bk_host, options);
    coli_bk_device *dev = NULL;
    T_EQ(fake.open(&h.table, 0, &dev), COLI_BK_INVALID);

    // a host of 1.0, whose groups have no joins: what stands there is not read
    dev = fake_open(&h, "");
    coli_bk_tensor *t = upload(&h, dev, &experts[0]);
    coli_bk_group g = group_of(&t);
    memset(&g.n_join, 0xA5, sizeof g - offsetof(coli_bk_group, n_join));
    g.struct_size = offsetof(coli_bk_group, n_join);
    T_BK(&h, fake.group_issue(dev, &g), COLI_BK_OK, "");
    coli_bk_result r = {.struct_size = sizeof r};
    T_BK(&h, fake.group_take(dev, UINT64_MAX, &r), COLI_BK_OK, "");
    T_EQ(r.n_row, N_ROW);
    fake.tensor_free(dev, t);
    close_clean(&h, dev);
}

/* Optional services are not called when they are absent. */
T_TEST(a_host_without_log_and_clock)
{
    T_BEGIN;
    fake_host h;
    fake_host_init(&h, "");
    h.table.log = NULL;
    h.table.clock_ns = NULL;
    coli_bk_device *dev = NULL;
    T_BK(&h, fake.open(&h.table, 0, &dev), COLI_BK_OK, "");
    upload(&h, dev, &experts[0]);
    fake.close(dev); // would warn
    T_EQ(h.n_warning, 0);
}

/* ---- memory --------------------------------------------------------------------------------------- */

T_TEST(memory_is_counted_in_pages)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "vram=1MiB page=64KiB");
    T_EQ(fake.alloc_footprint(dev, 0), 0);
    T_EQ(fake.alloc_footprint(dev, 1), 65536);
    T_EQ(fake.alloc_footprint(dev, 65536), 65536);
    T_EQ(fake.alloc_footprint(dev, 65537), 131072);
    T_TRUE(fake.alloc_footprint(dev, UINT64_MAX) == UINT64_MAX);
    const uint64_t each = fake.alloc_footprint(dev, expert_bytes);
    coli_bk_tensor *t[16];
    uint32_t n = 0;
    for (; free_bytes(&h, dev) >= each; n++) t[n] = upload(&h, dev, &experts[n % N_SOURCE]);
    T_EQ(n, (1 << 20) / each);
    for (uint32_t round = 0; round < 20; round++) {
        coli_bk_tensor *none = (coli_bk_tensor *)&h;
        T_BK(&h, fake.tensor_upload(dev, &experts[0], &none), COLI_BK_NOMEM, "needs");
        T_TRUE(none == (coli_bk_tensor *)&h);
        const uint32_t i = round % n;
        fake.tensor_free(dev, t[i]);
        T_EQ(free_bytes(&h, dev), (1 << 20) - (n - 1) * each);
        t[i] = upload(&h, dev, &experts[i % N_SOURCE]);
    }
    for (uint32_t i = 0; i < n; i++) check_expert(&h, dev, t[i], i % N_SOURCE);
    for (uint32_t i = 0; i < n; i++) fake.tensor_free(dev, t[i]);
    fake.tensor_free(dev, NULL);
    T_EQ(free_bytes(&h, dev), 1 << 20);
    close_clean(&h, dev);
}

/* Thousands of tensors: handles are used again, and a handle that was freed is told apart. */
T_TEST(handles)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "");
    coli_bk_tensor *first = upload(&h, dev, &experts[0]), *t = NULL;
    fake.tensor_free(dev, first);
    const coli_bk_group g = group_of(&first);
    T_BK(&h, fake.group_issue(dev, &g), COLI_BK_INVALID, "was freed");
    T_BK(&h, fake.tensor_overwrite(dev, first, &experts[0]), COLI_BK_INVALID, "was freed");
    T_EQ(h.n_warning, 0);
    fake.tensor_free(dev, first);
    T_EQ(h.n_warning, 1);
    T_TRUE(strstr(h.warning, "freed before") != NULL);
    for (uint32_t i = 0; i < 5000; i++) {
        t = upload(&h, dev, &experts[i % N_SOURCE]);
        if (i % 1000 == 0) check_expert(&h, dev, t, i % N_SOURCE);
        fake.tensor_free(dev, t);
    }
    T_EQ(free_bytes(&h, dev), INT64_C(8) << 30);
    T_EQ(h.n_warning, 1);
    fake.close(dev);

    // of another device
    fake_host h2;
    coli_bk_device *a = fake_open(&h, ""), *b = fake_open(&h2, "");
    t = upload(&h, a, &experts[0]);
    const coli_bk_group other = group_of(&t);
    T_BK(&h2, fake.group_issue(b, &other), COLI_BK_INVALID, "another device");
    T_BK(&h2, fake.tensor_overwrite(b, t, &experts[1]), COLI_BK_INVALID, "another device");
    fake.tensor_free(b, t);
    T_EQ(h2.n_warning, 1);
    check_expert(&h, a, t, 0);
    fake.tensor_free(a, t);
    close_clean(&h, a);
    fake.close(b);
}

T_TEST(wrong_sources)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "dev0.formats=int4-g64-f16,int8-g64-f16");
    coli_bk_tensor *t = upload(&h, dev, &experts[0]);
    const uint64_t before = free_bytes(&h, dev);
    for (uint32_t i = 0;; i++) {
        coli_bk_source s = experts[1];
        coli_bk_status expected = COLI_BK_INVALID;
        const char *text = "";
        switch (i) {
            // clang-format off
        case 0: s.struct_size -= 8; text = "struct_size"; break;
        case 1: s.n_matrix = 2; text = "n_matrix"; break;
        case 2: s.n_matrix = 0; text = "n_matrix"; break;
        case 3: s.data = NULL; text = "data is NULL"; break;
        case 4: s.data = (const char *)s.data + 32; text = "64-byte aligned"; break;
        case 5: s.n_bytes = 0; text = "n_bytes"; break;
        case 6: s.n_bytes -= 8; text = "n_bytes"; break;
        case 7: s.n_bytes -= 32; text = "beyond the block"; break;
        case 8: s.matrix[2].offset += 64; text = "beyond the block"; break;
        case 9: s.matrix[1].offset = UINT64_MAX - 63; text = "beyond the block"; break;
        case 10: s.matrix[1].offset += 32; text = "multiple of 64"; break;
        case 11: s.matrix[0].format = COLI_BK_N_FORMAT; text = "unknown"; break;
        case 12: s.matrix[0].n_out = 0; text = "no rows"; break;
        case 13: s.matrix[0].n_in = UINT32_C(1) << 31; text = "2^31"; break;
        case 14: s.matrix[2].scale_exp = 61; text = "scale_exp"; break;
        case 15: s.matrix[2].scale_exp = -61; text = "scale_exp"; break;
        case 16: s.matrix[1].n_out--; text = "gate (f, d)"; break;
        case 17: s.matrix[2].n_out--; text = "gate (f, d)"; break;
        case 18: s.matrix[1].format = COLI_BK_I4_G32_F16; s.n_bytes *= 2; text = "different groups"; break;
        case 19: s.matrix[2].format = COLI_BK_I4_ROW_F32; expected = COLI_BK_UNSUPPORTED; text = "format"; break;
            // clang-format on
        default:
            T_BK(&h, fake.tensor_upload(dev, NULL, &t), COLI_BK_INVALID, "source is NULL");
            T_BK(&h, fake.tensor_upload(dev, &s, NULL), COLI_BK_INVALID, "out is NULL");
            T_EQ(free_bytes(&h, dev), before);
            check_expert(&h, dev, t, 0);
            // right, but another shape
            T_BK(&h, fake.tensor_overwrite(dev, t, &matrix), COLI_BK_INVALID, "shape");
            s.n_matrix = 1;
            T_BK(&h, fake.tensor_overwrite(dev, t, &s), COLI_BK_INVALID, "shape");
            check_expert(&h, dev, t, 0);
            fake.tensor_free(dev, t);
            close_clean(&h, dev);
            return;
        }
        coli_bk_tensor *none = NULL;
        coli_bk_fence fence = 0;
        T_BK(&h, fake.tensor_upload(dev, &s, &none), expected, text);
        T_TRUE(!none);
        T_BK(&h, fake.tensor_overwrite(dev, t, &s), COLI_BK_INVALID, "");
        T_BK(&h, fake.tensor_overwrite_async(dev, t, &s, &fence), COLI_BK_INVALID, "");
        T_EQ(fence, 0);
    }
}

T_TEST(pinned_memory)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "pinned=64KiB");
    char *a = fake.host_alloc(dev, 40000), *b = fake.host_alloc(dev, 20000);
    T_TRUE(a && b && (uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0);
    memset(a, 1, 40000);
    memset(b, 2, 20000);
    T_TRUE(!fake.host_alloc(dev, 6000));
    T_TRUE(!fake.host_alloc(dev, UINT64_MAX));
    fake.host_free(dev, a);
    a = fake.host_alloc(dev, 45536);
    T_TRUE(a != NULL);
    T_TRUE(!fake.host_alloc(dev, 1));
    T_EQ(b[0], 2);
    fake.host_free(dev, b);
    fake.host_free(dev, a);
    fake.host_free(dev, NULL);
    T_EQ(h.n_alloc, 0);
    T_EQ(h.n_fail, 0);
    T_TRUE(fake.host_alloc(dev, 100) != NULL);
    fake.close(dev); // gives it back, and says so
    T_EQ(h.n_alloc, 0);
    T_TRUE(strstr(h.warning, "100 bytes of host_alloc") != NULL);
}

/* ---- overwrites -------------------------------------------------------------------------------------- */

T_TEST(overwrites_and_fences)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "");
    coli_bk_tensor *t[N_SOURCE];
    coli_bk_fence fence[N_SOURCE];
    for (uint32_t e = 0; e < N_SOURCE; e++) t[e] = upload(&h, dev, &experts[0]);
    const uint64_t before = free_bytes(&h, dev);
    T_BK(&h, fake.tensor_overwrite(dev, t[0], &experts[1]), COLI_BK_OK, "");
    check_expert(&h, dev, t[0], 1);

    T_BK(&h, fake.fence_poll(dev, 1, 0), COLI_BK_INVALID, "no fence 1");
    for (uint32_t e = 0; e < N_SOURCE; e++)
        T_BK(&h, fake.tensor_overwrite_async(dev, t[e], &experts[2 - e], &fence[e]), COLI_BK_OK,
             "");
    for (uint32_t e = N_SOURCE; e-- > 0;) { // any order, and again
        T_NE(fence[e], 0);
        T_BK(&h, fake.fence_poll(dev, fence[e], UINT64_MAX), COLI_BK_OK, "");
        T_BK(&h, fake.fence_poll(dev, fence[e], 0), COLI_BK_OK, "");
    }
    T_BK(&h, fake.fence_poll(dev, 0, 0), COLI_BK_INVALID, "no fence 0");
    T_BK(&h, fake.fence_poll(dev, fence[2] + 1, 0), COLI_BK_INVALID, "no fence");
    for (uint32_t e = 0; e < N_SOURCE; e++) check_expert(&h, dev, t[e], 2 - e);
    T_EQ(free_bytes(&h, dev), before);
    for (uint32_t e = 0; e < N_SOURCE; e++) fake.tensor_free(dev, t[e]);
    close_clean(&h, dev);
}

/* After a torn or failed overwrite the tensor may only be freed. */
T_TEST(torn_overwrites)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev =
        fake_open(&h, "tear=tensor_overwrite:2:100,tensor_overwrite_async:2:100 "
                      "fail=tensor_overwrite:4,tensor_overwrite_async:3,fence_poll:5");
    for (uint32_t kind = 0; kind < 5; kind++) {
        coli_bk_tensor *t = upload(&h, dev, &experts[0]);
        coli_bk_fence fence = 0;
        if (kind == 0) {
            T_BK(&h, fake.tensor_overwrite(dev, t, &experts[1]), COLI_BK_OK, "");
            T_BK(&h, fake.tensor_overwrite(dev, t, &experts[1]), COLI_BK_FAILED, "after 100 bytes");
        } else if (kind == 1) {
            T_BK(&h, fake.tensor_overwrite(dev, t, &experts[1]), COLI_BK_FAILED, "call 4: fails");
        } else if (kind == 2) {
            T_BK(&h, fake.tensor_overwrite_async(dev, t, &experts[1], &fence), COLI_BK_OK, "");
            T_BK(&h, fake.fence_poll(dev, fence, UINT64_MAX), COLI_BK_OK, "");
            T_BK(&h, fake.tensor_overwrite_async(dev, t, &experts[1], &fence), COLI_BK_OK, "");
            T_BK(&h, fake.fence_poll(dev, fence, UINT64_MAX), COLI_BK_FAILED, "the copy failed");
            T_BK(&h, fake.fence_poll(dev, fence, 0), COLI_BK_FAILED, "the copy failed");
        } else if (kind == 3) {
            T_BK(&h, fake.tensor_overwrite_async(dev, t, &experts[1], &fence), COLI_BK_FAILED, "");
        } else {
            // poll 5 fails; the copy is then over, whether it was done or not
            T_BK(&h, fake.tensor_overwrite_async(dev, t, &experts[1], &fence), COLI_BK_OK, "");
            T_BK(&h, fake.fence_poll(dev, 1, 0), COLI_BK_OK, "");
            T_BK(&h, fake.fence_poll(dev, fence, UINT64_MAX), COLI_BK_FAILED, "call 5: fails");
            fake.tensor_free(dev, t);
            continue;
        }
        const coli_bk_group g = group_of(&t);
        T_BK(&h, fake.group_issue(dev, &g), COLI_BK_INVALID, "only be freed");
        T_BK(&h, fake.tensor_overwrite(dev, t, &experts[1]), COLI_BK_INVALID, "only be freed");
        fake.tensor_free(dev, t);
    }
    T_EQ(free_bytes(&h, dev), INT64_C(8) << 30);
    close_clean(&h, dev);
}

/* ---- groups and products --------------------------------------------------------------------------- */

T_TEST(wrong_groups)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "dev0.join=1");
    uint64_t seed = 5;
    coli_bk_source other;
    const uint32_t formats[3] = {COLI_BK_I4_G64_F32, COLI_BK_I4_G64_F32, COLI_BK_I4_G64_F32};
    T_OK(coli__ref_expert_block(&seed, formats, D, F, &other));
    coli_bk_tensor *t = upload(&h, dev, &experts[0]), *m = upload(&h, dev, &matrix),
                   *o = upload(&h, dev, &other);
    coli_bk_tensor *mixed[2] = {t, o}, *none = NULL;
    const uint32_t rows[2] = {1, 1}, many[2] = {UINT32_MAX, 1}, beyond[2] = {0, 2},
                   pairs[2] = {0, 0}, pair2[2] = {0, 2};
    const float weights[2] = {1, 1};
    const coli_bk_join join = {0, 2}, far = {1, 2}, wrapped = {UINT32_MAX, 2};
    for (uint32_t i = 0;; i++) {
        coli_bk_group g = group_of(&t);
        g.n_join = 1;
        g.n_term = 2;
        g.joins = &join;
        g.term_pair = both_rows;
        g.term_weight = weights;
        const char *text = NULL;
        switch (i) {
            // clang-format off
        case 0: g.struct_size = offsetof(coli_bk_group, d); text = "struct_size"; break;
        case 1: g.experts = NULL; text = "NULL"; break;
        case 2: g.n_row = NULL; text = "NULL"; break;
        case 3: g.row = NULL; text = "NULL"; break;
        case 4: g.q = NULL; text = "NULL"; break;
        case 5: g.d = NULL; text = "NULL"; break;
        case 6: g.experts = &none; text = "NULL"; break;
        case 7: g.experts = &m; text = "a matrix, not an expert"; break;
        case 8: g.n_expert = 2; g.experts = mixed; g.n_row = rows; text = "differ"; break;
        case 9: g.n_expert = 2; g.experts = mixed; g.n_row = many; text = "2^32"; break;
        case 10: g.row = beyond; text = "below n_x"; break;
        case 11: g.group = 32; text = "group and n_group"; break;
        case 12: g.n_group = 1; text = "group and n_group"; break;
        case 13: g.joins = NULL; text = "NULL"; break;
        case 14: g.term_pair = NULL; text = "NULL"; break;
        case 15: g.term_weight = NULL; text = "NULL"; break;
        case 16: g.joins = &far; text = "beyond n_term"; break;
        case 17: g.joins = &wrapped; text = "beyond n_term"; break;
        case 18: g.term_pair = pairs; text = "twice"; break;
        case 19: g.term_pair = pair2; text = "no pair"; break;
            // clang-format on
        default:
            break;
        }
        if (!text) break;
        coli_bk_result r = {.struct_size = sizeof r};
        T_BK(&h, fake.group_issue(dev, &g), COLI_BK_INVALID, text);
        T_BK(&h, fake.group_take(dev, 0, &r), COLI_BK_EMPTY, "");
        check_expert(&h, dev, t, 0);
    }
    T_BK(&h, fake.group_issue(dev, NULL), COLI_BK_INVALID, "NULL");
    fake.tensor_free(dev, t);
    fake.tensor_free(dev, m);
    fake.tensor_free(dev, o);
    close_clean(&h, dev);
    coli__free_aligned((void *)(uintptr_t)other.data);
}

T_TEST(joins_are_refused_where_they_were_not_announced)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "join=0");
    coli_bk_tensor *t = upload(&h, dev, &experts[0]);
    coli_bk_group g = group_of(&t);
    const coli_bk_join join = {0, 0};
    g.n_join = 1;
    g.joins = &join;
    T_BK(&h, fake.group_issue(dev, &g), COLI_BK_INVALID, "cannot do");
    g.n_join = 0;
    T_BK(&h, fake.group_issue(dev, &g), COLI_BK_OK, "");
    fake.close(dev); // without a take
}

T_TEST(wrong_products)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "");
    coli_bk_tensor *w = upload(&h, dev, &matrix), *e = upload(&h, dev, &experts[0]);
    for (uint32_t i = 0;; i++) {
        float y[N_ROW][F] = {{0}};
        const float zero[N_ROW][F] = {{0}};
        coli_bk_matmul right = product_of(w, y[0]), a = right;
        const coli_bk_matmul *const batch[2] = {&right, &a};
        const char *text = NULL;
        switch (i) {
            // clang-format off
        case 0: a.struct_size = offsetof(coli_bk_matmul, ld); text = "struct_size"; break;
        case 1: a.w = NULL; text = "NULL"; break;
        case 2: a.w = e; text = "an expert, not a matrix"; break;
        case 3: a.group = 32; text = "group and n_group"; break;
        case 4: a.n_group = 3; text = "group and n_group"; break;
        case 5: a.q = NULL; text = "NULL"; break;
        case 6: a.d = NULL; text = "NULL"; break;
        case 7: a.y = NULL; text = "NULL"; break;
        case 8: a.ld = F - 1; text = "ld"; break;
            // clang-format on
        default:
            break;
        }
        if (!text) {
            T_BK(&h, fake.matmul_batch(dev, batch, 2), COLI_BK_OK, "");
            T_MEM(y, matrix_y, sizeof y);
            break;
        }
        T_BK(&h, fake.matmul(dev, &a), COLI_BK_INVALID, text);
        T_BK(&h, fake.matmul_batch(dev, batch, 2), COLI_BK_INVALID, text); // all or nothing
        T_MEM(y, zero, sizeof y);
    }
    T_BK(&h, fake.matmul(dev, NULL), COLI_BK_INVALID, "NULL");
    T_BK(&h, fake.matmul_batch(dev, NULL, 1), COLI_BK_INVALID, "NULL");
    T_BK(&h, fake.matmul_batch(dev, NULL, 0), COLI_BK_OK, "");
    fake.tensor_free(dev, w);
    fake.tensor_free(dev, e);
    close_clean(&h, dev);
}

/* ---- a run of all entries ------------------------------------------------------------------------------ */

/* One call of each entry that returns a status, in an order in which all succeed, and what else it
 * takes.  The run goes on after failures, as far as it makes sense. */
#define RUN(X)                                                                                     \
    X(mem_info)                                                                                    \
    X(tensor_upload)                                                                               \
    X(tensor_overwrite)                                                                            \
    X(tensor_overwrite_async)                                                                      \
    X(fence_poll)                                                                                  \
    X(group_issue)                                                                                 \
    X(group_take)                                                                                  \
    X(matmul)                                                                                      \
    X(matmul_batch)                                                                                \
    X(group_stats)

enum {
#define RUN_ENUM(name) RUN_##name,
    RUN(RUN_ENUM)
#undef RUN_ENUM
        N_RUN
};
static const char *const run_names[N_RUN] = {
#define RUN_NAME(name) #name,
    RUN(RUN_NAME)
#undef RUN_NAME
};

/* The statuses of one run. */
static void run_all(fake_host *h, coli_bk_device *dev, coli_bk_status status[N_RUN])
{
    coli_bk_mem_info memory = {.struct_size = sizeof memory};
    coli_bk_group_stats stats = {.struct_size = sizeof stats};
    coli_bk_result r = {.struct_size = sizeof r};
    coli_bk_tensor *t = NULL, *t2 = NULL, *w = NULL;
    coli_bk_fence fence = 0;
    float y[N_ROW][F] = {{0}};
    const uint32_t fails_before = h->n_fail;
    for (uint32_t i = 0; i < N_RUN; i++) status[i] = COLI_BK_EMPTY;

    status[RUN_mem_info] = fake.mem_info(dev, &memory);
    status[RUN_tensor_upload] = fake.tensor_upload(dev, &experts[0], &t);
    fake.tensor_upload(dev, &experts[0], &t2);
    fake.tensor_upload(dev, &matrix, &w);
    if (t) status[RUN_tensor_overwrite] = fake.tensor_overwrite(dev, t, &experts[1]);
    if (t2)
        status[RUN_tensor_overwrite_async] =
            fake.tensor_overwrite_async(dev, t2, &experts[2], &fence);
    if (fence) status[RUN_fence_poll] = fake.fence_poll(dev, fence, UINT64_MAX);
    if (status[RUN_tensor_overwrite] == COLI_BK_OK) {
        const coli_bk_group g = group_of(&t);
        status[RUN_group_issue] = fake.group_issue(dev, &g);
        if (status[RUN_group_issue] == COLI_BK_OK)
            status[RUN_group_take] = fake.group_take(dev, UINT64_MAX, &r);
        if (status[RUN_group_take] == COLI_BK_OK) T_MEM(r.y, expert_y[1][0], sizeof expert_y[1][0]);
    }
    const coli_bk_matmul a = product_of(w, y[0]), *const batch = &a;
    if (w) status[RUN_matmul] = fake.matmul(dev, &a);
    if (w) status[RUN_matmul_batch] = fake.matmul_batch(dev, &batch, 1);
    status[RUN_group_stats] = fake.group_stats(dev, &stats);
    if (status[RUN_matmul] == COLI_BK_OK) T_MEM(y, matrix_y, sizeof y);

    uint32_t n_text = 0;
    for (uint32_t i = 0; i < N_RUN; i++)
        n_text += status[i] != COLI_BK_OK && status[i] != COLI_BK_EMPTY;
    T_GE(h->n_fail - fails_before, n_text);
    T_LE(h->n_fail - fails_before, n_text + 2); // of the other uploads
    fake.tensor_free(dev, t);
    fake.tensor_free(dev, t2);
    fake.tensor_free(dev, w);
}

T_TEST(each_entry_fails_once)
{
    T_BEGIN;
    for (uint32_t i = 0; i < N_RUN; i++) {
        char options[64];
        // a round uploads three times, and asks twice for the memory
        const uint32_t call = i == RUN_tensor_upload ? 4 : i == RUN_mem_info ? 3 : 2;
        snprintf(options, sizeof options, "fail=%s:%u", run_names[i], call);
        fake_host h;
        coli_bk_device *dev = fake_open(&h, options);
        for (uint32_t round = 0; round < 3; round++) {
            coli_bk_status status[N_RUN];
            run_all(&h, dev, status);
            for (uint32_t k = 0; k < N_RUN; k++) {
                const bool fails = round == 1 && k == i;
                // what a failure makes senseless was left out
                if (fails || round != 1) T_EQ(status[k], fails ? COLI_BK_FAILED : COLI_BK_OK);
            }
            T_EQ(free_bytes(&h, dev), INT64_C(8) << 30);
        }
        close_clean(&h, dev);
    }
}

T_TEST(entries_without_a_status_fail_too)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "fail=host_alloc:2,alloc_footprint:2+");
    void *a = fake.host_alloc(dev, 100), *b = fake.host_alloc(dev, 100),
         *c = fake.host_alloc(dev, 9);
    T_TRUE(a && !b && c);
    T_EQ(fake.alloc_footprint(dev, 5), 65536);
    T_EQ(fake.alloc_footprint(dev, 5), 0);
    T_EQ(fake.alloc_footprint(dev, 5), 0);
    T_EQ(h.n_fail, 0);
    fake.host_free(dev, a);
    fake.host_free(dev, c);
    close_clean(&h, dev);
}

/* A take that fails loses the group, not the device. */
T_TEST(a_lost_group)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "fail=group_take:1");
    coli_bk_tensor *t = upload(&h, dev, &experts[0]);
    const coli_bk_group g = group_of(&t);
    coli_bk_result r = {.struct_size = sizeof r};
    T_BK(&h, fake.group_issue(dev, &g), COLI_BK_OK, "");
    T_BK(&h, fake.group_take(dev, UINT64_MAX, &r), COLI_BK_FAILED, "call 1: fails on request");
    T_TRUE(!r.y);
    T_BK(&h, fake.group_take(dev, UINT64_MAX, &r), COLI_BK_EMPTY, "");
    T_BK(&h, fake.tensor_overwrite(dev, t, &experts[1]), COLI_BK_OK, "");
    check_expert(&h, dev, t, 1);
    fake.tensor_free(dev, t);
    close_clean(&h, dev);
}

/* The three entries without a device are counted since the plugin was loaded: fail all from 1 on. */
T_TEST(looking_and_opening_fail)
{
    T_BEGIN;
    fake_host h;
    fake_host_init(&h, "fail=device_count:1+,device_info:1+,open:1+");
    uint32_t n = 77;
    coli_bk_device_info info = {.struct_size = sizeof info};
    coli_bk_device *dev = NULL;
    T_BK(&h, fake.device_count(&h.table, &n), COLI_BK_FAILED, "fake: device_count: call");
    T_BK(&h, fake.device_info(&h.table, 0, &info), COLI_BK_FAILED, "fake: device_info: call");
    T_BK(&h, fake.open(&h.table, 0, &dev), COLI_BK_FAILED, "fake: open: call");
    T_EQ(n, 77);
    T_STR(info.name, "");
    T_TRUE(!dev);
}

T_TEST(each_optional_entry_is_refused)
{
    T_BEGIN;
    static const uint32_t optional[] = {RUN_tensor_overwrite, RUN_tensor_overwrite_async,
                                        RUN_fence_poll,       RUN_matmul,
                                        RUN_matmul_batch,     RUN_group_stats};
    for (uint32_t i = 0; i < sizeof optional / sizeof *optional; i++) {
        char options[64];
        snprintf(options, sizeof options, "refuse=%s", run_names[optional[i]]);
        fake_host h;
        coli_bk_device *dev = fake_open(&h, options);
        for (uint32_t round = 0; round < 2; round++) {
            coli_bk_status status[N_RUN];
            run_all(&h, dev, status);
            // who cannot poll cannot overwrite in the background either
            const uint32_t refused =
                optional[i] == RUN_fence_poll ? RUN_tensor_overwrite_async : optional[i];
            T_EQ(status[refused], COLI_BK_UNSUPPORTED);
            T_TRUE(strstr(h.message, "refused on request") != NULL);
        }
        close_clean(&h, dev);
    }
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "refuse=host_alloc,alloc_footprint");
    T_TRUE(!fake.host_alloc(dev, 100));
    T_EQ(fake.alloc_footprint(dev, 100), 0);
    T_EQ(h.n_fail, 0);
    close_clean(&h, dev);
}

/* A refused overwrite leaves the content alone. */
T_TEST(the_example_of_the_manual)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "devices=2 vram=8GiB link=12GB/s refuse=tensor_overwrite "
                                        "fail=tensor_upload:5 lose=37");
    coli_bk_tensor *t[6] = {NULL};
    for (uint32_t i = 0; i < 6; i++) // calls 1..6
        T_BK(&h, fake.tensor_upload(dev, &experts[i % N_SOURCE], &t[i]),
             i == 4 ? COLI_BK_FAILED : COLI_BK_OK, "call 5: fails on request");
    T_BK(&h, fake.tensor_overwrite(dev, t[0], &experts[1]), COLI_BK_UNSUPPORTED, "refused"); // 7
    for (uint32_t i = 0; i < 14; i++) check_expert(&h, dev, t[0], 0); // 8..35
    free_bytes(&h, dev);                                              // 36
    coli_bk_mem_info m = {.struct_size = sizeof m};
    T_BK(&h, fake.mem_info(dev, &m), COLI_BK_LOST, "call 2: the device is lost");
    T_BK(&h, fake.mem_info(dev, &m), COLI_BK_LOST, "the device is lost");
    for (uint32_t i = 0; i < 6; i++) fake.tensor_free(dev, t[i]);
    close_clean(&h, dev);
}

T_TEST(lost_at_every_call)
{
    T_BEGIN;
    for (uint32_t n = 1; n <= 32; n++) {
        char options[64];
        snprintf(options, sizeof options, "lose=%u", n);
        fake_host h;
        coli_bk_device *dev = fake_open(&h, options);
        coli_bk_status status[2][N_RUN];
        run_all(&h, dev, status[0]); // 15 calls
        run_all(&h, dev, status[1]);
        bool is_lost = false;
        for (uint32_t i = 0; i < 2 * N_RUN; i++) {
            const coli_bk_status s = status[i / N_RUN][i % N_RUN];
            is_lost |= s == COLI_BK_LOST;
            if (is_lost)
                T_TRUE(s == COLI_BK_LOST || s == COLI_BK_EMPTY); // or not called
            else
                T_EQ(s, COLI_BK_OK);
        }
        T_EQ(is_lost, n <= 27); // the last three calls are frees
        if (is_lost) T_TRUE(strstr(h.message, "the device is lost") != NULL);
        if (is_lost) {
            T_TRUE(!fake.host_alloc(dev, 1));
            T_EQ(fake.alloc_footprint(dev, 1), 0);
        }
        close_clean(&h, dev);
    }
}

/* A device whose call hangs: that call waits as long as it may, then everything fails at once. */
T_TEST(each_waiting_entry_hangs)
{
    T_BEGIN;
    for (uint32_t i = 0; i < N_RUN; i++) {
        if (i == RUN_mem_info || i == RUN_group_stats) continue; // they do not wait
        if (i == RUN_tensor_overwrite_async) continue;           // below
        char options[64];
        snprintf(options, sizeof options, "hang=%s:1", run_names[i]);
        fake_host h;
        fake_host_init(&h, options);
        h.table.wait_limit_ns = 30 * ONE_MS;
        coli_bk_device *dev = NULL;
        T_BK(&h, fake.open(&h.table, 0, &dev), COLI_BK_OK, "");
        coli_bk_status status[N_RUN];
        const double before = now_ms();
        run_all(&h, dev, status);
        T_FGE(now_ms() - before, 29);
        T_EQ(status[i == RUN_group_issue ? RUN_group_take : i], COLI_BK_LOST);
        T_EQ(status[RUN_group_stats], COLI_BK_LOST);
        close_clean(&h, dev);
    }
}

/* A copy in the background that hangs, and one behind it: the fences are not ready until the limit,
 * then the device is lost, and the sources are the host's again. */
T_TEST(a_copy_hangs)
{
    T_BEGIN;
    fake_host h;
    fake_host_init(&h, "hang=tensor_overwrite_async:1");
    h.table.wait_limit_ns = 30 * ONE_MS;
    coli_bk_device *dev = NULL;
    T_BK(&h, fake.open(&h.table, 0, &dev), COLI_BK_OK, "");
    coli_bk_tensor *a = upload(&h, dev, &experts[0]), *b = upload(&h, dev, &experts[1]);
    coli_bk_fence first = 0, second = 0;
    const double before = now_ms();
    T_BK(&h, fake.tensor_overwrite_async(dev, a, &experts[2], &first), COLI_BK_OK, "");
    T_BK(&h, fake.tensor_overwrite_async(dev, b, &experts[2], &second), COLI_BK_OK, "");
    T_BK(&h, fake.fence_poll(dev, second, 0), COLI_BK_BUSY, "");
    while (fake.fence_poll(dev, first, 5 * ONE_MS) == COLI_BK_BUSY) T_FLE(now_ms() - before, 10000);
    T_FGE(now_ms() - before, 29);
    T_BK(&h, fake.fence_poll(dev, second, 0), COLI_BK_LOST, "lost");
    fake.tensor_free(dev, a);
    fake.tensor_free(dev, b);
    close_clean(&h, dev);
}

/* group_take's own limit counts too, when it is the shorter one. */
T_TEST(a_take_has_a_limit)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "hang=group_issue:1");
    coli_bk_tensor *t = upload(&h, dev, &experts[0]);
    const coli_bk_group g = group_of(&t);
    coli_bk_result r = {.struct_size = sizeof r};
    T_BK(&h, fake.group_issue(dev, &g), COLI_BK_OK, "");
    T_BK(&h, fake.group_issue(dev, &g), COLI_BK_BUSY, "");
    const double before = now_ms();
    T_BK(&h, fake.group_take(dev, 20 * ONE_MS, &r), COLI_BK_LOST, "within the limit");
    T_FGE(now_ms() - before, 19);
    fake.tensor_free(dev, t);
    close_clean(&h, dev);
}

/* ---- promises of the host ------------------------------------------------------------------------------- */

T_TEST(a_tensor_of_a_group_that_was_not_taken)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "");
    coli_bk_tensor *t = upload(&h, dev, &experts[0]), *other = upload(&h, dev, &experts[1]);
    const coli_bk_group g = group_of(&t);
    coli_bk_result r = {.struct_size = sizeof r};
    coli_bk_fence fence = 0;
    T_BK(&h, fake.group_issue(dev, &g), COLI_BK_OK, "");
    T_BK(&h, fake.tensor_overwrite(dev, t, &experts[2]), COLI_BK_INVALID, "was not taken");
    T_BK(&h, fake.tensor_overwrite_async(dev, t, &experts[2], &fence), COLI_BK_INVALID,
         "was not taken");
    T_EQ(fence, 0);
    // others are not concerned
    T_BK(&h, fake.tensor_overwrite(dev, other, &experts[2]), COLI_BK_OK, "");
    fake.tensor_free(dev, other);
    T_EQ(h.n_warning, 0);
    T_BK(&h, fake.group_take(dev, UINT64_MAX, &r), COLI_BK_OK, "");
    T_MEM(r.y, expert_y[0][0], sizeof expert_y[0][0]);

    T_BK(&h, fake.group_issue(dev, &g), COLI_BK_OK, "");
    fake.tensor_free(dev, t);
    T_EQ(h.n_warning, 1);
    T_TRUE(strstr(h.warning, "was not taken") != NULL);
    T_BK(&h, fake.group_take(dev, UINT64_MAX, &r), COLI_BK_INVALID, "was freed before");
    T_BK(&h, fake.group_take(dev, UINT64_MAX, &r), COLI_BK_EMPTY, "");
    T_EQ(free_bytes(&h, dev), INT64_C(8) << 30);
    fake.close(dev);
}

/* A copy that takes long: 1 ms on the device, 40 times. */
T_TEST(a_tensor_whose_fence_is_not_done)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "real=1 latency=1ms slow=x40");
    coli_bk_tensor *t = upload(&h, dev, &experts[0]);
    const coli_bk_group g = group_of(&t);
    coli_bk_fence fence = 0, second = 0;
    T_BK(&h, fake.tensor_overwrite_async(dev, t, &experts[1], &fence), COLI_BK_OK, "");
    T_BK(&h, fake.fence_poll(dev, fence, 0), COLI_BK_BUSY, "");
    T_BK(&h, fake.group_issue(dev, &g), COLI_BK_INVALID, "fence is not done");
    T_BK(&h, fake.tensor_overwrite(dev, t, &experts[2]), COLI_BK_INVALID, "fence is not done");
    T_BK(&h, fake.tensor_overwrite_async(dev, t, &experts[2], &second), COLI_BK_INVALID,
         "fence is not done");
    T_BK(&h, fake.fence_poll(dev, fence, UINT64_MAX), COLI_BK_OK, "");
    check_expert(&h, dev, t, 1);
    T_BK(&h, fake.tensor_overwrite_async(dev, t, &experts[1], &fence), COLI_BK_OK, "");
    fake.tensor_free(dev, t); // waits for the copy
    T_TRUE(strstr(h.warning, "fence is not done") != NULL);
    T_EQ(free_bytes(&h, dev), INT64_C(8) << 30);
    fake.close(dev);
}

/* Whatever is under way, close ends it, and says what was left. */
T_TEST(close_ends_everything)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "real=1 latency=20ms hang=tensor_overwrite_async:2");
    coli_bk_tensor *t[3];
    for (uint32_t e = 0; e < 3; e++) t[e] = upload(&h, dev, &experts[e]);
    coli_bk_fence fence;
    for (uint32_t e = 1; e < 3; e++)
        T_BK(&h, fake.tensor_overwrite_async(dev, t[e], &experts[0], &fence), COLI_BK_OK, "");
    const coli_bk_group g = group_of(&t[0]);
    T_BK(&h, fake.group_issue(dev, &g), COLI_BK_OK, "");
    T_TRUE(fake.host_alloc(dev, 64) != NULL);
    fake.close(dev);
    T_EQ(h.n_warning, 2);
    T_EQ(h.n_alloc, 0);
}

T_TEST(open_and_close_many_times)
{
    T_BEGIN;
    fake_host h, h2;
    for (uint32_t i = 0; i < 100; i++) {
        coli_bk_device *a = fake_open(&h, ""), *b = fake_open(&h2, "");
        coli_bk_tensor *t = upload(&h, a, &experts[i % N_SOURCE]);
        check_expert(&h, a, t, i % N_SOURCE);
        fake.tensor_free(a, t);
        close_clean(i % 2 ? &h : &h2, i % 2 ? a : b);
        close_clean(i % 2 ? &h2 : &h, i % 2 ? b : a);
    }
}

/* ---- time ----------------------------------------------------------------------------------------------- */

/* The statistics are those of the worked rule: every byte counts, and two runs agree. */
T_TEST(the_clock)
{
    T_BEGIN;
    for (uint32_t i = 0; i < 2; i++) {
        fake_host h;
        coli_bk_device *dev = fake_open(&h, "link=1GB/s latency=10us kernel=5us bw=10GB/s");
        coli_bk_tensor *t = upload(&h, dev, &experts[0]), *w = upload(&h, dev, &matrix);
        check_expert(&h, dev, t, 0);
        float y[N_ROW][F];
        const coli_bk_matmul a = product_of(w, y[0]), *const batch[2] = {&a, &a};
        T_BK(&h, fake.matmul(dev, &a), COLI_BK_OK, "");
        T_BK(&h, fake.matmul_batch(dev, batch, 2), COLI_BK_OK, "");
        coli_bk_group_stats s = {.struct_size = sizeof s};
        T_BK(&h, fake.group_stats(dev, &s), COLI_BK_OK, "");
        const double in = N_ROW * N_GROUP * (GROUP + 4), eb = (double)expert_bytes,
                     mb = (double)matrix.n_bytes, launch = 5000;
        const double out = N_ROW * F * 4;
        T_EQ(s.n_group, 1);
        T_EQ(s.n_expert, 1);
        T_EQ(s.n_row, N_ROW);
        T_EQ(s.n_matmul, 3);
        T_EQ(s.upload_bytes, expert_bytes + matrix.n_bytes);
        T_EQ(round(s.upload_ms * 1e6), 20000 + eb + mb);
        T_EQ(round(s.to_device_ms * 1e6), 30000 + in + in + 2 * in);
        T_EQ(round(s.kernel_ms * 1e6),
             5 * launch + ceil(eb / 10) + ceil(mb / 10) + ceil(2 * mb / 10));
        T_EQ(round(s.to_host_ms * 1e6), 30000 + N_ROW * (D * 4 + 1) + 3 * out);
        fake.tensor_free(dev, t);
        fake.tensor_free(dev, w);
        close_clean(&h, dev);
        T_TRUE(strstr(h.last_info, "simulated clock") != NULL);
    }
}

/* The clock says what time it is: the host's own work, before a group and beside it, moves it. */
T_TEST(the_time_of_day)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "link=1GB/s latency=10us kernel=5us bw=10GB/s copies=2 "
                                        "trunk=1ms misses=2ms");
    coli_bk_tensor *t = upload(&h, dev, &experts[0]);
    coli_bk_group_stats s = {.struct_size = sizeof s};
    T_BK(&h, fake.group_stats(dev, &s), COLI_BK_OK, "");
    T_EQ(round(s.clock_ms * 1e6), 20000 + (double)expert_bytes);
    check_expert(&h, dev, t, 0);
    T_BK(&h, fake.group_stats(dev, &s), COLI_BK_OK, "");
    // the device is done long before the host, and so is the result on its way
    T_EQ(round(s.clock_ms * 1e6), 20000 + (double)expert_bytes + N_ROW * 3e6);
    fake.tensor_free(dev, t);
    close_clean(&h, dev);
}

/* With real=1 calls take as long as the clock says: the upload 20 ms, the group 10 ms twice. */
T_TEST(real_time)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "real=1 latency=10ms slow=x2");
    double before = now_ms();
    coli_bk_tensor *t = upload(&h, dev, &experts[0]);
    T_FGE(now_ms() - before, 20);
    before = now_ms();
    check_expert(&h, dev, t, 0);
    T_FGE(now_ms() - before, 20);
    fake.tensor_free(dev, t);
    close_clean(&h, dev);

    // longer than the host waits
    fake_host_init(&h, "real=1 latency=10s");
    h.table.wait_limit_ns = 10 * ONE_MS;
    T_BK(&h, fake.open(&h.table, 0, &dev), COLI_BK_OK, "");
    T_BK(&h, fake.tensor_upload(dev, &experts[0], &t), COLI_BK_LOST, "too slow");
    close_clean(&h, dev);
}

/* ---- threads --------------------------------------------------------------------------------------------- */

/* The two sequences of a device at the same time: one computes with a tensor, the other overwrites
 * its own, uploads and frees.  ThreadSanitizer looks on. */
typedef struct hammer {
    fake_host *h;
    coli_bk_device *dev;
    coli_bk_tensor *slot;
    coli_bk_status status;
} hammer;

static void *copy_sequence(void *arg)
{
    hammer *x = arg;
    for (uint32_t i = 0; i < 150 && x->status == COLI_BK_OK; i++) {
        coli_bk_tensor *t = NULL;
        coli_bk_fence fence = 0;
        coli_bk_mem_info m = {.struct_size = sizeof m};
        x->status |= fake.tensor_overwrite_async(x->dev, x->slot, &experts[i % N_SOURCE], &fence);
        x->status |= fake.tensor_upload(x->dev, &experts[0], &t);
        x->status |= fake.tensor_overwrite(x->dev, t, &experts[1]);
        x->status |= fake.mem_info(x->dev, &m);
        x->status |= fake.fence_poll(x->dev, fence, UINT64_MAX);
        fake.tensor_free(x->dev, t);
    }
    return NULL;
}

T_TEST(both_sequences_at_once)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "");
    hammer x = {&h, dev, upload(&h, dev, &experts[0]), COLI_BK_OK};
    coli_bk_tensor *t = upload(&h, dev, &experts[2]), *w = upload(&h, dev, &matrix);
    const coli_bk_group g = group_of(&t);
    pthread_t thread;
    T_EQ(pthread_create(&thread, NULL, copy_sequence, &x), 0);
    for (uint32_t i = 0; i < 150; i++) {
        coli_bk_result r = {.struct_size = sizeof r};
        float y[N_ROW][F];
        const coli_bk_matmul a = product_of(w, y[0]);
        T_EQ(fake.group_issue(dev, &g), COLI_BK_OK);
        T_EQ(fake.matmul(dev, &a), COLI_BK_OK);
        T_EQ(fake.group_take(dev, UINT64_MAX, &r), COLI_BK_OK);
        T_MEM(y, matrix_y, sizeof y);
        T_MEM(r.y, expert_y[2][0], sizeof expert_y[2][0]);
    }
    pthread_join(thread, NULL);
    T_EQ(x.status, COLI_BK_OK);
    check_expert(&h, dev, x.slot, 149 % N_SOURCE);
    fake.tensor_free(dev, x.slot);
    fake.tensor_free(dev, t);
    fake.tensor_free(dev, w);
    close_clean(&h, dev);
}

/* Lost while a large copy is under way: once a call said so, nothing reads the source any more.  (Freed,
 * a block of this size is no longer mapped.) */
T_TEST(a_lost_device_lets_go_of_the_source)
{
    T_BEGIN;
    fake_host h;
    coli_bk_device *dev = fake_open(&h, "lose=4");
    coli_bk_source s = {.struct_size = sizeof s,
                        .n_matrix = 1,
                        .matrix = {{.format = COLI_BK_I8_G64_F16, .n_out = 8192, .n_in = 8192}}};
    s.n_bytes = coli_bk_matrix_bytes(s.matrix[0].format, 8192, 8192);
    s.data = coli__alloc64(s.n_bytes);
    coli_bk_tensor *t = upload(&h, dev, &s);
    coli_bk_fence fence = 0;
    T_BK(&h, fake.tensor_overwrite_async(dev, t, &s, &fence), COLI_BK_OK, "");
    fake.fence_poll(dev, fence, 2 * ONE_MS); // so that it has begun
    T_BK(&h, fake.fence_poll(dev, fence, 0), COLI_BK_LOST, "lost");
    coli__free_aligned((void *)(uintptr_t)s.data);
    fake.tensor_free(dev, t);
    close_clean(&h, dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_descriptor),
        cmocka_unit_test(devices_and_what_they_say),
        cmocka_unit_test(an_unknown_knob_opens_nothing),
        cmocka_unit_test(structs_of_other_sizes),
        cmocka_unit_test(a_host_without_log_and_clock),
        cmocka_unit_test(memory_is_counted_in_pages),
        cmocka_unit_test(handles),
        cmocka_unit_test(wrong_sources),
        cmocka_unit_test(pinned_memory),
        cmocka_unit_test(overwrites_and_fences),
        cmocka_unit_test(torn_overwrites),
        cmocka_unit_test(wrong_groups),
        cmocka_unit_test(joins_are_refused_where_they_were_not_announced),
        cmocka_unit_test(wrong_products),
        cmocka_unit_test(each_entry_fails_once),
        cmocka_unit_test(entries_without_a_status_fail_too),
        cmocka_unit_test(a_lost_group),
        cmocka_unit_test(looking_and_opening_fail),
        cmocka_unit_test(each_optional_entry_is_refused),
        cmocka_unit_test(the_example_of_the_manual),
        cmocka_unit_test(lost_at_every_call),
        cmocka_unit_test(each_waiting_entry_hangs),
        cmocka_unit_test(a_copy_hangs),
        cmocka_unit_test(a_take_has_a_limit),
        cmocka_unit_test(a_tensor_of_a_group_that_was_not_taken),
        cmocka_unit_test(a_tensor_whose_fence_is_not_done),
        cmocka_unit_test(close_ends_everything),
        cmocka_unit_test(open_and_close_many_times),
        cmocka_unit_test(the_clock),
        cmocka_unit_test(the_time_of_day),
        cmocka_unit_test(real_time),
        cmocka_unit_test(both_sequences_at_once),
        cmocka_unit_test(a_lost_device_lets_go_of_the_source),
    };
    return cmocka_run_group_tests(tests, make_world, free_world);
}
