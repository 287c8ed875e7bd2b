/* cuda_prop.c - the cuda plugin, emulated, gives the bits of coli/exact.h: all formats, random shapes,
 * numbers of rows and experts, joins, flags, long rows, new contents, and whatever runs beside. */
#include <pthread.h>

#include "../support/cudaemu.h"

/* An expert's formats: gate and up have one group. */
static void random_formats(t_rng *rng, uint32_t formats[3])
{
    formats[0] = t_below(rng, COLI_BK_N_FORMAT);
    do formats[1] = t_below(rng, 3) ? formats[0] : t_below(rng, COLI_BK_N_FORMAT);
    while (coli_bk_layout_of(formats[0], 1).group != coli_bk_layout_of(formats[1], 1).group);
    formats[2] = t_below(rng, 3) ? formats[0] : t_below(rng, COLI_BK_N_FORMAT);
}

static void make_experts(coli_bk_device *dev, uint64_t *seed, const uint32_t formats[3], uint32_t d,
                         uint32_t f, test_expert *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        T_OK(coli__ref_expert_block(seed, formats, d, f, &out[i].source));
        BK(bk.tensor_upload(dev, &out[i].source, &out[i].tensor), COLI_BK_OK);
    }
}

static void free_experts(coli_bk_device *dev, test_expert *experts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) expert_free(dev, &experts[i]);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static const uint32_t some_rows[] = {0, 1, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33};

T_PROP(groups, 40)
{
    coli_bk_device *dev = emu_open("");
    uint64_t seed = t_u64(&rng);
    uint32_t formats[3], n_row[64];
    random_formats(&rng, formats);
    const uint32_t n_experts = t_range(&rng, 1, 4), n_expert = t_below(&rng, 10),
                   d = t_range(&rng, 1, 300), f = t_range(&rng, 1, 150), n_x = t_range(&rng, 1, 20);
    for (uint32_t i = 0; i < n_expert; i++) n_row[i] = some_rows[t_below(&rng, 14)];
    test_expert experts[4];
    make_experts(dev, &seed, formats, d, f, experts, n_experts);
    for (uint32_t i = 0; i < 3; i++) {
        test_group g;
        group_make(&g, &seed, experts, n_experts, n_expert, n_row, n_x, i == 2);
        if (i > 0 && n_expert > 0) group_join(&g, &seed, t_below(&rng, 5));
        group_compute(&g);
        group_run(dev, &g);
        group_free(&g);
    }
    free_experts(dev, experts, n_experts);
    emu_close(dev);
}

T_TEST(every_format_and_number_of_rows)
{
    T_BEGIN;
    static const uint32_t rows[] = {0, 1, 2, 7, 8, 9, 33, 100}, counts[] = {0, 1, 2, 9, 64};
    coli_bk_device *dev = emu_open("");
    uint64_t seed = 5;
    for (uint32_t format = 0; format < COLI_BK_N_FORMAT; format++) {
        const uint32_t formats[3] = {format, format, format};
        test_expert experts[3];
        make_experts(dev, &seed, formats, 135, 70, experts, 3);
        uint32_t n_row[64];
        for (uint32_t i = 0; i < 8; i++) {
            test_group g;
            group_make(&g, &seed, experts, 3, 1, &rows[i], 12, 0);
            group_compute(&g);
            group_run(dev, &g);
            group_free(&g);
        }
        for (uint32_t i = 0; i < 5; i++) {
            for (uint32_t k = 0; k < counts[i]; k++) n_row[k] = k % 3;
            test_group g;
            group_make(&g, &seed, experts, 3, counts[i], n_row, 12, 0);
            group_compute(&g);
            group_run(dev, &g);
            group_free(&g);
        }
        free_experts(dev, experts, 3);
    }
    emu_close(dev);
}

