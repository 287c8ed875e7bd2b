/* plan_measure.c - see plan_measure.h.
 *
 *     memory   the stream of coli_machine, over a buffer as large as what the model has in memory, at most
 *              256 MiB: a model that fits a cache is read from there, now and later
 *     compute  its peak
 *     threads  items that do nothing, as a layer's phases begin
 *     drawing  of a row of made-up logits
 *     disk     pieces as large as an expert (disk.h)
 *     device   a product of one dense matrix (backend/race.h), and copying it there
 *
 * What a scheduler can disturb is done nine times, and the middle five count. */
#include "plan_measure.h"

#include <stdlib.h>

#include "../backend/race.h"
#include "../base/random.h"
#include "../math/sample.h"
#include "disk.h"

enum { N_ROUND = 9, SYNCS_AT_ONCE = 50 };
enum { MAX_STREAM_BYTES = 256 << 20 };
static const uint64_t round_ns =
    5000000; // longer than a program that shares the processor runs at a time

/* Nine attempts; the middle of them counts, so that something else that ran for a moment does not. */
typedef struct attempts {
    double values[N_ROUND];
} attempts;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void middle(attempts *a, double *least, double *most)
{
    qsort(a->values, N_ROUND, sizeof *a->values, by_value);
    *least = a->values[N_ROUND / 4];
    *most = a->values[N_ROUND - 1 - N_ROUND / 4];
}

/* -- processor and memory ---------------------------------------------------------------------- */

/* Mean speed of one attempt: a small buffer is read often. */
static coli_status stream(coli_machine *machine, double *gb_s)
{
    double seconds_per_gb = 0;
    uint32_t n = 0;
    const uint64_t start_ns = coli__clock_ns();
    do {
        double speed;
        COLI_TRY(coli_machine_stream(machine, &speed));
        seconds_per_gb += 1 / speed;
        n++;
    } while (coli__clock_ns() - start_ns < round_ns);
    *gb_s = n / seconds_per_gb;
    return COLI_OK;
}

static uint64_t stream_bytes(const coli_plan_result *r)
{
    const uint64_t all = r->trunk_bytes + r->n_in_ram * r->expert_bytes;
    return all < MAX_STREAM_BYTES ? all : MAX_STREAM_BYTES;
}

static coli_status measure_machine(coli_model *m, coli_plan_result *r)
{
    coli_machine *machine;
    attempts streams, peaks;
    COLI_TRY(coli_machine_open(m, stream_bytes(r), &machine));
    coli_status status = COLI_OK;
    for (int i = 0; i < N_ROUND && status == COLI_OK; i++) {
        status = stream(machine, &streams.values[i]);
        if (status == COLI_OK) status = coli_machine_peak(machine, &peaks.values[i]);
    }
    coli_machine_close(machine);
    COLI_TRY(status);
    middle(&streams, &r->ram_gb_s_min, &r->ram_gb_s_max);
    middle(&peaks, &r->gmac_s_min, &r->gmac_s_max);
    return COLI_OK;
}

static void do_nothing(void *ctx, uint32_t item, uint32_t worker)
{
    (void)ctx, (void)item, (void)worker;
}

static void measure_syncs(coli_model *m, coli_plan_result *r)
{
    const uint32_t n_item = 2 * coli__pool_n_worker(m->pool);
    attempts us;
    for (int i = 0; i < N_ROUND; i++) {
        const uint64_t start_ns = coli__clock_ns();
        uint64_t n = 0, ns;
        do {
            for (int k = 0; k < SYNCS_AT_ONCE; k++)
                coli__pool_run(m->pool, n_item, do_nothing, NULL);
            n += SYNCS_AT_ONCE;
            ns = coli__clock_ns() - start_ns;
        } while (ns < round_ns);
        us.values[i] = (double)ns * 1e-3 / (double)n;
    }
    middle(&us, &r->sync_us_min, &r->sync_us_max);
}

