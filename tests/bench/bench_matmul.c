/* bench_matmul.c - how fast the kernels are, beside what this machine can do at all.
 *
 *     bench_matmul [isa ...]        one thread; every figure is the median of several runs
 *
 * decode   one activation row times a matrix much larger than the caches: GB/s of weights, to be
 *          compared with a plain reading of the same memory
 * prefill  many rows times a matrix of an expert's size: 10^9 multiply-adds per second
 * floats   microseconds per call at the sizes of a 35B model
 * sample   milliseconds per token with its vocabulary (when no isa is named) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coli/exact.h"
#include "libcoli/src/base/alloc.h"
#include "libcoli/src/math/kernels.h"
#include "libcoli/src/math/sample.h"

enum { N_RUN = 9 };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct timing {
    double min, median, max; // seconds
} timing;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static timing measure(void (*fn)(void *), void *ctx, uint32_t n_inner)
{
    double t[N_RUN];
    fn(ctx);
    for (uint32_t i = 0; i < N_RUN; i++) {
        const double begin = seconds();
        for (uint32_t j = 0; j < n_inner; j++) fn(ctx);
        t[i] = (seconds() - begin) / n_inner;
    }
    qsort(t, N_RUN, sizeof *t, by_value);
    return (timing){t[0], t[N_RUN / 2], t[N_RUN - 1]};
}

/* `amount` per call, in the unit of `label` per second. */
static void report(const char *name, const char *isa, timing t, double amount, const char *label)
{
    printf("%-34s %-8s %7.1f %-7s (min %.1f, max %.1f)\n", name, isa, amount / t.median, label,
           amount / t.max, amount / t.min);
}

/* ---- memory --------------------------------------------------------------------------------- */

typedef struct read_job {
    const uint64_t *p;
    size_t n;
    uint64_t sum;
} read_job;

static void read_all(void *ctx)
{
    read_job *job = ctx;
    uint64_t sum[16] = {0};
    for (size_t i = 0; i + 16 <= job->n; i += 16)
        for (size_t l = 0; l < 16; l++) sum[l] += job->p[i + l];
    for (size_t l = 0; l < 16; l++) job->sum += sum[l];
}

/* ---- matrices ------------------------------------------------------------------------------- */

typedef struct job {
    const coli__kernels *k;
    coli__mat m;
    coli__qrows xq;
    coli__matmul_args args;
    uint64_t n_bytes;
} job;

static void run_job(void *ctx)
{
    const job *j = ctx;
    j->k->matmul(&j->args);
}

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static void *check(void *p)
{
    if (!p) {
        fprintf(stderr, "%s\n", coli_error_message());
        exit(1);
    }
    return p;
}

/* Random codes and a scale of 1 everywhere: speed does not depend on values. */
static void job_create(job *j, const coli__kernels *k, const char *fmt, uint32_t n_out,
                       uint32_t n_in, uint32_t n_row)
{
    uint64_t seed = 1, panel_bytes;
    memset(j, 0, sizeof *j);
    j->k = k;
    j->m.n_out = n_out;
    j->m.n_in = n_in;
    if (coli__wfmt_parse(fmt, &j->m.fmt) != COLI_OK ||
        !coli__mat_bytes(j->m.fmt, n_out, n_in, &j->n_bytes, &panel_bytes))
        check(NULL);
    uint8_t *data = check(coli__alloc64(j->n_bytes));
    float *w = check(coli__calloc((size_t)n_in * 16, sizeof *w));
    for (uint32_t i = 0; i < n_in * 16; i++) w[i] = (float)next(&seed) * 0x1p-31f - 0.5f;
    const bool quant = coli__wfmt_is_quant(j->m.fmt);
    j->m.scale_exp = quant && j->m.fmt.scale_f16 ? -18 : 0;
    uint8_t *panel = check(coli__alloc64(panel_bytes));
    if (coli__mat_pack_panel(j->m.fmt, w, 16, n_in, n_in, j->m.scale_exp, panel) != COLI_OK)
        check(NULL);
    for (uint64_t at = 0; at < j->n_bytes; at += panel_bytes)
        memcpy(data + at, panel, j->n_bytes - at < panel_bytes ? j->n_bytes - at : panel_bytes);
    coli__free_aligned(panel);
    j->m.data = data;

    const uint32_t group = quant ? j->m.fmt.group : 16, n_group = (n_in + group - 1) / group;
    const size_t ld = (size_t)n_group * group;
    float *x = check(coli__calloc(ld * n_row, sizeof *x));
    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t c = 0; c < n_in; c++) x[r * ld + c] = (float)next(&seed) * 0x1p-31f - 0.5f;
    int8_t *q = check(coli__calloc(ld * n_row, 1));
    float *d = check(coli__calloc((size_t)n_group * n_row, sizeof *d));
    int32_t *sum = check(coli__calloc((size_t)n_group * n_row, sizeof *sum));
    for (uint32_t r = 0; quant && r < n_row; r++)
        k->quantise(x + r * ld, n_in, group, q + r * ld, d + r * n_group, sum + r * n_group);
    j->xq = (coli__qrows){q, d, sum, group, n_group};
    j->args = (coli__matmul_args){.w = &j->m,
                                  .xq = &j->xq,
                                  .xf = x,
                                  .ldx = ld,
                                  .n_row = n_row,
                                  .panel_end = (n_out + 15) / 16,
                                  .y = check(coli__calloc((size_t)n_out * n_row, sizeof(float))),
                                  .ldy = n_out};
    coli__free(w);
}

