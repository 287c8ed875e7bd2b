/* selftest.c - see selftest.h.
 *
 * The widths are the smallest that tell a right device from the usual wrong ones: more than three
 * groups, so that a running sum differs from a tree; a last group and a last panel that are not
 * full; rows that differ, given to experts out of order. */
#include "selftest.h"

#include <stdio.h>
#include <string.h>

#include "../base/alloc.h"
#include "coli/exact.h"
#include "reference.h"

enum { D = 330, F = 200, N_ROW = 3, N_EXPERT = 2, N_OUT = 75, MAX_GROUP = (D + 31) / 32 };

static const char *const format_names[COLI_BK_N_FORMAT] = {
#define FORMAT_NAME(name, value, bits, group, per_row, scale_bytes) #name,
    COLI_BK_FORMAT_LIST(FORMAT_NAME)
#undef FORMAT_NAME
};

/* Rows of activations, and what the reference makes of them. */
typedef struct trial {
    coli__device *dev;
    uint32_t format;
    int8_t q[N_ROW * MAX_GROUP * 64];
    float d[N_ROW * MAX_GROUP];
    int32_t sum[1]; // no device reads it
    float expected[D];
} trial;

static coli__qrows rows_of(trial *w)
{
    const coli_bk_layout l = coli_bk_layout_of(w->format, D);
    return (coli__qrows){
        .q = w->q, .d = w->d, .sum = w->sum, .group = l.group, .n_group = l.n_group};
}

static coli_status compare(const trial *w, const char *kernel, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (coli_bits(y[i]) != coli_bits(w->expected[i]))
            return coli__fail(
                COLI_E_UNSUPPORTED,
                "%s %u (%s) does not compute as coli/exact.h demands: %s in %s, output "
                "%u: expected %08x, found %08x",
                coli__device_plugin(w->dev)->info.name, coli__device_ordinal(w->dev),
                coli__device_info(w->dev)->name, kernel, format_names[w->format], i,
                (unsigned)coli_bits(w->expected[i]), (unsigned)coli_bits(y[i]));
    return COLI_OK;
}

static coli_status compare_expert(trial *w, const coli_bk_source *expert, uint32_t row,
                                  const float *y)
{
    const coli__qrows x = rows_of(w);
    bool in_range;
    COLI_TRY(coli__ref_expert(expert, x.q + (size_t)row * x.n_group * x.group,
                              x.d + (size_t)row * x.n_group, w->expected, &in_range));
    return compare(w, "expert", y, D);
}

static coli_status failed(const trial *w)
{
    return coli__fail(COLI_E_IO, "%s %u (%s): the first group failed in %s",
                      coli__device_plugin(w->dev)->info.name, coli__device_ordinal(w->dev),
                      coli__device_info(w->dev)->name, format_names[w->format]);
}

/* Which rows each expert gets: not in order. */
static const uint32_t row_of[N_EXPERT][N_ROW] = {{2, 0, 1}, {1, 2, 0}};

static const float weights[N_EXPERT] = {0.625f, 0.3f}; // of a joined row's terms

static const coli_bk_result *issue(trial *w, coli__group *g, coli_bk_tensor **tensors, bool join)
{
    const coli__qrows x = rows_of(w);
    coli__group_begin(g, &x, N_ROW);
    for (uint32_t e = 0; e < N_EXPERT; e++) coli__group_add(g, tensors[e], N_ROW, row_of[e]);
    for (uint32_t t = 0; join && t < N_ROW; t++) {
        uint32_t pair[N_EXPERT];
        for (uint32_t p = 0; p < N_EXPERT * N_ROW; p++)
            if (row_of[p / N_ROW][p % N_ROW] == t) pair[p / N_ROW] = p;
        coli__group_join(g, pair, weights);
    }
    coli__group_start(g, NULL);
    return coli__group_wait(g);
}

/* The rows as they are, then joined on the device, whose sums are compared with the former's. */
static coli_status run_groups(trial *w, const coli_bk_source *sources, coli_bk_tensor **tensors,
                              coli__group *g)
{
    float sum[N_ROW][D] = {{0}};
    const coli_bk_result *r = issue(w, g, tensors, false);
    if (!r) return failed(w);
    for (uint32_t p = 0; p < N_EXPERT * N_ROW; p++) {
        const uint32_t e = p / N_ROW, t = row_of[e][p % N_ROW];
        const float *y = r->y + p * r->ld;
        COLI_TRY(compare_expert(w, &sources[e], t, y));
        for (uint32_t i = 0; i < D; i++) sum[t][i] = sum[t][i] + weights[e] * y[i];
    }
    if (!coli__group_can_join(g)) return COLI_OK;
    r = issue(w, g, tensors, true);
    if (!r) return failed(w);
    for (uint32_t t = 0; t < N_ROW; t++) {
        memcpy(w->expected, sum[t], sizeof w->expected);
        COLI_TRY(compare(w, "join", r->y + t * r->ld, D));
    }
    return COLI_OK;
}

