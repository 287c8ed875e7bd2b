/* measure.c - where a model's time goes, and what its machine could do at best.
 *
 * The clock is the pool's (base/threads.h).  All workers' times are added up, so dividing by their
 * number gives parts that sum up to the time on the wall.  That hides who waited for whom: two
 * workers that take turns look twice as fast as they are.  So the times that bytes are divided by
 * are the caller's own, its waiting included.
 *
 * stream   every worker reads slices of one buffer, larger than any cache, and adds them up.  All
 *          pages were written before: reading fresh ones would read one page of zeros.
 * peak     every worker runs the multiply instruction on registers (math/peak.h), or, where there
 *          is none to name, the matmul kernel on a matrix that fits its nearest caches.
 *
 * Both go through the model's own pool and kernels, so they are what *this* model could reach. */
#include <string.h>

#include "../base/memory.h"
#include "../math/acts.h"
#include "../math/peak.h"
#include "api.h"
#include "model.h"

/* -- the clock --------------------------------------------------------------------------------- */

coli_status coli_clock_start(coli_model *m)
{
    if (!m) return coli__fail(COLI_E_INVALID, "coli_clock_start: model is NULL");
    pthread_mutex_lock(&m->mu);
    coli__pool_clock_start(m->pool, COLI_PHASE_OUTSIDE);
    pthread_mutex_unlock(&m->mu);
    return COLI_OK;
}

coli_status coli_clock_stop(coli_model *m, coli_phases *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_phases", out));
    if (!m || !out) return coli__fail(COLI_E_INVALID, "coli_clock_stop: an argument is NULL");
    uint64_t ns[COLI_MAX_PHASE], wall_ns[COLI_MAX_PHASE], all = 0;
    pthread_mutex_lock(&m->mu);
    coli__pool_clock_stop(m->pool, ns, wall_ns);
    pthread_mutex_unlock(&m->mu);
    const uint32_t n = coli__pool_n_worker(m->pool);
    // while the caller is outside, the others have nothing to wait for
    const uint64_t outside = ns[COLI_PHASE_OUTSIDE], idle = outside * (n - 1);
    const uint64_t waiting = ns[COLI_PHASE_WAITING];
    ns[COLI_PHASE_WAITING] = waiting > idle ? waiting - idle : 0;
    ns[COLI_PHASE_OUTSIDE] = 0;
    for (uint32_t p = 0; p < COLI_MAX_PHASE; p++) all += ns[p] = ns[p] / n;
    const coli_phases full = {.n_threads = n,
                              .total_ns = all,
                              .router_ns = ns[COLI_PHASE_ROUTER],
                              .experts_ns = ns[COLI_PHASE_EXPERTS],
                              .shared_ns = ns[COLI_PHASE_SHARED],
                              .deltanet_ns = ns[COLI_PHASE_DELTANET],
                              .attention_ns = ns[COLI_PHASE_ATTENTION],
                              .projections_ns = ns[COLI_PHASE_PROJECTIONS],
                              .head_ns = ns[COLI_PHASE_HEAD],
                              .sampling_ns = ns[COLI_PHASE_SAMPLING],
                              .other_ns = ns[COLI_PHASE_OTHER],
                              .waiting_ns = ns[COLI_PHASE_WAITING],
                              .experts_wall_ns = wall_ns[COLI_PHASE_EXPERTS],
                              .trunk_wall_ns = wall_ns[COLI_PHASE_ROUTER] +
                                               wall_ns[COLI_PHASE_SHARED] +
                                               wall_ns[COLI_PHASE_PROJECTIONS],
                              .head_wall_ns = wall_ns[COLI_PHASE_HEAD]};
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}

/* -- the machine ------------------------------------------------------------------------------- */

enum {
    SLICE_BYTES = 4 << 20, // long enough that fetching the next one does not show
    MIN_BUFFER_BYTES = 2 * SLICE_BYTES,
    ITEMS_PER_WORKER = 16, // so that a late worker does not set the time
    // a matrix and its rows in the second-level cache of any processor since 2015
    CACHED_N_OUT = 256,
    CACHED_N_IN = 512,
    CACHED_N_ROW = 16,
};
static const uint64_t DEFAULT_BUFFER_BYTES = (uint64_t)2 << 30;
static const uint64_t PEAK_NS = 50000000; // a call's length; wakes and clock reads vanish in it

/* A worker's results, on its own cache line. */
typedef struct sink {
    _Alignas(64) uint64_t value, n_mac;
} sink;

struct coli_machine {
    coli_model *m;
    uint64_t buffer_bytes, wanted_bytes, cache_bytes;
    void *buffer; // huge pages where there are some: the fastest way to read
    sink *sinks;  // (n_worker)

