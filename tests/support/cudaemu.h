/* cudaemu.h - the emulated cuda plugin in a test: its functions, a host that counts, random work. */
#ifndef COLI_TEST_CUDAEMU_H
#define COLI_TEST_CUDAEMU_H

#include <dlfcn.h>
#include <time.h>

#include "t.h"
#include "coli/backend.h"
#include "libcoli/src/backend/reference.h"
#include "libcoli/src/base/alloc.h"

/* ---- the plugin ------------------------------------------------------------------------------ */

/* As cuda_emu.h has it. */
typedef struct emu_counts {
    uint64_t n_alive, n_call, n_operation, n_pending;
} emu_counts;

typedef struct emu {
#define EMU_FIELD(since, returns, name, parameters) returns(*name) parameters;
    COLI_BACKEND_SYMBOLS(EMU_FIELD, EMU_FIELD)
#undef EMU_FIELD
    void (*count)(emu_counts *out);
    void (*clear)(void);
} emu;

static emu bk;

static inline void emu_find(void *library, const char *name, void *out)
{
    void *const found = dlsym(library, name);
    if (!found) {
        print_error("%s\n", dlerror());
        exit(1);
    }
    memcpy(out, &found, sizeof found);
}

static inline void emu_load(void)
{
    void *const library = dlopen(CUDAEMU, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        print_error("%s\n", dlerror());
        exit(1);
    }
#define EMU_FIND(since, returns, name, parameters)                                                 \
    emu_find(library, "coli_backend_" #name, &bk.name);
    COLI_BACKEND_SYMBOLS(EMU_FIND, EMU_FIND)
#undef EMU_FIND
    emu_find(library, "cuda_emu_count", &bk.count);
    emu_find(library, "cuda_emu_clear", &bk.clear);
}

/* ---- the host -------------------------------------------------------------------------------- */

static struct {
    coli_bk_host services;
    uint32_t n_fail;
    int64_t n_alive; // allocations
    char text[512];  // of the last failure
} host;

static inline void host_fail(void *ctx, const char *text)
{
    (void)ctx;
    host.n_fail++;
    snprintf(host.text, sizeof host.text, "%s", text);
}

static inline uint64_t host_clock_ns(void *ctx)
{
    (void)ctx;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void *host_alloc(void *ctx, uint64_t n_bytes, uint64_t align, uint32_t flags)
{
    (void)ctx, (void)flags, (void)align;
    void *const p = coli__alloc64((size_t)n_bytes);
    if (p) __atomic_fetch_add(&host.n_alive, 1, __ATOMIC_SEQ_CST);
    return p;
}

static inline void host_free(void *ctx, void *memory)
{
    (void)ctx;
    if (memory) __atomic_fetch_sub(&host.n_alive, 1, __ATOMIC_SEQ_CST);
    coli__free_aligned(memory);
}

static inline void host_init(const char *options, uint64_t wait_limit_ns)
{
    host.services = (coli_bk_host){.struct_size = sizeof host.services,
                                   .abi_minor = COLI_BK_ABI_MINOR,
                                   .fail = host_fail,
                                   .clock_ns = host_clock_ns,
                                   .alloc = host_alloc,
                                   .free = host_free,
                                   .wait_limit_ns = wait_limit_ns,
                                   .options = options};
    host.n_fail = 0;
    host.text[0] = 0;
}

static const uint64_t PATIENCE_NS = 60000000000u;

/* The call has this status; failures are reported exactly once, everything else not at all. */
#define BK(call, expected)                                                                         \
    do {                                                                                           \
        const uint32_t before_ = host.n_fail;                                                      \
        const coli_bk_status s_ = (call), want_ = (expected);                                      \
        const bool fails_ = s_ != COLI_BK_OK && s_ != COLI_BK_BUSY && s_ != COLI_BK_EMPTY;         \
        if (s_ != want_) {                                                                         \
            print_error("%s: %d (%s) against %d\n", #call, s_, host.text, want_);                  \
            T_WHERE_;                                                                              \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
        T_EQ(host.n_fail - before_, fails_);                                                       \
    } while (0)

static inline coli_bk_device *emu_open(const char *options)
{
    host_init(options, PATIENCE_NS);
    coli_bk_device *dev = NULL;
    BK(bk.open(&host.services, 0, &dev), COLI_BK_OK);
    return dev;
}

static inline emu_counts emu_count(void)
{
    emu_counts c;
    bk.count(&c);
    return c;
}

static inline void nothing_is_left(void)
{
    T_EQ(emu_count().n_alive, 0);
    T_EQ(host.n_alive, 0);
}

static inline void emu_close(coli_bk_device *dev)
{
    bk.close(dev);
    nothing_is_left();
}

/* ---- experts, matrices, groups --------------------------------------------------------------- */

typedef struct test_expert {
    coli_bk_source source; // its block is ours
    coli_bk_tensor *tensor;
} test_expert;

static inline void expert_free(coli_bk_device *dev, test_expert *e)
{
    bk.tensor_free(dev, e->tensor);
    coli__free_aligned((void *)(uintptr_t)e->source.data);
    *e = (test_expert){0};
}

/* A group with its rows and joins, and what must come back. */
typedef struct test_group {
    coli_bk_group args;
    uint32_t d_model;
    test_expert *experts; // borrowed
    coli_bk_tensor **tensors;
    uint32_t *which, *n_row, *row; // which expert
    int8_t *q;
    float *d;
    coli_bk_join *joins;
    uint32_t *term_pair;
    float *term_weight;
    uint64_t n_pair, n_result;
    float *y; // (n_result, d_model)
    uint8_t *flag;
} test_group;

static inline void group_free(test_group *g)
{
    void *const all[] = {g->tensors, g->which, g->n_row,     g->row,         g->q,   g->d,
                         g->joins,   g->y,     g->term_pair, g->term_weight, g->flag};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) coli__free(all[i]);
    *g = (test_group){0};
}

static inline void *group_array(uint64_t n, size_t size)
{
    void *const p = coli__calloc((size_t)n + 1, size);
    assert_non_null(p);
    return p;
}

/* Rows of ordinary size; of n_spoiled chosen ones each d is so large that h leaves its range. */
static inline void group_make(test_group *g, uint64_t *seed, test_expert *experts,
                              uint32_t n_of_experts, uint32_t n_expert, const uint32_t *n_row,
                              uint32_t n_x, uint32_t n_spoiled)
{
    const coli_bk_matrix *const gate = &experts[0].source.matrix[0];
    const coli_bk_layout l = coli_bk_layout_of(gate->format, gate->n_in);
    *g = (test_group){.experts = experts, .d_model = gate->n_in};
    g->tensors = group_array(n_expert, sizeof *g->tensors);
    g->which = group_array(n_expert, sizeof *g->which);
    g->n_row = group_array(n_expert, sizeof *g->n_row);
    for (uint32_t i = 0; i < n_expert; i++) {
        g->which[i] = (uint32_t)(coli__random(seed) % n_of_experts);
        g->tensors[i] = experts[g->which[i]].tensor;
        g->n_row[i] = n_row[i];
        g->n_pair += n_row[i];
    }
    g->row = group_array(g->n_pair, sizeof *g->row);
    for (uint64_t i = 0; i < g->n_pair; i++) g->row[i] = (uint32_t)(coli__random(seed) % n_x);
    g->q = group_array((uint64_t)n_x * l.n_group * l.group, 1);
    g->d = group_array((uint64_t)n_x * l.n_group, sizeof *g->d);
    coli__ref_rows(seed, n_x, gate->n_in, l.group, g->q, g->d);
    for (uint32_t i = 0; i < n_spoiled; i++) {
        float *const d = g->d + coli__random(seed) % n_x * l.n_group;
        for (uint32_t k = 0; k < l.n_group; k++) d[k] = 0x1p33f;
    }
    g->args = (coli_bk_group){.struct_size = sizeof g->args,
                              .n_expert = n_expert,
                              .experts = g->tensors,
                              .n_row = g->n_row,
                              .row = g->row,
                              .n_x = n_x,
                              .group = l.group,
                              .n_group = l.n_group,
                              .q = g->q,
                              .d = g->d};
    g->n_result = g->n_pair;
}

/* Some pairs, in random order, become the terms of n_join joins. */
static inline void group_join(test_group *g, uint64_t *seed, uint32_t n_join)
{
    g->joins = group_array(n_join, sizeof *g->joins);
    g->term_pair = group_array(g->n_pair, sizeof *g->term_pair);
    g->term_weight = group_array(g->n_pair, sizeof *g->term_weight);
    uint32_t n_term = 0;
    for (uint32_t i = 0; i < g->n_pair; i++)
        if (coli__random(seed) % 4 != 0) {
            const uint32_t at = (uint32_t)(coli__random(seed) % (n_term + 1));
            g->term_pair[n_term] = g->term_pair[at];
            g->term_pair[at] = i;
            g->term_weight[n_term++] = (float)(coli__random(seed) % 1000) * 0x1p-10f;
        }
    for (uint32_t i = 0; i < n_join; i++) {
        g->joins[i].first_term = n_term * i / n_join;
        g->joins[i].n_term = n_term * (i + 1) / n_join - g->joins[i].first_term;
    }
    g->args.joins = g->joins;
    g->args.term_pair = g->term_pair;
    g->args.term_weight = g->term_weight;
    g->args.n_join = n_join;
    g->args.n_term = n_join ? n_term : 0;
    g->n_result = g->n_pair - g->args.n_term + n_join;
}

/* What must come back, by coli/exact.h. */
static inline void group_compute(test_group *g)
{
    const uint64_t d = g->d_model;
    float *const y = group_array(g->n_pair * d, sizeof *y);
    uint8_t *const flag = group_array(g->n_pair, 1), *const is_term = group_array(g->n_pair, 1);
    uint64_t pair = 0;
    for (uint32_t i = 0; i < g->args.n_expert; i++)
        for (uint32_t k = 0; k < g->n_row[i]; k++, pair++) {
            const uint64_t x = g->row[pair];
            bool in_range;
            T_OK(coli__ref_expert(&g->experts[g->which[i]].source,
                                  g->q + x * g->args.n_group * g->args.group,
                                  g->d + x * g->args.n_group, y + pair * d, &in_range));
            flag[pair] = !in_range;
        }
    coli__free(g->y);
    coli__free(g->flag);
    g->y = group_array(g->n_result * d, sizeof *g->y);
    g->flag = group_array(g->n_result, 1);
    for (uint32_t i = 0; i < g->args.n_term; i++) is_term[g->term_pair[i]] = 1;
    uint64_t at = 0;
    for (uint64_t i = 0; i < g->n_pair; i++) {
        if (is_term[i]) continue;
        memcpy(g->y + at * d, y + i * d, d * sizeof *y);
        g->flag[at++] = flag[i];
    }
    for (uint32_t i = 0; i < g->args.n_join; i++, at++)
        for (uint32_t t = 0; t < g->joins[i].n_term; t++) {
            const uint32_t term = g->joins[i].first_term + t, p = g->term_pair[term];
            for (uint64_t c = 0; c < d; c++) {
                const float v = g->term_weight[term] * y[p * d + c];
                g->y[at * d + c] = g->y[at * d + c] + v;
            }
            g->flag[at] |= flag[p];
        }
    coli__free(y);
    coli__free(flag);
    coli__free(is_term);
}

/* The result has these bits; where a row is flagged, only that counts. */
static inline void group_same(const test_group *g, const coli_bk_result *r)
{
    T_EQ(r->n_row, g->n_result);
    if (g->n_result == 0) return;
    T_MEM(r->flag, g->flag, g->n_result);
    for (uint64_t i = 0; i < g->n_result; i++)
        if (!g->flag[i]) T_MEM(r->y + i * r->ld, g->y + i * g->d_model, g->d_model * sizeof(float));
}

static inline void group_run(coli_bk_device *dev, const test_group *g)
{
    coli_bk_result r = {.struct_size = sizeof r};
    BK(bk.group_issue(dev, &g->args), COLI_BK_OK);
    BK(bk.group_take(dev, PATIENCE_NS, &r), COLI_BK_OK);
    group_same(g, &r);
}

#endif
