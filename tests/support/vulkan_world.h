/* vulkan_world.h - random experts, rows and groups, on the device and as reference.c computes
 * them. */
#ifndef COLI_TEST_VULKAN_WORLD_H
#define COLI_TEST_VULKAN_WORLD_H

#include "vulkan_device.h"

#include "coli/exact.h"

enum { VK_MAX_EXPERT = 64 };

/* A group of experts of one shape. */
typedef struct vk_world {
    uint32_t formats[3], d, f;
    uint32_t n_expert, n_pair;
    coli_bk_source sources[VK_MAX_EXPERT];
    coli_bk_tensor *tensors[VK_MAX_EXPERT];
    uint32_t n_row[VK_MAX_EXPERT];
    uint32_t *row; // (n_pair)
    int8_t *q;     // (n_x, n_group * group)
    float *scale;  // (n_x, n_group)
    coli_bk_group group;
} vk_world;

static inline void vk_random_formats(t_rng *rng, uint32_t formats[3])
{
    for (uint32_t i = 0; i < 3; i++) formats[i] = t_below(rng, COLI_BK_N_FORMAT);
    while (coli_bk_layout_of(formats[0], 1).group != coli_bk_layout_of(formats[1], 1).group)
        formats[1] = t_below(rng, COLI_BK_N_FORMAT);
}

/* At and around multiples of 16, 32 and 64; from 256 on (four groups) a tree is not a running
 * sum. */
static inline uint32_t vk_random_width(t_rng *rng)
{
    static const uint32_t widths[] = {1,  15, 16,  17,  32,  33,  63,  64,
                                      65, 96, 128, 192, 256, 320, 512, 577};
    return widths[t_below(rng, sizeof widths / sizeof *widths)];
}

/* Rows of each expert are taken from row_counts (n_count). */
static inline void vk_world_init(vk_world *w, t_rng *rng, const uint32_t formats[3], uint32_t d,
                                 uint32_t f, uint32_t n_expert, const uint32_t *row_counts,
                                 uint32_t n_count)
{
    *w = (vk_world){.d = d, .f = f, .n_expert = n_expert};
    memcpy(w->formats, formats, sizeof w->formats);
    T_LE(n_expert, VK_MAX_EXPERT);
    for (uint32_t i = 0; i < n_expert; i++) {
        T_OK(coli__ref_expert_block(&rng->state, formats, d, f, &w->sources[i]));
        w->n_row[i] = row_counts[t_below(rng, n_count)];
        w->n_pair += w->n_row[i];
    }
    const coli_bk_layout l = coli_bk_layout_of(formats[0], d);
    const uint32_t n_x = t_range(rng, 1, 33);
    w->row = coli__calloc(w->n_pair + 1, sizeof *w->row);
    w->q = coli__calloc((size_t)n_x * l.n_group, l.group);
    w->scale = coli__calloc((size_t)n_x * l.n_group, sizeof(float));
    T_TRUE(w->row && w->q && w->scale);
    for (uint32_t p = 0; p < w->n_pair; p++) w->row[p] = t_below(rng, n_x);
    coli__ref_rows(&rng->state, n_x, d, l.group, w->q, w->scale);
    w->group = (coli_bk_group){.struct_size = sizeof w->group,
                               .n_expert = n_expert,
                               .experts = w->tensors,
                               .n_row = w->n_row,
                               .row = w->row,
                               .n_x = n_x,
                               .group = l.group,
                               .n_group = l.n_group,
                               .q = w->q,
                               .d = w->scale};
}

static inline void vk_world_upload(vk_world *w, vk_host *host, coli_bk_device *dev)
{
    for (uint32_t i = 0; i < w->n_expert; i++)
        VK_OK(host, vk.tensor_upload(dev, &w->sources[i], &w->tensors[i]));
}

/* Other content for expert i, in its block here. */
static inline void vk_world_renew(vk_world *w, t_rng *rng, uint32_t i)
{
    coli__free_aligned((void *)(uintptr_t)w->sources[i].data);
    T_OK(coli__ref_expert_block(&rng->state, w->formats, w->d, w->f, &w->sources[i]));
    for (uint32_t m = 0; m < 3; m++) w->sources[i].matrix[m].scale_exp -= (int32_t)t_below(rng, 3);
}

/* What pair p of expert i must give; whether it is in range. */
static inline bool vk_world_expect(const vk_world *w, uint32_t i, uint32_t p, float *y)
{
    bool in_range;
    const size_t x = w->row[p];
    T_OK(coli__ref_expert(&w->sources[i], w->q + x * w->group.n_group * w->group.group,
                          w->scale + x * w->group.n_group, y, &in_range));
    return in_range;
}

