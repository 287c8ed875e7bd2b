/* moe_oracle.c - the MoE layer against slow double-precision code written from docs/qwen36.md
 * alone, in float and quantised formats, over random shapes.
 *
 * Tolerances, in units of the sum of the magnitudes of what is added up.  Float weights: products
 * and sums of at most 150 terms, three matrices deep, each rounding 2^-24, partly cancelling: 2e-6.
 * Quantised weights: the oracle uses the weights as stored (coli__mat_row) and unquantised
 * activations, so what remains is the rounding of activations to 8 bits, twice: half a step of
 * amax/127 per number, random in sign: 2e-2. */
#include "t.h"

#include "libcoli/src/moe/moe.h"
#include "libcoli/src/moe/route.h"

typedef struct world {
    uint32_t n_expert, n_used, d_model, d_ff, d_ff_shared, n_tok;
    coli__wfmt fmt;
    coli__moe_layer layer;
    coli__ct_experts experts;
    int32_t scale_exp[20 * 3];
    void *blocks[8];
    uint32_t n_block;
    float *x; // (n_tok, d_model)
} world;

static coli__mat pack(world *w, coli__wfmt fmt, uint32_t n_out, uint32_t n_in, t_rng *rng,
                      uint8_t *at)
{
    uint64_t bytes, panel;
    T_TRUE(coli__mat_bytes(fmt, n_out, n_in, &bytes, &panel));
    if (!at) at = w->blocks[w->n_block++] = coli__alloc64((size_t)bytes);
    coli__mat m = {.data = at, .n_out = n_out, .n_in = n_in, .fmt = fmt};
    float *rows = malloc(16 * (size_t)n_in * sizeof *rows);
    uint8_t *whole =
        malloc((size_t)panel); // the last panel of a float matrix is stored without its padding
    if (coli__wfmt_is_quant(fmt) && fmt.scale_f16)
        T_TRUE(coli__scale_exp_for(fmt, 4.0f, 0.001f, &m.scale_exp));
    for (uint32_t r = 0; r < n_out; r += 16) {
        const uint32_t n = n_out - r < 16 ? n_out - r : 16;
        for (size_t i = 0; i < (size_t)n * n_in; i++) rows[i] = t_normal(rng) / sqrtf((float)n_in);
        T_OK(coli__mat_pack_panel(fmt, rows, n, n_in, n_in, m.scale_exp, whole));
        const uint64_t first = r / 16 * panel, left = bytes - first;
        memcpy(at + first, whole, (size_t)(left < panel ? left : panel));
    }
    free(whole);
    free(rows);
    return m;
}

static void make(world *w, t_rng *rng, uint32_t max_d_model, uint32_t max_tok)
{
    static const coli__wfmt formats[] = {{.type = COLI_W_F32},
                                         {.type = COLI_W_BF16},
                                         {.type = COLI_W_I8, .group = 64, .scale_f16 = true},
                                         {.type = COLI_W_I4, .group = 32},
                                         {.type = COLI_W_I8, .group = 64, .per_row = true}};
    const coli__wfmt f32 = {.type = COLI_W_F32};
    *w = (world){.n_expert = t_range(rng, 1, 20),
                 .d_model = t_range(rng, 1, max_d_model),
                 .d_ff = t_range(rng, 1, 140),
                 .d_ff_shared = t_range(rng, 1, 90),
                 .n_tok = t_range(rng, 1, max_tok),
                 .fmt = formats[t_below(rng, 5)]};
    w->n_used = t_range(rng, 1, w->n_expert < 6 ? w->n_expert : 6);
    w->layer.router = pack(w, f32, w->n_expert, w->d_model, rng, NULL);
    w->layer.shared_gate_row = pack(w, f32, 1, w->d_model, rng, NULL);
    w->layer.shared_gate = pack(w, w->fmt, w->d_ff_shared, w->d_model, rng, NULL);
    w->layer.shared_up = pack(w, w->fmt, w->d_ff_shared, w->d_model, rng, NULL);
    w->layer.shared_down = pack(w, w->fmt, w->d_model, w->d_ff_shared, rng, NULL);

    uint64_t in, out;
    T_TRUE(coli__mat_bytes(w->fmt, w->d_ff, w->d_model, &in, NULL));
    T_TRUE(coli__mat_bytes(w->fmt, w->d_model, w->d_ff, &out, NULL));
    in = (in + 63) & ~63u;
    out = (out + 63) & ~63u;
    coli__ct_experts *e = &w->experts;
    *e = (coli__ct_experts){.n_expert = w->n_expert,
                            .d_model = w->d_model,
                            .d_ff = w->d_ff,
                            .block_bytes = 2 * in + out,
                            .up_offset = in,
                            .down_offset = 2 * in};
    uint8_t *data = w->blocks[w->n_block++] = coli__alloc64((size_t)(w->n_expert * e->block_bytes));
    e->data = data;
    e->scale_exp = w->scale_exp;
    for (uint32_t i = w->n_expert; i-- > 0;) { // expert 0 last: its matrices stay in e
        e->gate = pack(w, w->fmt, w->d_ff, w->d_model, rng, data + i * e->block_bytes);
        e->up = pack(w, w->fmt, w->d_ff, w->d_model, rng, data + i * e->block_bytes + in);
        e->down = pack(w, w->fmt, w->d_model, w->d_ff, rng, data + i * e->block_bytes + 2 * in);
        w->scale_exp[3 * i] = e->gate.scale_exp;
        w->scale_exp[3 * i + 1] = e->up.scale_exp;
        w->scale_exp[3 * i + 2] = e->down.scale_exp;
    }
    w->layer.experts = e;
    w->x = malloc((size_t)w->n_tok * w->d_model * sizeof *w->x);
    for (size_t i = 0; i < (size_t)w->n_tok * w->d_model; i++) w->x[i] = t_normal(rng);
}

