/* vulkan_prop.c - whatever the Vulkan backend is asked to compute, it gives the bits of reference.c. */
#include "vulkan_device.h"

/* An expert on the device and its block here. */
typedef struct expert {
    coli_bk_source source;
    coli_bk_tensor *tensor;
} expert;

enum { MAX_EXPERT = 9, MAX_ROW = 33 };

/* A group with random experts and rows. */
typedef struct world {
    uint32_t formats[3], d, f;
    uint32_t n_expert, n_x, n_pair;
    expert experts[MAX_EXPERT];
    coli_bk_tensor *tensors[MAX_EXPERT];
    uint32_t n_row[MAX_EXPERT];
    uint32_t *row;
    int8_t *q;
    float *scale;
    coli_bk_group group;
} world;

static const uint32_t row_counts[] = {0, 1, 2, 7, 33};

static uint32_t random_width(t_rng *rng)
{
    static const uint32_t widths[] = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 128, 192, 256, 320, 512, 577};
    return widths[t_below(rng, sizeof widths / sizeof *widths)];
}

static void world_make(world *w, t_rng *rng, uint32_t n_expert)
{
    *w = (world){.n_expert = n_expert, .d = random_width(rng), .f = random_width(rng)};
    for (uint32_t i = 0; i < 3; i++) w->formats[i] = t_below(rng, COLI_BK_N_FORMAT);
    while (coli_bk_layout_of(w->formats[0], 1).group != coli_bk_layout_of(w->formats[1], 1).group)
        w->formats[1] = t_below(rng, COLI_BK_N_FORMAT);
    for (uint32_t i = 0; i < n_expert; i++) {
        T_OK(coli__ref_expert_block(&rng->state, w->formats, w->d, w->f, &w->experts[i].source));
        w->n_row[i] = row_counts[t_below(rng, 5)];
        w->n_pair += w->n_row[i];
    }
    w->n_x = t_range(rng, 1, MAX_ROW);
    const coli_bk_layout l = coli_bk_layout_of(w->formats[0], w->d);
    w->row = coli__calloc(w->n_pair + 1, sizeof *w->row);
    for (uint32_t p = 0; p < w->n_pair; p++) w->row[p] = t_below(rng, w->n_x);
    w->q = coli__calloc((size_t)w->n_x * l.n_group, l.group);
    w->scale = coli__calloc((size_t)w->n_x * l.n_group, sizeof(float));
    coli__ref_rows(&rng->state, w->n_x, w->d, l.group, w->q, w->scale);
    w->group = (coli_bk_group){.struct_size = sizeof w->group,
                               .n_expert = n_expert,
                               .experts = w->tensors,
                               .n_row = w->n_row,
                               .row = w->row,
                               .n_x = w->n_x,
                               .group = l.group,
                               .n_group = l.n_group,
                               .q = w->q,
                               .d = w->scale};
}

static void world_upload(world *w, vk_host *host, coli_bk_device *dev)
{
    for (uint32_t i = 0; i < w->n_expert; i++) {
        VK_OK(host, vk.tensor_upload(dev, &w->experts[i].source, &w->experts[i].tensor));
        w->tensors[i] = w->experts[i].tensor;
    }
}

/* The result against the reference. */
static void world_check(const world *w, const coli_bk_result *r)
{
    T_EQ(r->n_row, w->n_pair);
    float *y = coli__calloc(w->d, sizeof *y);
    const size_t x_bytes = (size_t)w->group.n_group * w->group.group;
    uint32_t p = 0;
    for (uint32_t i = 0; i < w->n_expert; i++)
        for (uint32_t k = 0; k < w->n_row[i]; k++, p++) {
            bool in_range;
            T_OK(coli__ref_expert(&w->experts[i].source, w->q + w->row[p] * x_bytes,
                                  w->scale + (size_t)w->row[p] * w->group.n_group, y, &in_range));
            T_EQ(r->flag[p], !in_range);
            if (in_range) T_MEM(r->y + p * r->ld, y, w->d * sizeof *y);
        }
    coli__free(y);
}

static void world_run(world *w, vk_host *host, coli_bk_device *dev, coli_bk_result *r)
{
    *r = (coli_bk_result){.struct_size = sizeof *r};
    VK_OK(host, vk.group_issue(dev, &w->group));
    VK_OK(host, vk.group_take(dev, UINT64_C(60000000000), r));
}

static void world_free(world *w, coli_bk_device *dev)
{
    for (uint32_t i = 0; i < w->n_expert; i++) {
        if (dev) vk.tensor_free(dev, w->experts[i].tensor);
        coli__free_aligned((void *)(uintptr_t)w->experts[i].source.data);
    }
    coli__free(w->row);
    coli__free(w->q);
    coli__free(w->scale);
}

T_PROP(groups_are_exact, 40)
{
    static const uint32_t n_experts[] = {0, 1, 2, 9};
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1");
    world w;
    world_make(&w, &rng, n_experts[t_below(&rng, 4)]);
    world_upload(&w, &host, dev);
    coli_bk_result r;
    world_run(&w, &host, dev, &r);
    world_check(&w, &r);
    world_free(&w, dev);
    vk_shut(&host, dev);
}

int main(void)
{
    vk_find_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
