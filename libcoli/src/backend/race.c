/* race.c - see race.h.  Both sides do what they do in a forward pass: the device gets its row through
 * its lane, the processor shares panels among its workers. */
#include "race.h"

#include "../base/alloc.h"
#include "../math/acts.h"
#include "devices.h"

enum { MAX_WEIGHTS = 8192 * 2048, MAX_PART = 8, ITEM_PANELS = 4 };
enum { WARM_UP = 3, ROUNDS = 3, PER_ROUND = 10 };
enum { ROUND_NS = 50 * 1000 * 1000 };

typedef struct runner {
    coli__device *dev;
    const coli__kernels *kernels;
    coli__pool *pool;
    coli__mat w;                   // the first part, or all
    const uint8_t *part[MAX_PART]; // where each begins: matrices of that shape
    uint32_t n_part, n_done;       // on the processor
    coli__acts x;                  // one row
    float *y;                      // (w.n_out)
    coli__products *products;
    coli_bk_tensor *tensor;
} runner;

/* -- one product ------------------------------------------------------------------------------- */

static void host_item(void *ctx, uint32_t item, uint32_t worker)
{
    const runner *r = ctx;
    (void)worker;
    const uint32_t n_panel = (r->w.n_out + COLI_PANEL - 1) / COLI_PANEL;
    const uint32_t begin = item * ITEM_PANELS;
    coli__matmul_args args = {.w = &r->w,
                              .n_row = 1,
                              .panel_begin = begin,
                              .panel_end =
                                  begin + ITEM_PANELS < n_panel ? begin + ITEM_PANELS : n_panel,
                              .y = r->y + (size_t)begin * COLI_PANEL,
                              .ldy = r->w.n_out};
    coli__acts_bind(&r->x, &args);
    r->kernels->matmul(&args);
}

static bool on_host(runner *r)
{
    r->w.data = r->part[r->n_done++ % r->n_part];
    const uint32_t n_out = COLI_PANEL * ITEM_PANELS;
    coli__pool_run(r->pool, (r->w.n_out + n_out - 1) / n_out, host_item, r);
    return true;
}

static bool on_device(runner *r)
{
    const coli__product product = {
        .w = r->tensor, .n_out = r->w.n_out, .y = r->y, .ld = r->w.n_out};
    return coli__products_run(r->products, r->x.q64.q ? &r->x.q64 : &r->x.q32, 0, 1, &product, 1);
}

/* -- the clock --------------------------------------------------------------------------------- */

static double wall_ns(const runner *r)
{
    (void)r;
    return (double)coli__clock_ns();
}

/* What a simulated device has done so far, by its own clock. */
static double simulated_ns(const runner *r)
{
    coli_bk_group_stats s;
    coli__device_group_stats(r->dev, &s);
    return (s.to_device_ms + s.kernel_ms + s.to_host_ms) * 1e6;
}

/* The time of one product, in the best round; 0 when it cannot be measured. */
static double best_of(runner *r, bool (*product)(runner *), double (*clock)(const runner *))
{
    uint64_t one = 0;
    for (uint32_t i = 0; i < WARM_UP || i < r->n_part; i++) { // each part is touched once
        const uint64_t begin = coli__clock_ns();
        if (!product(r)) return 0;
        one = coli__clock_ns() - begin;
    }
    const uint64_t fit = ROUND_NS / (one + 1);
    const uint32_t n = fit < 1 ? 1 : fit < PER_ROUND ? (uint32_t)fit : PER_ROUND;
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const double begin = clock(r);
        for (uint32_t i = 0; i < n; i++)
            if (!product(r)) return 0;
        const double took = (clock(r) - begin) / n;
        if (round == 0 || took < best) best = took;
    }
    return best;
}

/* -- the matrix -------------------------------------------------------------------------------- */

/* Some of its rows are a matrix, too: panels follow each other. */
static void cut(const coli__mat *w, runner *r)
{
    const uint32_t fit = MAX_WEIGHTS / w->n_in / COLI_PANEL * COLI_PANEL;
    const uint32_t n = fit > COLI_PANEL ? fit : COLI_PANEL;
    r->w = *w;
    if (n < w->n_out) r->w.n_out = n;
    uint64_t n_bytes = 0;
    coli__mat_bytes(w->fmt, r->w.n_out, w->n_in, &n_bytes, NULL);
    while (r->n_part < MAX_PART && r->n_part < w->n_out / r->w.n_out) {
        r->part[r->n_part] = w->data + r->n_part * n_bytes;
        r->n_part++;
    }
}

static coli_status prepare(runner *r)
{
    const coli__mat *w = &r->w;
    r->y = coli__alloc64((size_t)w->n_out * sizeof *r->y);
    if (!r->y) return COLI_E_NOMEM;
    COLI_TRY(coli__acts_init(&r->x, 1, w->n_in, coli__form_of(w->fmt) | COLI_FORM_F32));
    for (uint32_t i = 0; i < w->n_in; i++) r->x.f[i] = (float)(i % 61) - 30;
    coli__acts_quantise(&r->x, r->kernels, 0, 0, w->n_in, r->x.f);
    coli_bk_source source;
    const coli__dense_block block = {{w}, 1};
    if (!coli__devices_dense_source(r->dev, block, &source)) return COLI_E_UNSUPPORTED;
    COLI_TRY(coli__device_upload(r->dev, &source, &r->tensor));
    const size_t row_bytes = ((size_t)w->n_in + 63) & ~(size_t)63;
    return coli__products_create(r->dev, 1, row_bytes, w->n_out, &r->products);
}

bool coli__race_run(coli__device *dev, const coli__kernels *kernels, coli__pool *pool,
                    const coli__mat *w, coli__race *out)
{
    runner r = {.dev = dev, .kernels = kernels, .pool = pool};
    cut(w, &r);
    *out = (coli__race){.n_out = r.w.n_out, .n_in = r.w.n_in};
    if (prepare(&r) == COLI_OK) {
        const bool simulated = coli__device_info(dev)->kind == COLI_BK_SIMULATED;
        out->device_ns = best_of(&r, on_device, simulated ? simulated_ns : wall_ns);
        if (out->device_ns > 0) out->host_ns = best_of(&r, on_host, wall_ns);
    }
    coli__products_destroy(r.products);
    coli__device_free(dev, r.tensor);
    coli__acts_finish(&r.x);
    coli__free_aligned(r.y);
    return out->host_ns > 0;
}