static void drop(world *w)
{
    for (uint32_t i = 0; i < w->n_block; i++) coli__free_aligned(w->blocks[i]);
    free(w->x);
}

/* -- the oracle -------------------------------------------------------------------------------- */

static void times(const coli__mat *m, const double *x, double *y)
{
    float *row = malloc(m->n_in * sizeof *row);
    for (uint32_t o = 0; o < m->n_out; o++) {
        coli__mat_row(m, o, row);
        y[o] = 0;
        for (uint32_t i = 0; i < m->n_in; i++) y[o] += (double)row[i] * x[i];
    }
    free(row);
}

static void swiglu(const coli__mat *gate, const coli__mat *up, const coli__mat *down,
                   const double *x, double weight, double *add, double *size)
{
    double g[200], u[200], y[200], largest = 0;
    times(gate, x, g);
    times(up, x, u);
    for (uint32_t i = 0; i < gate->n_out; i++) g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    times(down, g, y);
    float row[200];
    for (uint32_t o = 0; o < down->n_out; o++) {
        double sum = 0;
        coli__mat_row(down, o, row);
        for (uint32_t i = 0; i < down->n_in; i++) sum += fabs((double)row[i] * g[i]);
        largest = fmax(largest, sum);
        add[o] += weight * y[o];
    }
    *size += weight * largest;
}

/* The row's output; false when two router logits at the border are too close to call. */
static bool oracle(const world *w, const float *xf, double *out, double *size)
{
    double x[200], l[32], shared;
    for (uint32_t i = 0; i < w->d_model; i++) x[i] = (double)xf[i];
    times(&w->layer.router, x, l);
    times(&w->layer.shared_gate_row, x, &shared);
    memset(out, 0, w->d_model * sizeof *out);
    double sum = 0, chosen_w[8], last = 0;
    uint32_t chosen[8];
    for (uint32_t k = 0; k < w->n_used; k++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < w->n_expert; e++)
            if (l[e] > l[best]) best = e;
        chosen[k] = best;
        chosen_w[k] = exp(l[best]);
        sum += chosen_w[k];
        last = l[best];
        l[best] = -HUGE_VAL;
    }
    for (uint32_t e = 0; e < w->n_expert; e++)
        if (last - l[e] < 1e-5) return false;
    for (uint32_t k = 0; k < w->n_used; k++) {
        coli__mat gate, up, down;
        coli__ct_expert(&w->experts, chosen[k], &gate, &up, &down);
        swiglu(&gate, &up, &down, x, chosen_w[k] / sum, out, size);
    }
    swiglu(&w->layer.shared_gate, &w->layer.shared_up, &w->layer.shared_down, x,
           1 / (1 + exp(-shared)), out, size);
    return true;
}