    const coli__peak *peak; // or NULL: then the rest
    uint32_t n_round;       // per item
    coli__mat mat;          // (CACHED_N_OUT, CACHED_N_IN) int4, all codes and scales 0
    uint8_t *weights;
    coli__acts rows; // (CACHED_N_ROW, CACHED_N_IN) of zeros
    float *y;        // (n_worker, CACHED_N_ROW, CACHED_N_OUT)
};

static void touch_item(void *ctx, uint32_t item, uint32_t worker)
{
    (void)worker;
    const coli_machine *c = ctx;
    memset((uint8_t *)c->buffer + (uint64_t)item * SLICE_BYTES, 1, SLICE_BYTES);
}

static void read_item(void *ctx, uint32_t item, uint32_t worker)
{
    typedef uint64_t pair __attribute__((vector_size(16)));
    enum { N_LANE = 8 };
    const coli_machine *c = ctx;
    const pair *p = (const pair *)c->buffer + item * (SLICE_BYTES / sizeof *p);
    pair sum[N_LANE] = {{0}};
    for (size_t i = 0; i < SLICE_BYTES / sizeof *p; i += N_LANE)
        for (size_t l = 0; l < N_LANE; l++) sum[l] += p[i + l];
    for (size_t l = 0; l < N_LANE; l++) c->sinks[worker].value += sum[l][0] + sum[l][1];
}

static void peak_item(void *ctx, uint32_t item, uint32_t worker)
{
    (void)item;
    const coli_machine *c = ctx;
    sink *s = &c->sinks[worker];
    if (c->peak) {
        s->n_mac += c->peak->run(c->n_round, &s->value);
        return;
    }
    coli__matmul_args args = {.w = &c->mat,
                              .n_row = CACHED_N_ROW,
                              .panel_end = CACHED_N_OUT / COLI_PANEL,
                              .y = c->y + (size_t)worker * CACHED_N_ROW * CACHED_N_OUT,
                              .ldy = CACHED_N_OUT};
    coli__acts_bind(&c->rows, &args);
    for (uint32_t i = 0; i < c->n_round; i++) c->m->kernels->matmul(&args);
    s->n_mac += (uint64_t)c->n_round * CACHED_N_ROW * CACHED_N_OUT * CACHED_N_IN;
}

/* Seconds of one run, with the pool to itself. */
static double timed_run(const coli_machine *c, uint32_t n_item, coli__pool_fn fn)
{
    pthread_mutex_lock(&c->m->mu);
    const coli__fp fp = coli__fp_enter();
    const uint64_t start_ns = coli__clock_ns();
    coli__pool_run(c->m->pool, n_item, fn, (void *)(uintptr_t)c);
    const uint64_t ns = coli__clock_ns() - start_ns;
    coli__fp_leave(fp);
    pthread_mutex_unlock(&c->m->mu);
    return (double)(ns ? ns : 1) * 1e-9;
}

static uint32_t n_slice(const coli_machine *c)
{
    return (uint32_t)(c->buffer_bytes / SLICE_BYTES);
}

static uint32_t n_peak_item(const coli_machine *c)
{
    return coli__pool_n_worker(c->m->pool) * ITEMS_PER_WORKER;
}

/* As many rounds as make a call long enough. */
static void calibrate(coli_machine *c)
{
    const double wanted_s = (double)PEAK_NS * 1e-9;
    for (c->n_round = 1; c->n_round < 1u << 28; c->n_round *= 2)
        if (timed_run(c, n_peak_item(c), peak_item) >= wanted_s) return;
}

static coli_status prepare_matmul(coli_machine *c)
{
    uint64_t n_bytes;
    c->mat = (coli__mat){.n_out = CACHED_N_OUT,
                         .n_in = CACHED_N_IN,
                         .fmt = {.type = COLI_W_I4, .group = 64, .scale_f16 = true}};
    if (!coli__mat_bytes(c->mat.fmt, CACHED_N_OUT, CACHED_N_IN, &n_bytes, NULL))
        return coli__fail(COLI_E_INTERNAL, "coli_machine_open: no such matrix");
    COLI_TRY(coli__acts_init(&c->rows, CACHED_N_ROW, CACHED_N_IN, coli__form_of(c->mat.fmt)));
    const size_t n_y = (size_t)CACHED_N_ROW * CACHED_N_OUT * coli__pool_n_worker(c->m->pool);
    c->mat.data = c->weights = coli__alloc64((size_t)n_bytes);
    c->y = coli__alloc64(n_y * sizeof(float));
    return c->weights && c->y ? COLI_OK : COLI_E_NOMEM;
}

