/* bench_backend.c - how fast a backend's device is.
 *
 *     bench_backend FILE [GB/s [OPTIONS]]
 *         FILE     of the plugin; its device 0 is used
 *         GB/s     what the device's memory reaches, to compare with
 *
 * decode    groups of eight experts, one row each, joined where the device can, and one row through
 *           matrices: GB/s of weights by the device's own clock (group_stats), and the time that the host
 *           waits for one.  The weights lie next to each other and are read in turn, so caches do not help
 * prefill   many rows: 10^9 multiply-adds a second
 * copies    GB/s of overwrites from page-locked and from ordinary memory
 * Figures are medians of several runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcoli/src/backend/plugin.h"
#include "libcoli/src/backend/reference.h"
#include "libcoli/src/base/alloc.h"

enum { D = 2048, F = 512, N_RUN = 9, N_USED = 8 };

static coli__plugin plugin;
static coli__host host;
static coli_bk_device *dev;
static double peak; // GB/s; 0: not known
static uint64_t seed = 1;

static void want(coli_bk_status status, const char *what)
{
    if (status == COLI_BK_OK) return;
    fprintf(stderr, "%s: %s\n", what, host.message);
    exit(1);
}

static void *some(size_t n_bytes)
{
    void *const p = coli__alloc64(n_bytes);
    if (!p) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    memset(p, 0, n_bytes);
    return p;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double device_seconds(void)
{
    coli_bk_group_stats s = {.struct_size = sizeof s};
    if (!plugin.api.group_stats || plugin.api.group_stats(dev, &s) != COLI_BK_OK) return 0;
    return 1e-3 * s.kernel_ms;
}

/* ---- measuring ------------------------------------------------------------------------------- */

typedef struct timing {
    double wall, device; // seconds of one call; device is 0 when it does not tell
} timing;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static timing measure(void (*fn)(void *), void *ctx, uint32_t n_inner)
{
    double wall[N_RUN], device[N_RUN];
    fn(ctx);
    for (uint32_t i = 0; i < N_RUN; i++) {
        const double begin = seconds(), device_begin = device_seconds();
        for (uint32_t k = 0; k < n_inner; k++) fn(ctx);
        wall[i] = (seconds() - begin) / n_inner;
        device[i] = (device_seconds() - device_begin) / n_inner;
    }
    qsort(wall, N_RUN, sizeof *wall, by_value);
    qsort(device, N_RUN, sizeof *device, by_value);
    return (timing){wall[N_RUN / 2], device[N_RUN / 2]};
}

static void report_read(const char *name, timing t, double n_bytes)
{
    const double rate = 1e-9 * n_bytes / (t.device > 0 ? t.device : t.wall);
    printf("%-44s %8.1f GB/s", name, rate);
    if (peak > 0) printf("  %3.0f %%", 100 * rate / peak);
    printf("   %8.1f us a call\n", 1e6 * t.wall);
}

static void report_work(const char *name, timing t, double n_mac)
{
    printf("%-44s %8.0f GMAC/s      %8.1f us a call\n", name,
           1e-9 * n_mac / (t.device > 0 ? t.device : t.wall), 1e6 * t.wall);
}

/* ---- experts --------------------------------------------------------------------------------- */

typedef struct expert_job {
    coli_bk_tensor **all; // (n)
    uint32_t n, at;
    coli_bk_group group;
} expert_job;

/* The next experts in turn. */
static void run_group(void *ctx)
{
    expert_job *j = ctx;
    if (j->at + j->group.n_expert > j->n) j->at = 0;
    j->group.experts = j->all + j->at;
    j->at += j->group.n_expert;
    coli_bk_result r = {.struct_size = sizeof r};
    want(plugin.api.group_issue(dev, &j->group), "group_issue");
    want(plugin.api.group_take(dev, host.table.wait_limit_ns, &r), "group_take");
}