/* The result of a group without joins. */
static inline void vk_world_check(const vk_world *w, const coli_bk_result *r)
{
    T_EQ(r->n_row, w->n_pair);
    float *y = coli__calloc(w->d, sizeof *y);
    uint32_t p = 0;
    for (uint32_t i = 0; i < w->n_expert; i++)
        for (uint32_t k = 0; k < w->n_row[i]; k++, p++) {
            const bool in_range = vk_world_expect(w, i, p, y);
            T_EQ(r->flag[p], !in_range);
            if (in_range) T_MEM(r->y + p * r->ld, y, w->d * sizeof *y);
        }
    coli__free(y);
}

static inline coli_bk_result vk_take(vk_host *host, coli_bk_device *dev)
{
    coli_bk_result r = {.struct_size = sizeof r};
    VK_OK(host, vk.group_take(dev, host->base.table.wait_limit_ns, &r));
    return r;
}

/* Issue, take, check. */
static inline void vk_world_run(const vk_world *w, vk_host *host, coli_bk_device *dev)
{
    VK_OK(host, vk.group_issue(dev, &w->group));
    const coli_bk_result r = vk_take(host, dev);
    vk_world_check(w, &r);
}

static inline void vk_world_free(vk_world *w, coli_bk_device *dev)
{
    for (uint32_t i = 0; i < w->n_expert; i++) {
        if (w->tensors[i]) vk.tensor_free(dev, w->tensors[i]);
        coli__free_aligned((void *)(uintptr_t)w->sources[i].data);
    }
    coli__free(w->row);
    coli__free(w->q);
    coli__free(w->scale);
}

/* A matrix, rows for it, and room for the results with a margin that must stay as it was. */
typedef struct vk_product {
    coli_bk_source source;
    int8_t *q;
    float *scale, *y, *expected; // (n_row, ld), (n_out)
    coli_bk_matmul args;
} vk_product;

enum { VK_MARGIN = 3 };

static inline void vk_product_init(vk_product *p, t_rng *rng, uint32_t format, uint32_t n_out,
                                   uint32_t n_in, uint32_t n_row)
{
    *p = (vk_product){0};
    T_OK(coli__ref_matrix_block(&rng->state, format, n_out, n_in, &p->source));
    const coli_bk_layout l = coli_bk_layout_of(format, n_in);
    const size_t ld = n_out + VK_MARGIN;
    p->q = coli__calloc((size_t)n_row * l.n_group + 1, l.group);
    p->scale = coli__calloc((size_t)n_row * l.n_group + 1, sizeof(float));
    p->y = coli__calloc(n_row * ld + 1, sizeof(float));
    p->expected = coli__calloc(n_out, sizeof(float));
    T_TRUE(p->q && p->scale && p->y && p->expected);
    coli__ref_rows(&rng->state, n_row, n_in, l.group, p->q, p->scale);
    for (size_t i = 0; i < n_row * ld; i++) p->y[i] = -77.0f;
    p->args = (coli_bk_matmul){.struct_size = sizeof p->args,
                               .n_row = n_row,
                               .group = l.group,
                               .n_group = l.n_group,
                               .q = p->q,
                               .d = p->scale,
                               .y = p->y,
                               .ld = ld};
}

static inline void vk_product_upload(vk_product *p, vk_host *host, coli_bk_device *dev)
{
    coli_bk_tensor *t;
    VK_OK(host, vk.tensor_upload(dev, &p->source, &t));
    p->args.w = t;
}

static inline void vk_product_check(const vk_product *p)
{
    const uint32_t n_out = p->source.matrix[0].n_out;
    for (uint32_t i = 0; i < p->args.n_row; i++) {
        const float *y = p->y + i * p->args.ld;
        coli__ref_product(&p->source.matrix[0], p->source.data,
                          p->q + (size_t)i * p->args.n_group * p->args.group,
                          p->scale + (size_t)i * p->args.n_group, p->expected);
        T_MEM(y, p->expected, n_out * sizeof *y);
        for (uint32_t c = n_out; c < p->args.ld; c++) T_TRUE(y[c] == -77.0f);
    }
}

static inline void vk_product_free(vk_product *p, coli_bk_device *dev)
{
    if (p->args.w) vk.tensor_free(dev, (coli_bk_tensor *)(uintptr_t)p->args.w);
    coli__free_aligned((void *)(uintptr_t)p->source.data);
    coli__free(p->q);
    coli__free(p->scale);
    coli__free(p->y);
    coli__free(p->expected);
}

#endif
