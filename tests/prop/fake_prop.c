/* fake_prop.c - what the fake computes, against the reference, over random shapes and formats. */
#include "fake_plugin.h"

#include "libcoli/src/backend/reference.h"
#include "libcoli/src/base/alloc.h"

static fake_host host;
static coli_bk_device *dev;

static int open_device(void **state)
{
    if (fake_load(state) != 0) return -1;
    fake_host_init(&host, "");
    return fake.open(&host.table, 0, &dev) == COLI_BK_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    fake.close(dev);
    return host.n_warning == 0 && host.n_alloc == 0 ? 0 : -1;
}

/* Widths on both sides of a group and a panel, and some large enough for a tree of several levels. */
static uint32_t random_width(t_rng *rng)
{
    return t_below(rng, 4) == 0 ? t_range(rng, 1, 700) : t_range(rng, 1, 90);
}

T_PROP(product_is_the_reference, 250)
{
    const uint32_t format = t_below(&rng, COLI_BK_N_FORMAT);
    const uint32_t n_out = random_width(&rng), n_in = random_width(&rng);
    const uint32_t n_row = t_below(&rng, 40), ld = n_out + t_below(&rng, 3);
    const coli_bk_layout l = coli_bk_layout_of(format, n_in);
    const size_t row_q = (size_t)l.n_group * l.group;
    coli_bk_source s;
    T_OK(coli__ref_matrix_block(&rng.state, format, n_out, n_in, &s));
    int8_t *q = coli__calloc(n_row * row_q, 1);
    float *d = coli__calloc((size_t)n_row * l.n_group, sizeof *d);
    float *y = coli__calloc((size_t)n_row * ld, sizeof *y), *expected = coli__calloc(n_out, 4);
    coli__ref_rows(&rng.state, n_row, n_in, l.group, q, d);

    coli_bk_tensor *w;
    T_BK(&host, fake.tensor_upload(dev, &s, &w), COLI_BK_OK, "");
    const coli_bk_matmul args = {.struct_size = sizeof args,
                                 .n_row = n_row,
                                 .w = w,
                                 .group = l.group,
                                 .n_group = l.n_group,
                                 .q = q,
                                 .d = d,
                                 .y = y,
                                 .ld = ld};
    T_BK(&host, fake.matmul(dev, &args), COLI_BK_OK, "");
    for (uint32_t i = 0; i < n_row; i++) {
        coli__ref_product(&s.matrix[0], s.data, q + i * row_q, d + (size_t)i * l.n_group, expected);
        T_MEM(y + (size_t)i * ld, expected, n_out * sizeof *y);
        for (uint32_t o = n_out; o < ld; o++) T_TRUE(y[(size_t)i * ld + o] == 0.0f);
    }
    fake.tensor_free(dev, w);
    coli__free_aligned((void *)(uintptr_t)s.data);
    coli__free(q);
    coli__free(d);
    coli__free(y);
    coli__free(expected);
}

/* ---- groups ----------------------------------------------------------------------------------- */

enum { MAX_EXPERT = 9, MAX_PAIR = 9 * 40 };

/* Experts of one shape on the device, and a group of rows through them. */
typedef struct world {
    coli_bk_source sources[MAX_EXPERT];
    coli_bk_tensor *tensors[MAX_EXPERT];
    uint32_t d_model;
    coli_bk_group group;
    coli_bk_tensor *experts[MAX_EXPERT];
    const coli_bk_source *expert_source[MAX_EXPERT];
    uint32_t n_row[MAX_EXPERT], row[MAX_PAIR], n_pair;
    coli_bk_join joins[MAX_PAIR];
    uint32_t term_pair[MAX_PAIR];
    float term_weight[MAX_PAIR];
    bool is_joined[MAX_PAIR];
    int8_t *q;
    float *d;
    float *y; // (n_pair, d_model) what the reference says
    bool in_range[MAX_PAIR];
} world;

static void make_experts(world *w, t_rng *rng)
{
    const uint32_t f = random_width(rng);
    w->d_model = random_width(rng);
    uint32_t formats[3] = {t_below(rng, COLI_BK_N_FORMAT), 0, t_below(rng, COLI_BK_N_FORMAT)};
    do formats[1] = t_below(rng, COLI_BK_N_FORMAT);
    while (coli_bk_layout_of(formats[1], 1).group != coli_bk_layout_of(formats[0], 1).group);
    for (uint32_t i = 0; i < MAX_EXPERT; i++) {
        T_OK(coli__ref_expert_block(&rng->state, formats, w->d_model, f, &w->sources[i]));
        if (t_below(rng, 8) == 0) w->sources[i].matrix[0].scale_exp = 60; // most rows are flagged
        T_BK(&host, fake.tensor_upload(dev, &w->sources[i], &w->tensors[i]), COLI_BK_OK, "");
    }
}