static void bench_experts(uint32_t format, const char *name, uint64_t budget, bool joins)
{
    const uint32_t formats[3] = {format, format, format};
    coli_bk_source s;
    if (coli__ref_expert_block(&seed, formats, D, F, &s) != COLI_OK) exit(1);
    const coli_bk_layout l = coli_bk_layout_of(format, D);
    expert_job j = {.n = (uint32_t)(budget / s.n_bytes)};
    j.all = some(j.n * sizeof *j.all);
    for (uint32_t i = 0; i < j.n; i++)
        want(plugin.api.tensor_upload(dev, &s, &j.all[i]), "tensor_upload");

    enum { MAX_ROW = 64, MAX_EXPERT = 64 };
    uint32_t n_row[MAX_EXPERT], *const row = some(MAX_EXPERT * MAX_ROW * sizeof *row);
    int8_t *const q = some((size_t)MAX_ROW * D);
    float *const d = some((size_t)MAX_ROW * l.n_group * sizeof *d);
    coli__ref_rows(&seed, MAX_ROW, D, l.group, q, d);
    const coli_bk_join join = {0, N_USED};
    uint32_t pair[N_USED];
    float weight[N_USED];
    for (uint32_t i = 0; i < N_USED; i++) {
        pair[i] = i;
        weight[i] = 0.125f;
    }
    static const uint32_t n_experts[] = {N_USED, MAX_EXPERT, MAX_EXPERT, MAX_EXPERT},
                          n_rows[] = {1, 1, 16, 64};
    for (uint32_t k = 0; k < 4; k++) {
        if (n_experts[k] > j.n) continue;
        const uint32_t n_pair = n_experts[k] * n_rows[k];
        for (uint32_t i = 0; i < n_experts[k]; i++) n_row[i] = n_rows[k];
        for (uint32_t i = 0; i < n_pair; i++) row[i] = i % n_rows[k];
        j.group = (coli_bk_group){.struct_size = sizeof j.group,
                                  .n_expert = n_experts[k],
                                  .n_row = n_row,
                                  .row = row,
                                  .n_x = n_rows[k],
                                  .group = l.group,
                                  .n_group = l.n_group,
                                  .q = q,
                                  .d = d};
        if (joins && k == 0) {
            j.group.n_join = 1;
            j.group.n_term = N_USED;
            j.group.joins = &join;
            j.group.term_pair = pair;
            j.group.term_weight = weight;
        }
        const timing t = measure(run_group, &j, 20);
        char text[64];
        snprintf(text, sizeof text, "%s: %u experts, %u row%s each", name, n_experts[k], n_rows[k],
                 n_rows[k] == 1 ? "" : "s");
        if (n_rows[k] == 1)
            report_read(text, t, (double)n_experts[k] * (double)s.n_bytes);
        else
            report_work(text, t, 3.0 * D * F * n_pair);
    }
    for (uint32_t i = 0; i < j.n; i++) plugin.api.tensor_free(dev, j.all[i]);
    coli__free_aligned(j.all);
    coli__free_aligned(row);
    coli__free_aligned(q);
    coli__free_aligned(d);
    coli__free_aligned((void *)(uintptr_t)s.data);
}

/* ---- matrices -------------------------------------------------------------------------------- */

typedef struct matrix_job {
    coli_bk_tensor **all; // (n)
    uint32_t n, at;
    coli_bk_matmul args;
} matrix_job;

static void run_matmul(void *ctx)
{
    matrix_job *j = ctx;
    j->args.w = j->all[j->at++ % j->n];
    want(plugin.api.matmul(dev, &j->args), "matmul");
}

static void bench_matrices(uint32_t format, const char *name, uint64_t budget)
{
    enum { N_OUT = 8192, MAX_ROW = 1024 };
    coli_bk_source s;
    if (coli__ref_matrix_block(&seed, format, N_OUT, D, &s) != COLI_OK) exit(1);
    const coli_bk_layout l = coli_bk_layout_of(format, D);
    matrix_job j = {.n = (uint32_t)(budget / s.n_bytes)};
    if (j.n == 0) return;
    j.all = some(j.n * sizeof *j.all);
    for (uint32_t i = 0; i < j.n; i++)
        want(plugin.api.tensor_upload(dev, &s, &j.all[i]), "tensor_upload");
    int8_t *const q = some((size_t)MAX_ROW * D);
    float *const d = some((size_t)MAX_ROW * l.n_group * sizeof *d), *const y =
                                                                        some((size_t)MAX_ROW *
                                                                             N_OUT * sizeof *y);
    coli__ref_rows(&seed, MAX_ROW, D, l.group, q, d);
    static const uint32_t n_rows[] = {1, 4, 16, 128, MAX_ROW};
    for (uint32_t k = 0; k < 5; k++) {
        j.args = (coli_bk_matmul){.struct_size = sizeof j.args,
                                  .n_row = n_rows[k],
                                  .group = l.group,
                                  .n_group = l.n_group,
                                  .q = q,
                                  .d = d,
                                  .y = y,
                                  .ld = N_OUT};
        const timing t = measure(run_matmul, &j, n_rows[k] > 16 ? 3 : 20);
        char text[64];
        snprintf(text, sizeof text, "%s: matrix %d x %d, %u row%s", name, N_OUT, D, n_rows[k],
                 n_rows[k] == 1 ? "" : "s");
        if (n_rows[k] <= 4)
            report_read(text, t, (double)s.n_bytes);
        else
            report_work(text, t, (double)N_OUT * D * n_rows[k]);
    }
    for (uint32_t i = 0; i < j.n; i++) plugin.api.tensor_free(dev, j.all[i]);
    coli__free_aligned(j.all);
    coli__free_aligned(q);
    coli__free_aligned(d);
    coli__free_aligned(y);
    coli__free_aligned((void *)(uintptr_t)s.data);
}