static coli_status measure_sampling(const coli_model *m, coli_plan_result *r)
{
    const uint32_t n = m->shape.n_vocab;
    const coli_sampling sampling = {.struct_size = sizeof sampling,
                                    .temperature = 1,
                                    .top_k = 20,
                                    .top_p = 0.95f,
                                    .repetition_penalty = 1};
    float *logits = coli__calloc(n, sizeof *logits);
    void *scratch = coli__alloc64(coli__sample_scratch_bytes(n));
    if (logits && scratch) {
        uint64_t state = 1;
        coli__rng rng;
        coli__rng_seed(&rng, 1);
        for (uint32_t i = 0; i < n; i++) logits[i] = (float)(coli__random(&state) >> 44) * 0x1p-17f;
        const coli__sample_args args = {
            .logits = logits, .n_token = n, .sampling = &sampling, .scratch = scratch};
        attempts us;
        for (int i = 0; i < N_ROUND; i++) {
            const uint64_t start_ns = coli__clock_ns();
            coli__sample(&args, &rng);
            us.values[i] = (double)(coli__clock_ns() - start_ns + 1) * 1e-3;
        }
        middle(&us, &r->sample_us_min, &r->sample_us_max);
    }
    const coli_status status = logits && scratch ? COLI_OK : COLI_E_NOMEM;
    coli__free(logits);
    coli__free_aligned(scratch);
    return status;
}

/* -- disk -------------------------------------------------------------------------------------- */

static coli_status measure_disk(const coli_model *m, coli_plan_result *r)
{
    const coli__container *c = m->container;
    coli__disk_speed speed;
    COLI_TRY(coli__disk_measure(coli__container_path(c), coli__container_file(c),
                                coli__container_weight_bytes(c), r->expert_bytes, &speed));
    r->disk_gb_s_min = speed.gb_s_min;
    r->disk_gb_s_max = speed.gb_s_max;
    return COLI_OK;
}

/* -- devices ------------------------------------------------------------------------------------- */

/* A matrix that the device computes: the one with most weights. */
static const coli__mat *matrix_for(const coli_model *m, uint32_t device)
{
    const coli__mat *best = NULL;
    for (uint32_t i = 0; i < coli__container_n_tensor(m->container); i++) {
        const coli__mat *w = &coli__container_tensor(m->container, i)->mat;
        const coli__dense_block block = {{w}, 1};
        uint64_t n_bytes;
        if (!coli__wfmt_is_quant(w->fmt) ||
            !coli__devices_dense_footprint(m->devices, device, block, &n_bytes))
            continue;
        if (!best || coli__mat_size(w) > coli__mat_size(best)) best = w;
    }
    return best;
}

static void measure_link(coli__device *dev, const coli__mat *w, coli_plan_result *r)
{
    coli_bk_source source;
    const coli__dense_block block = {{w}, 1};
    coli_bk_tensor *tensor = NULL;
    if (!coli__devices_dense_source(dev, block, &source)) return;
    const uint64_t start_ns = coli__clock_ns();
    if (coli__device_upload(dev, &source, &tensor) != COLI_OK) return;
    r->link_gb_s = (double)coli__mat_size(w) / (double)(coli__clock_ns() - start_ns + 1);
    coli__device_free(dev, tensor);
}

/* The first device stands for all. */
static void measure_device(coli_model *m, coli_plan_result *r)
{
    coli__device *dev = coli__devices_at(m->devices, 0);
    const coli__mat *w = matrix_for(m, 0);
    coli__race race;
    if (!w || !coli__race_run(dev, m->kernels, m->pool, w, &race)) return;
    coli__mat part = *w;
    part.n_out = race.n_out;
    if (race.device_ns > 0) r->vram_gb_s = (double)coli__mat_size(&part) / race.device_ns;
    // a simulated device's copy takes no time of ours
    if (coli__device_info(dev)->kind != COLI_BK_SIMULATED) measure_link(dev, &part, r);
}

/* -- all of it --------------------------------------------------------------------------------- */

coli_status coli__plan_measure(coli_model *m, const coli_model_opts *o, coli_plan_result *r)
{
    const bool imagined = coli__container_is_imagined(m->container);
    COLI_TRY(coli__pool_create(o->n_threads, &m->pool));
    COLI_TRY(measure_machine(m, r));
    measure_syncs(m, r);
    COLI_TRY(measure_sampling(m, r));
    if (r->n_on_disk > 0 && !imagined) COLI_TRY(measure_disk(m, r));
    if (coli__devices_n(m->devices) > 0 && !imagined) measure_device(m, r);
    return COLI_OK;
}