/* routed: row by row beforehand, else by coli__moe_run. */
static void run(const world *w, coli__pool *pool, const char *isa, bool routed, float *h)
{
    const coli__kernels *k;
    coli__moe *moe;
    T_OK(coli__kernels_get(isa, &k));
    T_OK(coli__moe_create(&w->layer, 1, w->n_used, w->n_tok, coli__pool_n_worker(pool), k, NULL,
                          NULL, &moe));
    for (uint32_t t = 0; t < w->n_tok; t++) {
        memcpy(coli__moe_input(moe, t), w->x + (size_t)t * w->d_model, w->d_model * sizeof(float));
        if (routed) coli__moe_route(moe, &w->layer, t, 1);
    }
    const uint64_t before = coli__pool_n_sync(pool);
    T_OK(coli__moe_run(moe, &w->layer, pool, w->n_tok, routed, 0, h));
    T_LE(coli__pool_n_sync(pool) - before, routed || w->n_tok == 1 ? 2 : 4);
    coli__moe_destroy(moe);
}

T_PROP(matches_double_precision, 150)
{
    world w;
    make(&w, &rng, 150, 70);
    coli__pool *one, *three;
    T_OK(coli__pool_create(1, &one));
    T_OK(coli__pool_create(3, &three));
    const size_t n = (size_t)w.n_tok * w.d_model;
    float *h = malloc(n * sizeof *h), *again = malloc(n * sizeof *h),
          *start = malloc(n * sizeof *h);
    for (size_t i = 0; i < n; i++) start[i] = t_normal(&rng);
    memcpy(h, start, n * sizeof *h);
    memcpy(again, start, n * sizeof *h);
    run(&w, three, NULL, true, h);
    run(&w, one, "scalar", true, again);
    T_MEM(h, again, n * sizeof *h);
    memcpy(again, start, n * sizeof *h);
    run(&w, three, NULL, false, again);
    T_MEM(h, again, n * sizeof *h);

    const double tolerance = coli__wfmt_is_quant(w.fmt) ? 2e-2 : 2e-6;
    for (uint32_t t = 0; t < w.n_tok; t++) {
        double want[200], size = 0.01;
        if (!oracle(&w, w.x + (size_t)t * w.d_model, want, &size)) continue;
        for (uint32_t i = 0; i < w.d_model; i++) {
            const size_t at = (size_t)t * w.d_model + i;
            const double adding = 0x1p-23 * fabs((double)h[at]); // to the residual stream
            T_FLE(fabs((double)h[at] - (double)start[at] - want[i]), tolerance * size + adding);
        }
    }
    free(h);
    free(again);
    free(start);
    coli__pool_destroy(one);
    coli__pool_destroy(three);
    drop(&w);
}

/* Few rows and many, any number of columns and of workers: as one worker computes row after row. */
T_PROP(bytes_are_those_of_a_row_alone, 40)
{
    world w;
    make(&w, &rng, 700, t_below(&rng, 2) ? 600 : 12);
    coli__moe_product_max = t_below(&rng, 2) ? 1 << 19 : t_range(&rng, 1, 5000);
    coli__pool *one, *some;
    T_OK(coli__pool_create(1, &one));
    T_OK(coli__pool_create(t_range(&rng, 1, 9), &some));
    const size_t n = (size_t)w.n_tok * w.d_model;
    float *h = calloc(n, sizeof *h), *alone = calloc(n, sizeof *alone);
    run(&w, some, NULL, t_below(&rng, 2), h);
    world row = w;
    row.n_tok = 1;
    for (uint32_t t = 0; t < w.n_tok; t += 1 + w.n_tok / 16) {
        row.x = w.x + (size_t)t * w.d_model;
        run(&row, one, NULL, false, alone + (size_t)t * w.d_model);
        T_MEM(h + (size_t)t * w.d_model, alone + (size_t)t * w.d_model, w.d_model * sizeof *h);
    }
    coli__moe_product_max = 1 << 19;
    free(h);
    free(alone);
    coli__pool_destroy(one);
    coli__pool_destroy(some);
    drop(&w);
}