static void make_group(world *w, t_rng *rng)
{
    const uint32_t n_x = t_range(rng, 1, 40);
    const coli_bk_layout l = coli_bk_layout_of(w->sources[0].matrix[0].format, w->d_model);
    w->q = coli__calloc((size_t)n_x * l.n_group, l.group);
    w->d = coli__calloc((size_t)n_x * l.n_group, sizeof *w->d);
    coli__ref_rows(&rng->state, n_x, w->d_model, l.group, w->q, w->d);
    const uint32_t n_expert = t_below(rng, MAX_EXPERT + 1);
    for (uint32_t i = 0; i < n_expert; i++) { // with repetitions
        const uint32_t e = t_below(rng, MAX_EXPERT);
        w->experts[i] = w->tensors[e];
        w->expert_source[i] = &w->sources[e];
        w->n_row[i] = t_below(rng, 3) == 0 ? 0 : t_range(rng, 1, t_below(rng, 2) ? 4 : 40);
        for (uint32_t k = 0; k < w->n_row[i]; k++) w->row[w->n_pair++] = t_below(rng, n_x);
    }
    w->group = (coli_bk_group){.struct_size = sizeof w->group,
                               .n_expert = n_expert,
                               .experts = w->experts,
                               .n_row = w->n_row,
                               .row = w->row,
                               .n_x = n_x,
                               .group = l.group,
                               .n_group = l.n_group,
                               .q = w->q,
                               .d = w->d,
                               .joins = w->joins,
                               .term_pair = w->term_pair,
                               .term_weight = w->term_weight};
}

/* A part of the pairs in joins, of no to five terms each. */
static void make_joins(world *w, t_rng *rng)
{
    coli_bk_group *g = &w->group;
    for (uint32_t p = w->n_pair; p-- > 0;) { // backwards: the order is the host's choice
        if (t_below(rng, 3) == 0) continue;
        w->is_joined[p] = true;
        w->term_pair[g->n_term] = p;
        w->term_weight[g->n_term++] = t_normal(rng);
    }
    for (uint32_t first = 0; first < g->n_term; g->n_join++) {
        const uint32_t left = g->n_term - first, n = t_below(rng, left < 5 ? left + 1 : 6);
        w->joins[g->n_join] = (coli_bk_join){first, n};
        first += n;
        if (g->n_join == MAX_PAIR - 1) break;
    }
    // without a join a term is none
    uint32_t n_used = 0;
    for (uint32_t j = 0; j < g->n_join; j++) n_used += w->joins[j].n_term;
    for (; g->n_term > n_used; g->n_term--) w->is_joined[w->term_pair[g->n_term - 1]] = false;
}

static void compute_reference(world *w)
{
    w->y = coli__calloc((size_t)w->n_pair * w->d_model, sizeof *w->y);
    const coli_bk_group *g = &w->group;
    for (uint32_t i = 0, p = 0; i < g->n_expert; i++)
        for (uint32_t k = 0; k < w->n_row[i]; k++, p++) {
            const size_t at = (size_t)w->row[p] * g->n_group;
            T_OK(coli__ref_expert(w->expert_source[i], w->q + at * g->group, w->d + at,
                                  w->y + (size_t)p * w->d_model, &w->in_range[p]));
        }
}

static void check_result(const world *w, const coli_bk_result *r)
{
    const uint32_t d = w->d_model;
    uint32_t n = 0;
    for (uint32_t p = 0; p < w->n_pair; p++) {
        if (w->is_joined[p]) continue;
        T_LE(n + 1, r->n_row);
        T_EQ(r->flag[n], !w->in_range[p]);
        if (w->in_range[p]) T_MEM(r->y + n * r->ld, w->y + (size_t)p * d, d * sizeof *w->y);
        n++;
    }
    for (uint32_t j = 0; j < w->group.n_join; j++, n++) {
        const coli_bk_join *join = &w->joins[j];
        float sum[1024] = {0};
        bool in_range = true;
        for (uint32_t t = join->first_term; t < join->first_term + join->n_term; t++) {
            const uint32_t p = w->term_pair[t];
            in_range &= w->in_range[p];
            for (uint32_t c = 0; c < d; c++)
                sum[c] = sum[c] + w->term_weight[t] * w->y[(size_t)p * d + c];
        }
        T_LE(n + 1, r->n_row);
        T_EQ(r->flag[n], !in_range);
        if (in_range) T_MEM(r->y + n * r->ld, sum, d * sizeof *sum);
    }
    T_EQ(r->n_row, n);
}

static void free_world(world *w)
{
    for (uint32_t i = 0; i < MAX_EXPERT; i++) {
        fake.tensor_free(dev, w->tensors[i]);
        coli__free_aligned((void *)(uintptr_t)w->sources[i].data);
    }
    coli__free(w->q);
    coli__free(w->d);
    coli__free(w->y);
}

T_PROP(group_is_the_reference, 80)
{
    world w = {0};
    make_experts(&w, &rng);
    make_group(&w, &rng);
    if (t_below(&rng, 2)) make_joins(&w, &rng);
    compute_reference(&w);
    T_BK(&host, fake.group_issue(dev, &w.group), COLI_BK_OK, "");
    // all that was handed over is the host's again
    memset(w.q, 0x55, (size_t)w.group.n_x * w.group.n_group * w.group.group);
    memset(w.d, 0x55, (size_t)w.group.n_x * w.group.n_group * sizeof *w.d);
    coli_bk_result r = {.struct_size = sizeof r};
    T_BK(&host, fake.group_issue(dev, &w.group), COLI_BK_BUSY, "");
    T_BK(&host, fake.group_take(dev, UINT64_MAX, &r), COLI_BK_OK, "");
    check_result(&w, &r);
    T_BK(&host, fake.group_take(dev, UINT64_MAX, &r), COLI_BK_EMPTY, "");
    free_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_is_the_reference),
        cmocka_unit_test(group_is_the_reference),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