/* What was asked for, or the default; no more than half of what is free. */
static void choose_buffer(coli_machine *c, uint64_t asked_bytes)
{
    c->cache_bytes = coli__cache_bytes();
    const uint64_t caches = 8 * c->cache_bytes;
    c->wanted_bytes = caches > DEFAULT_BUFFER_BYTES ? caches : DEFAULT_BUFFER_BYTES;
    if (asked_bytes) c->wanted_bytes = asked_bytes;
    if (c->wanted_bytes < MIN_BUFFER_BYTES) c->wanted_bytes = MIN_BUFFER_BYTES;
    c->wanted_bytes = c->wanted_bytes / SLICE_BYTES * SLICE_BYTES;
    const uint64_t available = coli__memory_available();
    uint64_t most = available ? available / 2 : c->wanted_bytes;
    if (most < MIN_BUFFER_BYTES) most = MIN_BUFFER_BYTES;
    if (most > SIZE_MAX / 2) most = SIZE_MAX / 2;
    most = most / SLICE_BYTES * SLICE_BYTES;
    c->buffer_bytes = c->wanted_bytes < most ? c->wanted_bytes : most;
}

coli_status coli_machine_open(coli_model *m, uint64_t buffer_bytes, coli_machine **out)
{
    if (out) *out = NULL;
    if (!m || !out) return coli__fail(COLI_E_INVALID, "coli_machine_open: an argument is NULL");
    if (buffer_bytes > (uint64_t)1 << 40)
        return coli__fail(COLI_E_INVALID, "coli_machine_open: a buffer of more than 1 TiB");
    coli_machine *c = coli__calloc(1, sizeof *c);
    if (!c) return COLI_E_NOMEM;
    c->m = m;
    c->peak = coli__peak_of(m->kernels);
    choose_buffer(c, buffer_bytes);
    c->sinks = coli__alloc64(coli__pool_n_worker(m->pool) * sizeof *c->sinks);
    coli_status status = c->sinks ? coli__pages_take(c->buffer_bytes, &c->buffer) : COLI_E_NOMEM;
    if (status == COLI_OK && !c->peak) status = prepare_matmul(c);
    if (status != COLI_OK) {
        coli_machine_close(c);
        return status;
    }
    timed_run(c, n_slice(c), touch_item);
    calibrate(c);
    *out = c;
    return COLI_OK;
}

void coli_machine_close(coli_machine *c)
{
    if (!c) return;
    coli__pages_give(c->buffer, c->buffer_bytes);
    coli__free_aligned(c->sinks);
    coli__free_aligned(c->weights);
    coli__acts_finish(&c->rows);
    coli__free_aligned(c->y);
    coli__free(c);
}

coli_status coli_machine_get_info(const coli_machine *c, coli_machine_info *info)
{
    if (info) COLI_TRY(coli__struct_clear("coli_machine_info", info));
    if (!c || !info)
        return coli__fail(COLI_E_INVALID, "coli_machine_get_info: an argument is NULL");
    const coli_machine_info full = {.n_threads = coli__pool_n_worker(c->m->pool),
                                    .buffer_bytes = c->buffer_bytes,
                                    .wanted_bytes = c->wanted_bytes,
                                    .cache_bytes = c->cache_bytes,
                                    .peak_method =
                                        c->peak ? c->peak->method : "matmul kernel in cache"};
    coli__struct_fill(info, &full, sizeof full);
    return COLI_OK;
}

coli_status coli_machine_stream(coli_machine *c, double *gb_s)
{
    if (gb_s) *gb_s = 0;
    if (!c || !gb_s) return coli__fail(COLI_E_INVALID, "coli_machine_stream: an argument is NULL");
    *gb_s = (double)c->buffer_bytes / timed_run(c, n_slice(c), read_item) * 1e-9;
    return COLI_OK;
}

coli_status coli_machine_peak(coli_machine *c, double *gmac_s)
{
    if (gmac_s) *gmac_s = 0;
    if (!c || !gmac_s) return coli__fail(COLI_E_INVALID, "coli_machine_peak: an argument is NULL");
    const uint32_t n_worker = coli__pool_n_worker(c->m->pool);
    for (uint32_t w = 0; w < n_worker; w++) c->sinks[w].n_mac = 0;
    const double seconds = timed_run(c, n_peak_item(c), peak_item);
    uint64_t n_mac = 0;
    for (uint32_t w = 0; w < n_worker; w++) n_mac += c->sinks[w].n_mac;
    *gmac_s = (double)n_mac / seconds * 1e-9;
    return COLI_OK;
}