static void job_destroy(job *j)
{
    coli__free_aligned((void *)(uintptr_t)j->m.data);
    coli__free((void *)(uintptr_t)j->args.xf);
    coli__free(j->xq.q);
    coli__free(j->xq.d);
    coli__free(j->xq.sum);
    coli__free(j->args.y);
}

static void bench_decode(const coli__kernels *k, const char *fmt)
{
    job j;
    job_create(&j, k, fmt, 65536, 2048, 1);
    char name[64];
    snprintf(name, sizeof name, "decode %s (65536, 2048)", fmt);
    report(name, k->name, measure(run_job, &j, 1), (double)j.n_bytes * 1e-9, "GB/s");
    job_destroy(&j);
}

static void bench_prefill(const coli__kernels *k, const char *fmt, uint32_t n_out, uint32_t n_in,
                          uint32_t n_row)
{
    job j;
    job_create(&j, k, fmt, n_out, n_in, n_row);
    char name[64];
    snprintf(name, sizeof name, "%3u rows %s (%u, %u)", n_row, fmt, n_out, n_in);
    const double macs = 1e-9 * n_out * n_in * n_row;
    const uint32_t n_inner = macs < 0.2 ? (uint32_t)(0.2 / macs) : 1;
    report(name, k->name, measure(run_job, &j, n_inner), macs, "GMAC/s");
    job_destroy(&j);
}

/* ---- floats --------------------------------------------------------------------------------- */

typedef struct floats {
    const coli__kernels *k;
    float a[8192], b[8192], c[8192], state[3 * 8192], tap[4 * 8192], S[128 * 128];
    float keys[4096 * 256], values[4096 * 256], scores[8 * 4096];
    uint16_t keys16[4096 * 256], values16[4096 * 256];
    int8_t q[8192];
    float d[128];
    int32_t sum[128];
} floats;

static void do_quantise(void *p)
{
    floats *f = p;
    f->k->quantise(f->a, 2048, 64, f->q, f->d, f->sum);
}
static void do_rmsnorm(void *p)
{
    floats *f = p;
    f->k->rmsnorm(f->a, f->b, 1.0f, 2048, 1e-6f, f->c);
}
static void do_silu(void *p)
{
    floats *f = p;
    f->k->silu_mul(f->a, f->b, 512, f->c);
}
static void do_softmax(void *p)
{
    floats *f = p;
    memcpy(f->c, f->a, sizeof f->c);
    f->k->softmax_sum(f->c, 8192);
}
static void attend(floats *f, uint32_t n_head, bool kv_f16)
{
    const coli__attend_args a = {.n_row = 1,
                                 .n_head = n_head,
                                 .head_dim = 256,
                                 .n_key = 4096,
                                 .q = f->a,
                                 .q_head = 512,
                                 .k = kv_f16 ? (void *)f->keys16 : f->keys,
                                 .v = kv_f16 ? (void *)f->values16 : f->values,
                                 .kv_stride = 256,
                                 .kv_f16 = kv_f16,
                                 .scale = 0.0625f,
                                 .scores = f->scores,
                                 .ld_scores = 4096,
                                 .out = f->c,
                                 .out_head = 256};
    f->k->attend(&a);
}
static void do_attend_1(void *p)
{
    attend(p, 1, true);
}
static void do_attend_1_f32(void *p)
{
    attend(p, 1, false);
}
static void do_attend_8(void *p)
{
    attend(p, 8, true);
}
static void do_attend_8_f32(void *p)
{
    attend(p, 8, false);
}
static void do_narrow(void *p)
{
    floats *f = p;
    f->k->narrow(f->a, 2048, f->keys16);
}
static void do_conv(void *p)
{
    floats *f = p;
    f->k->conv_silu(f->a, f->tap, 4, 8192, f->state, f->c);
}
static void do_deltanet(void *p)
{
    floats *f = p;
    f->k->deltanet(f->S, 128, 128, f->a, f->b, f->b + 128, 0.9f, 0.01f, f->scores, f->c);
}