/* Nothing depends on what ran before or on timing. */
T_TEST(a_hundred_times_the_same)
{
    T_BEGIN;
    coli_bk_device *dev = emu_open("jitter=50");
    uint64_t seed = 6;
    const uint32_t formats[3] = {COLI_BK_I4_G64_F16, COLI_BK_I8_G64_F32, COLI_BK_I4_G32_F16},
                   n_row[5] = {1, 9, 3, 0, 6};
    test_expert experts[3];
    make_experts(dev, &seed, formats, 192, 96, experts, 3);
    test_group g;
    group_make(&g, &seed, experts, 3, 5, n_row, 7, 1);
    group_join(&g, &seed, 3);
    group_compute(&g);
    for (uint32_t i = 0; i < 100; i++) group_run(dev, &g);
    group_free(&g);
    free_experts(dev, experts, 3);
    emu_close(dev);
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct product {
    coli_bk_matmul args;
    coli_bk_source source; // its block is ours
    coli_bk_tensor *tensor;
    int8_t *q;
    float *d, *y, *want;
} product;

static void product_make(coli_bk_device *dev, uint64_t *seed, uint32_t format, uint32_t n_out,
                         uint32_t n_in, uint32_t n_row, product *p)
{
    *p = (product){0};
    T_OK(coli__ref_matrix_block(seed, format, n_out, n_in, &p->source));
    BK(bk.tensor_upload(dev, &p->source, &p->tensor), COLI_BK_OK);
    const coli_bk_layout l = coli_bk_layout_of(format, n_in);
    const uint64_t width = (uint64_t)l.n_group * l.group, ld = n_out + coli__random(seed) % 5;
    p->q = group_array(n_row * width, 1);
    p->d = group_array((uint64_t)n_row * l.n_group, sizeof(float));
    p->y = group_array(n_row * ld, sizeof(float));
    p->want = group_array(n_row * ld, sizeof(float));
    coli__ref_rows(seed, n_row, n_in, l.group, p->q, p->d);
    for (uint64_t i = 0; i < n_row * ld; i++) p->y[i] = p->want[i] = 0x1.234p5f; // stays in between
    for (uint32_t i = 0; i < n_row; i++)
        coli__ref_product(&p->source.matrix[0], p->source.data, p->q + i * width,
                          p->d + (size_t)i * l.n_group, p->want + i * ld);
    p->args = (coli_bk_matmul){.struct_size = sizeof p->args,
                               .n_row = n_row,
                               .w = p->tensor,
                               .group = l.group,
                               .n_group = l.n_group,
                               .q = p->q,
                               .d = p->d,
                               .y = p->y,
                               .ld = ld};
}

static void product_same(const product *p)
{
    T_MEM(p->y, p->want, p->args.n_row * p->args.ld * sizeof(float));
}

static void product_free(coli_bk_device *dev, product *p)
{
    bk.tensor_free(dev, p->tensor);
    coli__free_aligned((void *)(uintptr_t)p->source.data);
    coli__free(p->q);
    coli__free(p->d);
    coli__free(p->y);
    coli__free(p->want);
}

T_PROP(products, 60)
{
    coli_bk_device *dev = emu_open("");
    uint64_t seed = t_u64(&rng);
    product p[4];
    const coli_bk_matmul *args[4];
    const uint32_t n = t_range(&rng, 1, 4);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t n_in = t_below(&rng, 3) ? t_range(&rng, 1, 200) : t_range(&rng, 200, 2500);
        product_make(dev, &seed, t_below(&rng, COLI_BK_N_FORMAT), t_range(&rng, 1, 150), n_in,
                     some_rows[t_below(&rng, 14)], &p[i]);
        args[i] = &p[i].args;
    }
    if (n == 1)
        BK(bk.matmul(dev, args[0]), COLI_BK_OK);
    else
        BK(bk.matmul_batch(dev, args, n), COLI_BK_OK);
    for (uint32_t i = 0; i < n; i++) {
        product_same(&p[i]);
        product_free(dev, &p[i]);
    }
    emu_close(dev);
}

/* Rows of more groups than fit the registers of a thread, around every length where it matters. */
T_TEST(long_rows)
{
    T_BEGIN;
    static const uint32_t n_group[] = {16, 17, 31, 33, 127, 128, 129, 257, 1025};
    coli_bk_device *dev = emu_open("");
    uint64_t seed = 7;
    for (uint32_t i = 0; i < 9; i++)
        for (uint32_t format = 0; format < COLI_BK_N_FORMAT; format += 3) {
            const uint32_t group = coli_bk_layout_of(format, 1).group;
            for (uint32_t n_row = 1; n_row < 20; n_row += 6) {
                product p;
                product_make(dev, &seed, format, 17, n_group[i] * group - 3, n_row, &p);
                BK(bk.matmul(dev, &p.args), COLI_BK_OK);
                product_same(&p);
                product_free(dev, &p);
            }
        }
    emu_close(dev);
}