T_PROP(out_of_range_is_reported, 60)
{
    world w;
    make(&w, &rng, 150, 70);
    const uint32_t bad = t_below(&rng, w.n_tok);
    const bool routed = t_below(&rng, 2);
    static const float values[] = {NAN, INFINITY, -INFINITY, 0x1p41f};
    float *row = w.x + (size_t)bad * w.d_model;
    const bool quantised = coli__wfmt_is_quant(w.fmt);
    if (quantised && t_below(&rng, 3) == 0) // the row is within the range, silu(gate) * up is not
        for (uint32_t i = 0; i < w.d_model; i++) row[i] = 0x1p39f;
    else
        row[t_below(&rng, w.d_model)] = values[t_below(&rng, quantised ? 4 : 3)];
    const coli__kernels *k;
    coli__moe *moe;
    coli__pool *pool;
    T_OK(coli__pool_create(2, &pool));
    T_OK(coli__kernels_get(NULL, &k));
    T_OK(coli__moe_create(&w.layer, 1, w.n_used, w.n_tok, 2, k, NULL, NULL, &moe));
    for (uint32_t t = 0; t < w.n_tok; t++)
        memcpy(coli__moe_input(moe, t), w.x + (size_t)t * w.d_model, w.d_model * sizeof(float));
    if (routed) coli__moe_route(moe, &w.layer, 0, w.n_tok);
    float *h = calloc((size_t)w.n_tok * w.d_model, sizeof *h);
    char text[32];
    snprintf(text, sizeof text, "position %u:", 100 + bad);
    T_FAILS(coli__moe_run(moe, &w.layer, pool, w.n_tok, routed, 100, h), COLI_E_NUMERIC, text);
    free(h);
    coli__moe_destroy(moe);
    coli__pool_destroy(pool);
    drop(&w);
}

/* -- route ------------------------------------------------------------------------------------- */

T_TEST(route_hand_numbers) // docs/qwen36.md: the lower id first on a tie
{
    T_BEGIN;
    const coli__kernels *k;
    T_OK(coli__kernels_get("scalar", &k));
    const float logits[] = {1, 3, 2, 3, -1, 0};
    int32_t ids[3];
    float w[3];
    T_TRUE(coli__route_softmax_topk(k, logits, 6, 3, ids, w));
    T_EQ(ids[0], 1);
    T_EQ(ids[1], 3);
    T_EQ(ids[2], 2);
    T_FLE(fabs((double)w[0] - 0.422318798), 1e-7);
    T_FLE(fabs((double)w[1] - 0.422318798), 1e-7);
    T_FLE(fabs((double)w[2] - 0.155362403), 1e-7);
}

T_PROP(route_against_a_sort, 2000)
{
    const coli__kernels *k;
    T_OK(coli__kernels_get(NULL, &k));
    const uint32_t n = t_range(&rng, 1, 64), used = t_range(&rng, 1, n);
    float logits[64], w[64];
    int32_t ids[64];
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        logits[i] = (float)t_below(&rng, 12) / 4; // many ties
        if (t_below(&rng, 200) == 0) logits[i] = t_below(&rng, 2) ? NAN : INFINITY;
        finite = finite && isfinite(logits[i]);
    }
    T_EQ(coli__route_softmax_topk(k, logits, n, used, ids, w), finite);
    double sum = 0;
    for (uint32_t r = 0; r < used; r++) {
        sum += (double)w[r];
        T_TRUE(ids[r] >= 0 && (uint32_t)ids[r] < n);
        if (r > 0 && finite) {
            const float a = logits[ids[r - 1]], b = logits[ids[r]];
            T_TRUE(a > b || (a == b && ids[r - 1] < ids[r]));
        }
    }
    T_FLE(fabs(sum - 1), 1e-5);
    double all = 0;
    for (uint32_t r = 0; finite && r < used; r++) all += exp((double)logits[ids[r]]);
    for (uint32_t r = 0; finite && r < used; r++)
        T_FLE(fabs((double)w[r] - exp((double)logits[ids[r]]) / all), 1e-6);
    for (uint32_t e = 0; e < n && finite; e++) { // nobody outside is better than the last inside
        bool in = false;
        for (uint32_t r = 0; r < used; r++) in = in || ids[r] == (int32_t)e;
        const float border = logits[ids[used - 1]];
        if (!in) T_TRUE(logits[e] < border || (logits[e] == border && (int32_t)e > ids[used - 1]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_double_precision),
        cmocka_unit_test(bytes_are_those_of_a_row_alone),
        cmocka_unit_test(out_of_range_is_reported),
        cmocka_unit_test(route_hand_numbers),
        cmocka_unit_test(route_against_a_sort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