static coli_status run_group(trial *w, const coli_bk_source *sources, coli_bk_tensor **tensors)
{
    const coli__group_limits limits = {.max_x = N_ROW,
                                       .max_expert = N_EXPERT,
                                       .max_pair = N_EXPERT * N_ROW,
                                       .n_used = N_EXPERT,
                                       .d_model = D,
                                       .max_row_bytes = (size_t)MAX_GROUP * 64};
    coli__group *g;
    COLI_TRY(coli__group_create(w->dev, &limits, &g));
    const coli_status status = run_groups(w, sources, tensors, g);
    coli__group_destroy(g);
    return status;
}

static coli_status test_experts(trial *w, uint64_t *seed)
{
    const uint32_t formats[3] = {w->format, w->format, w->format};
    coli_bk_source source[N_EXPERT] = {0};
    coli_bk_tensor *tensor[N_EXPERT] = {0};
    coli_status status = COLI_OK;
    for (uint32_t e = 0; e < N_EXPERT && status == COLI_OK; e++) {
        status = coli__ref_expert_block(seed, formats, D, F, &source[e]);
        if (status == COLI_OK) status = coli__device_upload(w->dev, &source[e], &tensor[e]);
    }
    if (status == COLI_OK) status = run_group(w, source, tensor);
    for (uint32_t e = 0; e < N_EXPERT; e++) {
        coli__device_free(w->dev, tensor[e]);
        if (!coli__device_hangs(w->dev)) coli__free_aligned((void *)source[e].data);
    }
    return status;
}

static coli_status run_product(trial *w, const coli_bk_source *source, coli_bk_tensor *tensor)
{
    const coli__qrows x = rows_of(w);
    float y[N_ROW * N_OUT];
    const coli__product product = {.w = tensor, .n_out = N_OUT, .y = y, .ld = N_OUT};
    coli__products *p;
    COLI_TRY(coli__products_create(w->dev, N_ROW, (size_t)MAX_GROUP * 64, N_ROW * N_OUT, &p));
    const bool done = coli__products_run(p, &x, 0, N_ROW, &product, 1);
    coli__products_destroy(p);
    if (!done) return COLI_OK; // it has no matmul after all, or is lost: the caller sees that
    coli_status status = COLI_OK;
    for (uint32_t i = 0; i < N_ROW && status == COLI_OK; i++) {
        coli__ref_product(&source->matrix[0], source->data, x.q + (size_t)i * x.n_group * x.group,
                          x.d + (size_t)i * x.n_group, w->expected);
        status = compare(w, "matmul", y + i * N_OUT, N_OUT);
    }
    return status;
}

static coli_status test_product(trial *w, uint64_t *seed)
{
    coli_bk_source source;
    coli_bk_tensor *tensor = NULL;
    COLI_TRY(coli__ref_matrix_block(seed, w->format, N_OUT, D, &source));
    coli_status status = coli__device_upload(w->dev, &source, &tensor);
    if (status == COLI_OK) status = run_product(w, &source, tensor);
    coli__device_free(w->dev, tensor);
    if (!coli__device_hangs(w->dev)) coli__free_aligned((void *)source.data);
    return status;
}

coli_status coli__device_self_test(coli__device *dev, uint32_t formats)
{
    uint64_t seed = 1;
    trial w = {.dev = dev};
    for (w.format = 0; w.format < COLI_BK_N_FORMAT; w.format++) {
        if (!(formats >> w.format & 1)) continue;
        const coli_bk_layout l = coli_bk_layout_of(w.format, D);
        coli__ref_rows(&seed, N_ROW, D, l.group, w.q, w.d);
        COLI_TRY(test_experts(&w, &seed));
        if (coli__device_multiplies(dev)) COLI_TRY(test_product(&w, &seed));
    }
    if (!coli__device_alive(dev)) return coli__fail(COLI_E_IO, "%s", coli__device_why(dev));
    return COLI_OK;
}