/* The ends of codes and of scales: the largest sums, the smallest and the largest scale. */
T_TEST(extreme_numbers)
{
    T_BEGIN;
    coli_bk_device *dev = emu_open("");
    uint64_t seed = 8;
    for (uint32_t format = 0; format < COLI_BK_N_FORMAT; format++)
        for (uint32_t variant = 0; variant < 6; variant++) {
            const coli_bk_layout l = coli_bk_layout_of(format, 300);
            product p;
            product_make(dev, &seed, format, 16, 300, 9, &p);
            uint8_t *const block = (uint8_t *)(uintptr_t)p.source.data;
            for (uint32_t g = 0; g < l.n_group; g++)
                memset(block + l.first_group + g * l.group_bytes + l.code_offset,
                       variant % 2 ? 0 : 0xFF, 16 * l.group * l.bits / 8);
            if (l.scale_bytes == 4)
                for (uint32_t g = 0; g < (l.per_row ? 1 : l.n_group); g++)
                    for (uint32_t r = 0; r < 16; r++) {
                        const float size = variant < 2 ? 0x1p-40f : variant < 4 ? 0x1p10f : 0.0f;
                        const float s = r % 2 ? -size : size;
                        memcpy(block + (l.per_row ? 0 : g * l.group_bytes) + 4 * r, &s, 4);
                    }
            p.source.matrix[0].scale_exp = l.scale_bytes == 4 ? 0 : variant < 3 ? -20 : 8;
            memset(p.q, variant < 3 ? 127 : -127, (size_t)9 * l.n_group * l.group);
            for (uint32_t i = 0; i < 9 * l.n_group; i++) p.d[i] = i % 3 ? 0x1p-63f : 0x1p33f;
            BK(bk.tensor_overwrite(dev, p.tensor, &p.source), COLI_BK_OK);
            for (uint32_t i = 0; i < 9; i++)
                coli__ref_product(&p.source.matrix[0], block, p.q + (size_t)i * l.n_group * l.group,
                                  p.d + (size_t)i * l.n_group, p.want + i * p.args.ld);
            BK(bk.matmul(dev, &p.args), COLI_BK_OK);
            product_same(&p);
            product_free(dev, &p);
        }
    emu_close(dev);
}

/* ---- new contents ---------------------------------------------------------------------------- */

/* All kinds of overwriting; the group follows at once, so a fence that is done too early shows. */
T_PROP(overwrites, 8)
{
    coli_bk_device *dev = emu_open("jitter=2000");
    uint64_t seed = t_u64(&rng);
    uint32_t formats[3], n_row[4] = {1, 0, 2, 9};
    random_formats(&rng, formats);
    const uint32_t d = t_range(&rng, 1, 300), f = t_range(&rng, 1, 100);
    test_expert experts[4];
    coli_bk_fence fences[4] = {0};
    make_experts(dev, &seed, formats, d, f, experts, 4);
    enum { NOW, LATER, LATER_FROM_PINNED, N_WAY };
    for (int way = 0; way < N_WAY; way++) {
        void *pinned[4] = {0};
        for (uint32_t i = 0; i < 4; i++) {
            coli__free_aligned((void *)(uintptr_t)experts[i].source.data);
            T_OK(coli__ref_expert_block(&seed, formats, d, f, &experts[i].source));
        }
        test_group g;
        group_make(&g, &seed, experts, 4, 4, n_row, 5, 0);
        group_compute(&g);
        for (uint32_t i = 0; i < 4; i++) {
            coli_bk_source s = experts[i].source;
            if (way == LATER_FROM_PINNED) {
                pinned[i] = bk.host_alloc(dev, s.n_bytes);
                T_TRUE(pinned[i] && (uintptr_t)pinned[i] % 64 == 0);
                s.data = memcpy(pinned[i], s.data, s.n_bytes);
            }
            if (way == NOW)
                BK(bk.tensor_overwrite(dev, experts[i].tensor, &s), COLI_BK_OK);
            else
                BK(bk.tensor_overwrite_async(dev, experts[i].tensor, &s, &fences[i]), COLI_BK_OK);
        }
        for (uint32_t i = 4; i-- > 0 && way != NOW;) { // any order, and again
            coli_bk_status s;
            while ((s = bk.fence_poll(dev, fences[i], 0)) == COLI_BK_BUSY) {
            }
            BK(s, COLI_BK_OK);
            BK(bk.fence_poll(dev, fences[i], PATIENCE_NS), COLI_BK_OK);
        }
        group_run(dev, &g);
        group_free(&g);
        for (uint32_t i = 0; i < 4; i++) bk.host_free(dev, pinned[i]);
    }
    free_experts(dev, experts, 4);
    emu_close(dev);
}

