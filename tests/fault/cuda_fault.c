/* cuda_fault.c - the cuda plugin, emulated, when things go wrong: every call of the runtime fails once, or
 * for ever; every operation hangs; memory runs out; arguments are wrong.  Then: the right status, one
 * message, outputs untouched, nothing leaked, and the next try works. */
#include <unistd.h>

#include "../support/cudaemu.h"

static const uint32_t D = 70, F = 40, N_OUT = 33;
static const uint32_t FORMATS[3] = {COLI_BK_I4_G32_F16, COLI_BK_I8_G32_F32, COLI_BK_I4_ROW_F16};
static const uint32_t N_ROW[3] = {1, 9, 3};

/* ---- what a host does, from open to close --------------------------------------------------- */

/* Made once, since inputs and expected results do not depend on what fails. */
static struct {
    coli_bk_source expert[2], matrix;
    test_group group;
    coli_bk_matmul matmul;
    int8_t q[3 * 96];
    float d[3 * 3], want[3 * 33];
} work;

static void work_make(void)
{
    uint64_t seed = 1;
    test_expert experts[2] = {0};
    for (int i = 0; i < 2; i++) {
        T_OK(coli__ref_expert_block(&seed, FORMATS, D, F, &work.expert[i]));
        experts[i].source = work.expert[i];
    }
    group_make(&work.group, &seed, experts, 2, 3, N_ROW, 4, 0);
    group_join(&work.group, &seed, 2);
    group_compute(&work.group);
    T_OK(coli__ref_matrix_block(&seed, COLI_BK_I8_G32_F16, N_OUT, D, &work.matrix));
    coli__ref_rows(&seed, 3, D, 32, work.q, work.d);
    for (int i = 0; i < 3; i++)
        coli__ref_product(&work.matrix.matrix[0], work.matrix.data, work.q + 96 * i, work.d + 3 * i,
                          work.want + N_OUT * (uint32_t)i);
    work.matmul = (coli_bk_matmul){.struct_size = sizeof work.matmul,
                                   .n_row = 3,
                                   .group = 32,
                                   .n_group = 3,
                                   .q = work.q,
                                   .d = work.d,
                                   .ld = N_OUT};
}

static void work_free(void)
{
    group_free(&work.group);
    for (int i = 0; i < 2; i++) coli__free_aligned((void *)(uintptr_t)work.expert[i].data);
    coli__free_aligned((void *)(uintptr_t)work.matrix.data);
}

/* A run of the host; `lost` once a call has said so, then every call has to. */
typedef struct run {
    coli_bk_device *dev;
    coli_bk_tensor *expert[2], *matrix;
    uint32_t n_failure;
    bool lost;
} run;

/* Take note of a status.  True when the call is worth another try. */
static bool again(run *r, coli_bk_status s, uint32_t n_fail_before, const char *call)
{
    if (s == COLI_BK_BUSY || s == COLI_BK_EMPTY) s = COLI_BK_OK; // the caller looks at those
    if (host.n_fail - n_fail_before != (s != COLI_BK_OK)) print_error("%s: %d\n", call, s);
    T_EQ(host.n_fail - n_fail_before, s != COLI_BK_OK);
    if (r->lost && s != COLI_BK_LOST) print_error("%s: %d after the device was lost\n", call, s);
    if (r->lost) T_EQ(s, COLI_BK_LOST);
    if (s == COLI_BK_OK) return false;
    T_TRUE(s == COLI_BK_NOMEM || s == COLI_BK_FAILED || s == COLI_BK_LOST);
    r->n_failure++;
    r->lost = s == COLI_BK_LOST;
    // These run when nothing else does; what they began may take a moment to end.
    if (!r->lost && (strstr(call, "tensor_upload") || strstr(call, "tensor_overwrite(") ||
                     strstr(call, "group_issue"))) {
        for (int i = 0; emu_count().n_pending && i < 5000; i++) usleep(1000);
        T_EQ(emu_count().n_pending, 0);
    }
    return !r->lost;
}