/* ---- copies ---------------------------------------------------------------------------------- */

enum { N_COPY = 8 };

typedef struct copy_job {
    coli_bk_source source;
    coli_bk_tensor *tensors[N_COPY];
} copy_job;

static void run_copies(void *ctx)
{
    copy_job *j = ctx;
    coli_bk_fence fence = 0;
    for (uint32_t i = 0; i < N_COPY; i++)
        want(plugin.api.tensor_overwrite_async(dev, j->tensors[i], &j->source, &fence),
             "overwrite");
    want(plugin.api.fence_poll(dev, fence, host.table.wait_limit_ns), "fence_poll");
}

static void bench_copies(void)
{
    if (!plugin.api.tensor_overwrite_async) return;
    copy_job j;
    if (coli__ref_matrix_block(&seed, COLI_BK_I8_G64_F16, 2048, 4096, &j.source) != COLI_OK)
        exit(1);
    const void *const ordinary = j.source.data;
    for (uint32_t i = 0; i < N_COPY; i++)
        want(plugin.api.tensor_upload(dev, &j.source, &j.tensors[i]), "tensor_upload");
    const double n_bytes = N_COPY * (double)j.source.n_bytes;
    const timing t = measure(run_copies, &j, 3);
    printf("%-44s %8.1f GB/s\n", "copies from ordinary memory", 1e-9 * n_bytes / t.wall);
    void *const pinned =
        plugin.api.host_alloc ? plugin.api.host_alloc(dev, j.source.n_bytes) : NULL;
    if (pinned) {
        j.source.data = memcpy(pinned, ordinary, j.source.n_bytes);
        const timing p = measure(run_copies, &j, 3);
        printf("%-44s %8.1f GB/s\n", "copies from page-locked memory", 1e-9 * n_bytes / p.wall);
        plugin.api.host_free(dev, pinned);
    }
    for (uint32_t i = 0; i < N_COPY; i++) plugin.api.tensor_free(dev, j.tensors[i]);
    coli__free_aligned((void *)(uintptr_t)ordinary);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: %s FILE [GB/s [OPTIONS]]\n", argv[0]);
        return 1;
    }
    if (argc > 2) peak = strtod(argv[2], NULL);
    if (coli__plugin_load(argv[1], &plugin) != COLI_OK || plugin.stage != COLI__PLUGIN_READY ||
        coli__host_init(&host, argc > 3 ? argv[3] : NULL, 60000000000u) != COLI_OK) {
        fprintf(stderr, "%s: %s\n", argv[1], plugin.reason ? plugin.reason : coli_error_message());
        return 1;
    }
    coli_bk_device_info info = {.struct_size = sizeof info};
    coli_bk_mem_info memory = {.struct_size = sizeof memory};
    want(plugin.api.device_info(&host.table, 0, &info), "device_info");
    want(plugin.api.open(&host.table, 0, &dev), "open");
    coli__plugin_keep(&plugin);
    want(plugin.api.mem_info(dev, &memory), "mem_info");
    printf("%s, %s, %.1f of %.1f GB free\n", info.name, info.driver,
           1e-9 * (double)memory.free_bytes, 1e-9 * (double)memory.total_bytes);

    // Far more than caches hold, and little enough to be there within seconds.
    const uint64_t budget = memory.free_bytes / 2 < 1u << 30 ? memory.free_bytes / 2 : 1u << 30;
    const bool joins = info.flags & COLI_BK_CAN_JOIN;
    bench_experts(COLI_BK_I4_G64_F16, "int4", budget, joins);
    bench_experts(COLI_BK_I8_G64_F16, "int8", budget, joins);
    if (plugin.api.matmul) {
        bench_matrices(COLI_BK_I4_G64_F16, "int4", budget);
        bench_matrices(COLI_BK_I8_G64_F16, "int8", budget);
    }
    bench_copies();
    plugin.api.close(dev);
    coli__host_finish(&host);
    return 0;
}