/* More fences than the plugin keeps events for; a block that goes round the stages several times. */
T_TEST(many_and_large_copies)
{
    T_BEGIN;
    coli_bk_device *dev = emu_open("jitter=20");
    uint64_t seed = 9;
    product small, large;
    product_make(dev, &seed, COLI_BK_I4_G64_F16, 33, 200, 2, &small);
    product_make(dev, &seed, COLI_BK_I8_G64_F16, 5000, 4000, 1, &large);
    coli_bk_fence fence = 0, last = 0;
    for (uint32_t i = 0; i < 200; i++) {
        BK(bk.tensor_overwrite_async(dev, small.tensor, &small.source, &fence), COLI_BK_OK);
        T_TRUE(fence != 0 && fence != last);
        last = fence;
    }
    BK(bk.fence_poll(dev, fence, PATIENCE_NS), COLI_BK_OK);
    BK(bk.matmul(dev, &small.args), COLI_BK_OK);
    BK(bk.matmul(dev, &large.args), COLI_BK_OK);
    product_same(&small);
    product_same(&large);
    product_free(dev, &small);
    product_free(dev, &large);
    emu_close(dev);
}

/* ---- beside each other ----------------------------------------------------------------------- */

T_TEST(inputs_may_go_and_products_may_come)
{
    T_BEGIN;
    coli_bk_device *dev = emu_open("jitter=200");
    uint64_t seed = 10;
    const uint32_t formats[3] = {COLI_BK_I4_G64_F16, COLI_BK_I4_G64_F16, COLI_BK_I8_G32_F32},
                   n_row[3] = {1, 2, 9};
    test_expert experts[2];
    make_experts(dev, &seed, formats, 130, 60, experts, 2);
    product p;
    product_make(dev, &seed, COLI_BK_I8_ROW_F32, 70, 130, 3, &p);
    coli_bk_result r = {.struct_size = sizeof r};
    BK(bk.group_take(dev, PATIENCE_NS, &r), COLI_BK_EMPTY);
    for (uint32_t i = 0; i < 10; i++) {
        test_group g;
        group_make(&g, &seed, experts, 2, 3, n_row, 4, 0);
        group_compute(&g);
        BK(bk.group_issue(dev, &g.args), COLI_BK_OK);
        memset(g.q, 99, (size_t)4 * g.args.n_group * g.args.group);
        memset(g.d, 99, (size_t)4 * g.args.n_group * sizeof(float));
        memset(g.row, 99, g.n_pair * sizeof *g.row);
        BK(bk.group_issue(dev, &g.args), COLI_BK_BUSY);
        BK(bk.matmul(dev, &p.args), COLI_BK_OK);
        product_same(&p);
        BK(bk.group_take(dev, PATIENCE_NS, &r), COLI_BK_OK);
        BK(bk.matmul(dev, &p.args), COLI_BK_OK); // the result stays
        group_same(&g, &r);
        BK(bk.group_take(dev, PATIENCE_NS, &r), COLI_BK_EMPTY);
        group_free(&g);
    }
    test_group nothing;
    group_make(&nothing, &seed, experts, 2, 0, NULL, 1, 0);
    group_run(dev, &nothing);
    group_free(&nothing);
    product_free(dev, &p);
    free_experts(dev, experts, 2);
    emu_close(dev);
}

typedef struct uploader {
    coli_bk_device *dev;
    test_expert *experts; // two that the other thread does not use
    int stop;
    coli_bk_status worst;
} uploader;

static void *upload_all_the_time(void *ctx)
{
    uploader *u = ctx;
    for (uint32_t i = 0; !__atomic_load_n(&u->stop, __ATOMIC_SEQ_CST) || i < 20; i++) {
        coli_bk_status s;
        if (i % 4 == 0) {
            coli_bk_tensor *t = NULL;
            s = bk.tensor_upload(u->dev, &u->experts[0].source, &t);
            bk.tensor_free(u->dev, t);
        } else {
            coli_bk_fence fence = 0;
            s = bk.tensor_overwrite_async(u->dev, u->experts[i % 2].tensor,
                                          &u->experts[i % 2].source, &fence);
            while (s == COLI_BK_OK && (s = bk.fence_poll(u->dev, fence, 1000)) == COLI_BK_BUSY)
                s = COLI_BK_OK;
        }
        coli_bk_mem_info memory = {.struct_size = sizeof memory};
        if (s == COLI_BK_OK) s = bk.mem_info(u->dev, &memory);
        if (s != COLI_BK_OK) u->worst = s;
    }
    return NULL;
}