/* Call until it works, or the device is lost; a failure that passes comes once. */
#define RUN(call)                                                                                  \
    do {                                                                                           \
        uint32_t before_ = host.n_fail;                                                            \
        while (again(r, (call), before_, #call)) {                                                 \
            before_ = host.n_fail;                                                                 \
            T_LE(r->n_failure, 1);                                                                 \
        }                                                                                          \
    } while (0)

static void run_upload(run *r)
{
    for (int i = 0; i < 2; i++) RUN(bk.tensor_upload(r->dev, &work.expert[i], &r->expert[i]));
    RUN(bk.tensor_upload(r->dev, &work.matrix, &r->matrix));
    if (r->lost) return;
    RUN(bk.tensor_overwrite(r->dev, r->expert[0], &work.expert[0]));
    if (r->lost) return;

    coli_bk_fence fence[2] = {0};
    void *const pinned = bk.host_alloc(r->dev, work.expert[1].n_bytes); // may be NULL at any time
    coli_bk_source there = work.expert[1];
    if (pinned) there.data = memcpy(pinned, there.data, there.n_bytes);
    RUN(bk.tensor_overwrite_async(r->dev, r->expert[1], &there, &fence[0]));
    if (!r->lost) RUN(bk.tensor_overwrite_async(r->dev, r->matrix, &work.matrix, &fence[1]));
    if (!r->lost) RUN(bk.fence_poll(r->dev, fence[1], PATIENCE_NS));
    if (!r->lost) RUN(bk.fence_poll(r->dev, fence[0], PATIENCE_NS));
    bk.host_free(r->dev, pinned);
}

static void run_work(run *r)
{
    coli_bk_tensor *tensors[3];
    for (int i = 0; i < 3; i++) tensors[i] = r->expert[work.group.which[i]];
    coli_bk_group args = work.group.args;
    args.experts = tensors;
    coli_bk_matmul matmul = work.matmul;
    float y[3 * 33];
    memset(y, 0x55, sizeof y);
    matmul.y = y;
    matmul.w = r->matrix;
    coli_bk_result result = {.struct_size = sizeof result};

    coli_bk_status s;
    do { // a group that fails in between is issued again
        RUN(bk.group_issue(r->dev, &args));
        const uint32_t before = host.n_fail;
        s = bk.matmul(r->dev, &matmul);
        if (s != COLI_BK_OK)
            for (uint32_t i = 0; i < 3 * N_OUT; i++) T_EQ(((const uint32_t *)y)[i], 0x55555555);
        if (again(r, s, before, "matmul")) RUN(bk.matmul(r->dev, &matmul));
        if (r->lost) break;
        const uint32_t before_take = host.n_fail;
        const uint64_t limit = host.services.wait_limit_ns;
        s = bk.group_take(r->dev, limit, &result);
        if (s == COLI_BK_EMPTY) T_TRUE(r->n_failure > 0);
        if (again(r, s, before_take, "group_take")) s = COLI_BK_EMPTY;
    } while (s == COLI_BK_EMPTY && r->n_failure < 3);
    if (r->lost) {
        RUN(bk.group_issue(r->dev, &args));
        RUN(bk.group_take(r->dev, 1000, &result));
        RUN(bk.matmul(r->dev, &matmul));
        return;
    }
    T_MEM(y, work.want, sizeof y);
    group_same(&work.group, &result);
}

/* Everything once.  Returns false when open said that the device is lost. */
static void run_all(run *r, const char *options, uint64_t wait_limit_ns)
{
    *r = (run){0};
    host_init(options, wait_limit_ns);
    uint32_t n = 0;
    coli_bk_device_info info = {.struct_size = sizeof info};
    bk.device_count(&host.services, &n);
    bk.device_info(&host.services, 0, &info);
    host.n_fail = 0;
    for (uint32_t i = 0; i < 2 && !r->dev; i++) {
        const coli_bk_status s = bk.open(&host.services, 0, &r->dev);
        T_EQ(s == COLI_BK_OK, r->dev != NULL);
        T_EQ(host.n_fail, i + (s != COLI_BK_OK));
    }
    r->n_failure = host.n_fail;
    if (!r->dev) return; // fails for good
    run_upload(r);
    if (r->expert[0] && r->expert[1] && r->matrix) run_work(r);
    coli_bk_mem_info memory = {.struct_size = sizeof memory};
    RUN(bk.mem_info(r->dev, &memory));
    coli_bk_group_stats stats = {.struct_size = sizeof stats};
    BK(bk.group_stats(r->dev, &stats), COLI_BK_OK);
    for (int i = 0; i < 2; i++) bk.tensor_free(r->dev, r->expert[i]);
    bk.tensor_free(r->dev, r->matrix);
    bk.close(r->dev);
}

T_TEST(every_call_fails_once)
{
    T_BEGIN;
    uint32_t n_failure = 0;
    for (uint64_t i = 1, n_call = 1; i <= n_call; i++) {
        char options[32];
        snprintf(options, sizeof options, "jitter=50 fail=%u", (unsigned)i);
        run r;
        run_all(&r, options, PATIENCE_NS);
        if (!r.dev) print_error("%s: %s\n", options, host.text);
        T_TRUE(r.dev && !r.lost);
        T_LE(r.n_failure, 2);
        n_failure += r.n_failure > 0;
        n_call = emu_count().n_call;
        nothing_is_left();
    }
    T_GE(n_failure, 200); // some calls may fail silently: releasing ones, and figures
}

T_TEST(lost_at_every_call)
{
    T_BEGIN;
    for (uint64_t i = 1, n_call = 1; i <= n_call; i += i < 250 ? 7 : 1) {
        char options[32];
        snprintf(options, sizeof options, "lose=%u", (unsigned)i);
        run r;
        run_all(&r, options, PATIENCE_NS);
        n_call = emu_count().n_call;
        T_EQ(host.n_alive, 0);
        bk.clear();
        nothing_is_left();
    }
    run r;
    run_all(&r, "", PATIENCE_NS);
    T_TRUE(r.dev && r.n_failure == 0);
    nothing_is_left();
}

T_TEST(every_operation_hangs)
{
    T_BEGIN;
    uint64_t n_operation = 1;
    for (uint64_t i = 1; i <= n_operation; i += i < 20 ? 6 : 2) {
        char options[32];
        snprintf(options, sizeof options, "hang=%u", (unsigned)i);
        run r;
        const uint64_t limit_ns = 20000000, begin_ns = host_clock_ns(NULL);
        run_all(&r, options, limit_ns);
        n_operation = emu_count().n_operation;
        if (i < n_operation) T_TRUE(!r.dev || r.lost);
        T_LE(host_clock_ns(NULL) - begin_ns, 5000000000u); // two waits, on a busy machine
        T_EQ(host.n_alive, 0);
        bk.clear();
    }
    run r;
    run_all(&r, "", PATIENCE_NS);
    T_TRUE(r.dev && r.n_failure == 0);
    nothing_is_left();
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t free_bytes(coli_bk_device *dev)
{
    coli_bk_mem_info m = {.struct_size = sizeof m};
    BK(bk.mem_info(dev, &m), COLI_BK_OK);
    T_TRUE(m.free_bytes <= m.total_bytes && !m.is_assumed);
    return m.free_bytes;
}

T_TEST(full_and_free_again)
{
    T_BEGIN;
    enum { N = 400 };
    coli_bk_device *dev = emu_open("vram=32MiB");
    uint64_t seed = 2;
    coli_bk_source s;
    T_OK(coli__ref_matrix_block(&seed, COLI_BK_I8_G64_F16, 300, 500, &s));
    const uint64_t each = bk.alloc_footprint(dev, s.n_bytes), at_first = free_bytes(dev);
    T_GE(each, s.n_bytes);
    coli_bk_tensor *tensors[N], *tensor = NULL;
    uint32_t n = 0;
    coli_bk_status status;
    while (n < N && !(status = bk.tensor_upload(dev, &s, &tensors[n]))) n++;
    T_EQ(status, COLI_BK_NOMEM);
    T_EQ(host.n_fail, 1);
    T_GE((n + 1) * each, at_first); // everything was used
    T_LE(n * each, at_first);
    T_LE(free_bytes(dev), at_first - n * s.n_bytes);

    BK(bk.tensor_upload(dev, &s, &tensor), COLI_BK_NOMEM);
    T_TRUE(!tensor);
    bk.tensor_free(dev, tensors[5]);
    BK(bk.tensor_upload(dev, &s, &tensors[5]), COLI_BK_OK);
    // Work, too, finds memory once something is freed.
    int8_t q[20 * 512];
    float d[20 * 8], y[20 * 300], want[300];
    coli__ref_rows(&seed, 20, 500, 64, q, d);
    coli_bk_matmul m = {.struct_size = sizeof m,
                        .n_row = 20,
                        .group = 64,
                        .n_group = 8,
                        .q = q,
                        .d = d,
                        .y = y,
                        .ld = 300};
    m.w = tensors[0];
    for (uint32_t i = 3; (status = bk.matmul(dev, &m)) == COLI_BK_NOMEM && i < 7; i++) {
        bk.tensor_free(dev, tensors[i]);
        tensors[i] = NULL;
    }
    T_EQ(status, COLI_BK_OK);
    for (uint32_t i = 0; i < n; i++) {
        if (!tensors[i]) continue;
        m.w = tensors[i];
        BK(bk.matmul(dev, &m), COLI_BK_OK);
        coli__ref_product(&s.matrix[0], s.data, q + 19 * 512, d + 19 * 8, want);
        T_MEM(y + 19 * 300, want, sizeof want);
    }
    const uint64_t before = free_bytes(dev);
    uint32_t n_freed = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = i * 7 % n; // in an order that leaves holes
        n_freed += tensors[at] != NULL;
        bk.tensor_free(dev, tensors[at]);
        tensors[at] = NULL;
    }
    for (uint32_t i = 0; i < n; i++)
        if (tensors[i]) bk.tensor_free(dev, tensors[i]), n_freed++;
    T_GE(free_bytes(dev), before + n_freed * s.n_bytes);
    T_GE(free_bytes(dev) + (2 << 20), at_first); // but for the memory of the products
    coli__free_aligned((void *)(uintptr_t)s.data);
    emu_close(dev);
}

/* What many small ones leave is there for a large one. */
T_TEST(another_size)
{
    T_BEGIN;
    coli_bk_device *dev = emu_open("vram=32MiB");
    uint64_t seed = 3;
    coli_bk_source small, large;
    T_OK(coli__ref_matrix_block(&seed, COLI_BK_I8_G64_F16, 300, 500, &small));
    T_OK(coli__ref_matrix_block(&seed, COLI_BK_I8_G64_F16, 4000, 5000, &large));
    coli_bk_tensor *tensors[400], *tensor = NULL;
    uint32_t n = 0;
    while (n < 400 && !bk.tensor_upload(dev, &small, &tensors[n])) n++;
    for (uint32_t i = 1; i < n; i++) bk.tensor_free(dev, tensors[i]);
    const uint64_t before = free_bytes(dev);
    BK(bk.tensor_upload(dev, &large, &tensor), COLI_BK_OK);
    T_LE(free_bytes(dev), before - large.n_bytes);
    bk.tensor_free(dev, tensor);
    T_EQ(free_bytes(dev), before);
    bk.tensor_free(dev, tensors[0]);
    coli__free_aligned((void *)(uintptr_t)small.data);
    coli__free_aligned((void *)(uintptr_t)large.data);
    emu_close(dev);
}

T_TEST(footprints)
{
    T_BEGIN;
    coli_bk_device *dev = emu_open("");
    uint64_t last = 0;
    for (uint64_t n = 0; n < 40 << 20; n += n / 9 + 32) {
        const uint64_t f = bk.alloc_footprint(dev, n);
        T_GE(f, n);
        T_GE(f, last);
        T_LE(f, n + n / 2 + (2 << 20));
        last = f;
    }
    T_EQ(bk.alloc_footprint(dev, UINT64_MAX), UINT64_MAX);
    emu_close(dev);
}

T_TEST(opened_and_closed_a_hundred_times)
{
    T_BEGIN;
    for (int i = 0; i < 100; i++) emu_close(emu_open(""));
    bk.close(NULL);
    // With a group that nobody took and experts that nobody freed.
    coli_bk_device *dev = emu_open("jitter=100");
    coli_bk_tensor *tensors[3], *expert[2];
    for (int i = 0; i < 2; i++) BK(bk.tensor_upload(dev, &work.expert[i], &expert[i]), COLI_BK_OK);
    for (int i = 0; i < 3; i++) tensors[i] = expert[work.group.which[i]];
    coli_bk_group args = work.group.args;
    args.experts = tensors;
    BK(bk.group_issue(dev, &args), COLI_BK_OK);
    emu_close(dev);
}

/* ---- devices --------------------------------------------------------------------------------- */

T_TEST(what_devices_there_are)
{
    T_BEGIN;
    static const struct {
        const char *options;
        uint32_t n;
        const char *why;
    } cases[] = {{"devices=2", 2, ""},
                 {"devices=0", 0, "no CUDA-capable device"},
                 {"devices=none", 0, "driver version is insufficient"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        host_init(cases[i].options, PATIENCE_NS);
        uint32_t n = 99;
        T_EQ(bk.device_count(&host.services, &n), COLI_BK_OK);
        T_EQ(n, cases[i].n);
        T_EQ(host.n_fail, n == 0);
        T_TRUE(strstr(host.text, cases[i].why));
        coli_bk_device_info info = {.struct_size = sizeof info};
        BK(bk.device_info(&host.services, n, &info), COLI_BK_INVALID);
        coli_bk_device *dev = NULL;
        BK(bk.open(&host.services, n, &dev), COLI_BK_INVALID);
        T_TRUE(!dev);
        for (uint32_t k = 0; k < n; k++) {
            BK(bk.device_info(&host.services, k, &info), COLI_BK_OK);
            T_EQ(info.struct_size, sizeof info);
            T_EQ(info.kind, COLI_BK_SIMULATED);
            T_EQ(info.formats, (1u << COLI_BK_N_FORMAT) - 1);
            T_EQ(info.flags, COLI_BK_CAN_JOIN);
            T_STR(info.unusable, "");
            T_STR(info.driver, "CUDA driver 13.0, runtime 13.0, sm_90");
            T_STR(info.uuid, k == 0 ? "GPU-e0e0e0e0-e0e0-e0e0-e0e0-e0e0e0e0e0e0"
                                    : "GPU-e1e1e1e1-e1e1-e1e1-e1e1-e1e1e1e1e1e1");
        }
    }
    host_init("cc=7.0", PATIENCE_NS);
    coli_bk_device_info info = {.struct_size = sizeof info};
    BK(bk.device_info(&host.services, 0, &info), COLI_BK_OK);
    T_STR(info.unusable, "compute capability 7.0, needs at least 7.5");
    coli_bk_device *dev = NULL;
    BK(bk.open(&host.services, 0, &dev), COLI_BK_FAILED);
    host_init("colour=blue", PATIENCE_NS);
    BK(bk.open(&host.services, 0, &dev), COLI_BK_INVALID);
    T_TRUE(strstr(host.text, "colour=blue"));
    T_TRUE(!dev);
}

/* ---- arguments ------------------------------------------------------------------------------- */

T_TEST(bad_sources)
{
    T_BEGIN;
    coli_bk_device *dev = emu_open("");
    const coli_bk_source good = work.expert[0];
    coli_bk_tensor *tensor = NULL, *out = NULL;
    BK(bk.tensor_upload(dev, &good, &tensor), COLI_BK_OK);
#define BAD(status, change)                                                                        \
    do {                                                                                           \
        coli_bk_source s = good;                                                                   \
        change;                                                                                    \
        BK(bk.tensor_upload(dev, &s, &out), status);                                               \
        T_TRUE(!out);                                                                              \
        BK(bk.tensor_overwrite(dev, tensor, &s), status);                                          \
        coli_bk_fence fence = 0;                                                                   \
        BK(bk.tensor_overwrite_async(dev, tensor, &s, &fence), status);                            \
        T_EQ(fence, 0);                                                                            \
    } while (0)
    BAD(COLI_BK_INVALID, s.struct_size = 8);
    BAD(COLI_BK_INVALID, s.n_matrix = 0);
    BAD(COLI_BK_INVALID, s.n_matrix = 2);
    BAD(COLI_BK_INVALID, s.data = NULL);
    BAD(COLI_BK_INVALID, s.data = (const char *)s.data + 32);
    BAD(COLI_BK_INVALID, s.n_bytes -= 64);
    BAD(COLI_BK_INVALID, s.n_bytes += 1);
    BAD(COLI_BK_INVALID, s.n_bytes = 0);
    BAD(COLI_BK_UNSUPPORTED, s.matrix[1].format = COLI_BK_N_FORMAT);
    BAD(COLI_BK_INVALID, s.matrix[1].format = COLI_BK_I4_G64_F16);
    BAD(COLI_BK_INVALID, s.matrix[0].n_out = 0);
    BAD(COLI_BK_INVALID, s.matrix[0].n_in = 0x80000000u);
    BAD(COLI_BK_INVALID, s.matrix[0].n_in--);
    BAD(COLI_BK_INVALID, s.matrix[2].n_out--);
    BAD(COLI_BK_INVALID, s.matrix[2].scale_exp = 61);
    BAD(COLI_BK_INVALID, s.matrix[2].scale_exp = -61);
    BAD(COLI_BK_INVALID, s.matrix[2].offset += 32);
    BAD(COLI_BK_INVALID, s.matrix[2].offset = UINT64_MAX - 63);
#undef BAD
    BK(bk.tensor_upload(dev, NULL, &out), COLI_BK_INVALID);
    BK(bk.tensor_upload(dev, &good, NULL), COLI_BK_INVALID);
    BK(bk.tensor_overwrite(dev, NULL, &good), COLI_BK_INVALID);
    BK(bk.tensor_overwrite(dev, tensor, &work.matrix), COLI_BK_INVALID);
    BK(bk.fence_poll(dev, 0, 0), COLI_BK_INVALID);
    BK(bk.fence_poll(dev, 1000, 0), COLI_BK_INVALID);
    coli_bk_source longer[2] = {good, good}; // from a newer host: what follows is not for us
    longer[0].struct_size = 2 * sizeof good;
    BK(bk.tensor_upload(dev, longer, &out), COLI_BK_OK);
    bk.tensor_free(dev, out);
    bk.tensor_free(dev, NULL);
    bk.tensor_free(dev, tensor);
    T_TRUE(!bk.host_alloc(dev, 0));
    bk.host_free(dev, NULL);
    emu_close(dev);
}

T_TEST(bad_work)
{
    T_BEGIN;
    coli_bk_device *dev = emu_open("devices=2"), *other = NULL;
    BK(bk.open(&host.services, 1, &other), COLI_BK_OK);
    coli_bk_tensor *expert[2], *matrix, *tensors[3], *foreign;
    for (int i = 0; i < 2; i++) BK(bk.tensor_upload(dev, &work.expert[i], &expert[i]), COLI_BK_OK);
    BK(bk.tensor_upload(dev, &work.matrix, &matrix), COLI_BK_OK);
    BK(bk.tensor_upload(other, &work.expert[0], &foreign), COLI_BK_OK);
    for (int i = 0; i < 3; i++) tensors[i] = expert[work.group.which[i]];
    coli_bk_group good = work.group.args;
    good.experts = tensors;
    coli_bk_result result = {.struct_size = sizeof result};
#define BAD(change)                                                                                \
    do {                                                                                           \
        coli_bk_group g = good;                                                                    \
        change;                                                                                    \
        BK(bk.group_issue(dev, &g), COLI_BK_INVALID);                                              \
        BK(bk.group_take(dev, PATIENCE_NS, &result), COLI_BK_EMPTY);                               \
    } while (0)
    coli_bk_tensor *one_is_foreign[3] = {tensors[0], foreign, tensors[2]},
                   *one_is_null[3] = {tensors[0], tensors[1], NULL},
                   *one_is_matrix[3] = {matrix, tensors[1], tensors[2]};
    uint32_t row[13], pair[13];
    memcpy(row, good.row, sizeof row);
    row[12] = good.n_x;
    memcpy(pair, good.term_pair, good.n_term * sizeof *pair);
    pair[0] = pair[1];
    const coli_bk_join far[2] = {{0, 1}, {good.n_term, 1}};
    BAD(g.struct_size = 16);
    BAD(g.experts = NULL);
    BAD(g.n_row = NULL);
    BAD(g.row = NULL);
    BAD(g.q = NULL);
    BAD(g.d = NULL);
    BAD(g.group = 64);
    BAD(g.n_group++);
    BAD(g.experts = one_is_foreign);
    BAD(g.experts = one_is_null);
    BAD(g.experts = one_is_matrix);
    BAD(g.row = row);
    BAD(g.term_pair = pair);
    BAD(g.term_pair = NULL);
    BAD(g.term_weight = NULL);
    BAD(g.joins = NULL);
    BAD(g.joins = far);
    BAD(g.n_term = 14);
    BAD(g.n_expert = 0);
#undef BAD
    BK(bk.group_issue(dev, NULL), COLI_BK_INVALID);
    BK(bk.group_take(dev, 0, NULL), COLI_BK_INVALID);

    coli_bk_matmul product = work.matmul;
    float y[3 * 33];
    product.y = y;
    product.w = matrix;
#define BAD(change)                                                                                \
    do {                                                                                           \
        coli_bk_matmul m = product;                                                                \
        change;                                                                                    \
        BK(bk.matmul(dev, &m), COLI_BK_INVALID);                                                   \
    } while (0)
    BAD(m.struct_size = 8);
    BAD(m.w = NULL);
    BAD(m.w = expert[0]);
    BAD(m.w = foreign);
    BAD(m.group = 64);
    BAD(m.n_group--);
    BAD(m.q = NULL);
    BAD(m.d = NULL);
    BAD(m.y = NULL);
    BAD(m.ld--);
#undef BAD
    BK(bk.matmul(dev, NULL), COLI_BK_INVALID);
    BK(bk.matmul_batch(dev, NULL, 2), COLI_BK_INVALID);
    BK(bk.matmul_batch(dev, NULL, 0), COLI_BK_OK);

    // Still in order; and a host of minor 0, whose group ends before the joins.
    BK(bk.matmul(dev, &product), COLI_BK_OK);
    T_MEM(y, work.want, sizeof y);
    BK(bk.group_issue(dev, &good), COLI_BK_OK);
    BK(bk.group_take(dev, PATIENCE_NS, &result), COLI_BK_OK);
    group_same(&work.group, &result);
    good.struct_size = offsetof(coli_bk_group, n_join);
    BK(bk.group_issue(dev, &good), COLI_BK_OK);
    BK(bk.group_take(dev, PATIENCE_NS, &result), COLI_BK_OK);
    T_EQ(result.n_row, work.group.n_pair);

    coli_bk_group_stats stats = {.struct_size = sizeof stats};
    BK(bk.group_stats(dev, &stats), COLI_BK_OK);
    T_EQ(stats.n_group, 2);
    T_EQ(stats.n_expert, 6);
    T_EQ(stats.n_row, 26);
    T_EQ(stats.n_matmul, 1);
    T_EQ(stats.upload_bytes, 2 * work.expert[0].n_bytes + work.matrix.n_bytes);
    T_TRUE(stats.kernel_ms > 0 && stats.upload_ms > 0);
    bk.tensor_free(other, foreign);
    for (int i = 0; i < 2; i++) bk.tensor_free(dev, expert[i]);
    bk.tensor_free(dev, matrix);
    bk.close(other);
    emu_close(dev);
}

int main(void)
{
    emu_load();
    work_make();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_fails_once),
        cmocka_unit_test(lost_at_every_call),
        cmocka_unit_test(every_operation_hangs),
        cmocka_unit_test(full_and_free_again),
        cmocka_unit_test(another_size),
        cmocka_unit_test(footprints),
        cmocka_unit_test(opened_and_closed_a_hundred_times),
        cmocka_unit_test(what_devices_there_are),
        cmocka_unit_test(bad_sources),
        cmocka_unit_test(bad_work),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    work_free();
    return failed;
}