static void bench_floats(const coli__kernels *k)
{
    static const struct {
        const char *name;
        void (*fn)(void *);
    } jobs[] = {{"quantise 2048", do_quantise},     {"rmsnorm 2048", do_rmsnorm},
                {"silu_mul 512", do_silu},          {"softmax_sum 8192", do_softmax},
                {"narrow 2048", do_narrow},         {"attend, 4096 keys of 256", do_attend_1},
                {"the same, f32", do_attend_1_f32}, {"attend, 8 heads", do_attend_8},
                {"the same, f32", do_attend_8_f32}, {"conv_silu 8192 channels", do_conv},
                {"deltanet 128 x 128", do_deltanet}};
    floats *f = check(coli__alloc64(sizeof *f));
    uint64_t seed = 7;
    for (float *p = f->a; p < f->scores; p++) *p = (float)next(&seed) * 0x1p-34f - 0.0625f;
    for (uint32_t i = 0; i < 4096 * 256; i++) {
        f->keys16[i] = coli_f32_to_f16(f->keys[i]);
        f->values16[i] = coli_f32_to_f16(f->values[i]);
    }
    f->k = k;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        const timing t = measure(jobs[i].fn, f, 200);
        printf("%-34s %-8s %7.2f us      (min %.2f, max %.2f)\n", jobs[i].name, k->name,
               1e6 * t.median, 1e6 * t.min, 1e6 * t.max);
    }
    coli__free_aligned(f);
}

static void bench_isa(const char *isa)
{
    const coli__kernels *k;
    if (coli__kernels_get(isa, &k) != COLI_OK) {
        printf("%s\n", coli_error_message());
        return;
    }
    static const char *const formats[] = {"int4-g64-f16", "int8-g64-f16", "int4-g32-f16", "bf16"};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(isa, "scalar") != 0) bench_decode(k, formats[i]);
        for (uint32_t n_row = 1; n_row <= 64; n_row *= n_row == 16 ? 4 : 2)
            bench_prefill(k, formats[i], 512, 2048, n_row);
    }
    bench_floats(k);
}

/* ---- sampling ------------------------------------------------------------------------------- */

typedef struct sampling_job {
    coli__sample_args args;
    coli_sampling s;
    coli__rng rng;
    uint32_t id;
} sampling_job;

static void do_sample(void *p)
{
    sampling_job *j = p;
    j->id += coli__sample(&j->args, &j->rng);
}

static void bench_sampling(void)
{
    enum { N_TOKEN = 248077 };
    static const struct {
        const char *name;
        float temperature, top_p;
        uint32_t top_k;
    } cases[] = {{"greedy", 0.0f, 1.0f, 0},
                 {"top_k 20, top_p 0.95", 1.0f, 0.95f, 20},
                 {"top_p 0.95", 1.0f, 0.95f, 0},
                 {"temperature alone", 1.0f, 1.0f, 0}};
    uint64_t seed = 3;
    float *logits = check(coli__calloc(N_TOKEN, sizeof *logits));
    for (uint32_t i = 0; i < N_TOKEN; i++) // a bell: the sum of four
        for (uint32_t k = 0; k < 4; k++) logits[i] += (float)next(&seed) * 0x1p-28f - 4.0f;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sampling_job j = {.s = {.struct_size = sizeof j.s,
                                .temperature = cases[i].temperature,
                                .top_p = cases[i].top_p,
                                .top_k = cases[i].top_k,
                                .repetition_penalty = 1.0f}};
        j.args = (coli__sample_args){
            .logits = logits,
            .n_token = N_TOKEN,
            .sampling = &j.s,
            .scratch = check(coli__calloc(1, coli__sample_scratch_bytes(N_TOKEN)))};
        coli__rng_seed(&j.rng, 1);
        const timing t = measure(do_sample, &j, 5);
        printf("sample %-27s -        %7.2f ms      (min %.2f, max %.2f)\n", cases[i].name,
               1e3 * t.median, 1e3 * t.min, 1e3 * t.max);
        coli__free(j.args.scratch);
    }
    coli__free(logits);
}

int main(int argc, char **argv)
{
    read_job r = {check(coli__alloc64(256u << 20)), (256u << 20) / 8, 0};
    memset((void *)(uintptr_t)r.p, 1, 256u << 20);
    report("plain read of 256 MiB", "-", measure(read_all, &r, 1), (256 << 20) * 1e-9, "GB/s");
    coli__free_aligned((void *)(uintptr_t)r.p);
    if (argc == 1) {
        for (const char *const *isa = coli__kernels_names; *isa; isa++) bench_isa(*isa);
        bench_sampling();
    }
    for (int i = 1; i < argc; i++) bench_isa(argv[i]);
    return r.sum == 0;
}