T_TEST(copies_and_work_at_once_on_two_devices)
{
    T_BEGIN;
    uint64_t seed = 11;
    const uint32_t formats[3] = {COLI_BK_I4_G64_F16, COLI_BK_I4_G64_F16, COLI_BK_I4_G64_F16},
                   n_row[3] = {2, 1, 17};
    coli_bk_device *dev[2];
    test_expert experts[2][4];
    uploader uploaders[2];
    pthread_t threads[2];
    host_init("devices=2 jitter=50", PATIENCE_NS);
    for (uint32_t i = 0; i < 2; i++) {
        BK(bk.open(&host.services, i, &dev[i]), COLI_BK_OK);
        make_experts(dev[i], &seed, formats, 192, 64, experts[i], 4);
        uploaders[i] = (uploader){.dev = dev[i], .experts = experts[i] + 2};
        T_EQ(pthread_create(&threads[i], NULL, upload_all_the_time, &uploaders[i]), 0);
    }
    for (uint32_t i = 0; i < 40; i++) {
        test_group g;
        group_make(&g, &seed, experts[i % 2], 2, 3, n_row, 4, 0);
        group_compute(&g);
        group_run(dev[i % 2], &g);
        group_free(&g);
    }
    for (uint32_t i = 0; i < 2; i++) {
        __atomic_store_n(&uploaders[i].stop, 1, __ATOMIC_SEQ_CST);
        pthread_join(threads[i], NULL);
        T_EQ(uploaders[i].worst, COLI_BK_OK);
        free_experts(dev[i], experts[i], 4);
    }
    bk.close(dev[0]);
    emu_close(dev[1]);
}

static uint64_t free_bytes(coli_bk_device *dev)
{
    coli_bk_mem_info m = {.struct_size = sizeof m};
    BK(bk.mem_info(dev, &m), COLI_BK_OK);
    return m.free_bytes;
}

typedef struct upload_job {
    coli_bk_device *dev;
    const coli_bk_source *source;
    coli_bk_tensor *tensor;
    coli_bk_status status;
} upload_job;

static void *upload_once(void *ctx)
{
    upload_job *j = ctx;
    j->status = bk.tensor_upload(j->dev, j->source, &j->tensor);
    return NULL;
}

/* A thread that never called anything works on the device that it names, not on the first. */
T_TEST(calls_are_for_their_device)
{
    T_BEGIN;
    coli_bk_device *dev[2];
    host_init("devices=2", PATIENCE_NS);
    for (uint32_t i = 0; i < 2; i++) BK(bk.open(&host.services, i, &dev[i]), COLI_BK_OK);
    const uint64_t before[2] = {free_bytes(dev[0]), free_bytes(dev[1])};
    uint64_t seed = 12;
    upload_job job = {.dev = dev[1]};
    coli_bk_source s;
    T_OK(coli__ref_matrix_block(&seed, COLI_BK_I8_G64_F16, 1000, 1000, &s));
    job.source = &s;
    pthread_t thread;
    T_EQ(pthread_create(&thread, NULL, upload_once, &job), 0);
    pthread_join(thread, NULL);
    T_EQ(job.status, COLI_BK_OK);
    T_EQ(free_bytes(dev[0]), before[0]);
    T_LE(free_bytes(dev[1]), before[1] - s.n_bytes);
    bk.tensor_free(dev[1], job.tensor);
    coli__free_aligned((void *)(uintptr_t)s.data);
    bk.close(dev[1]);
    emu_close(dev[0]);
}

int main(void)
{
    emu_load();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups),
        cmocka_unit_test(every_format_and_number_of_rows),
        cmocka_unit_test(a_hundred_times_the_same),
        cmocka_unit_test(products),
        cmocka_unit_test(long_rows),
        cmocka_unit_test(extreme_numbers),
        cmocka_unit_test(overwrites),
        cmocka_unit_test(many_and_large_copies),
        cmocka_unit_test(inputs_may_go_and_products_may_come),
        cmocka_unit_test(copies_and_work_at_once_on_two_devices),
        cmocka_unit_test(calls_are_for_their_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
