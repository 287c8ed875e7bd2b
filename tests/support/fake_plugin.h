/* fake_plugin.h - load the fake plugin as a program does that has never seen it, and a host for it. */
#ifndef COLI_TEST_FAKE_PLUGIN_H
#define COLI_TEST_FAKE_PLUGIN_H

#include <pthread.h>
#include <stdlib.h>

#include "coli/backend.h"
#include "libcoli/src/backend/plugin.h"
#include "libcoli/src/base/alloc.h"
#include "t.h"

static coli__backend_api fake; // TEST_FAKE, once fake_load was called
static const coli_bk_info *fake_info;

static inline int fake_load(void **state)
{
    (void)state;
    coli__dynlib *lib; // stays until the program ends
    if (coli__dynlib_open(TEST_FAKE, &lib) != COLI_OK) {
        print_error("%s\n", coli_error_message());
        return -1;
    }
    fake_info = coli__dynlib_symbol(lib, "coli_backend_info");
#define FAKE_RESOLVE(since, returns, name, parameters)                                             \
    *(void **)&fake.name = coli__dynlib_symbol(lib, "coli_backend_" #name);                        \
    if (!fake.name) return -1;
    COLI_BACKEND_SYMBOLS(FAKE_RESOLVE, FAKE_RESOLVE)
#undef FAKE_RESOLVE
    return fake_info ? 0 : -1;
}

/* A host that remembers what it was told. */
typedef struct fake_host {
    coli_bk_host table;
    uint32_t n_fail, n_warning;
    int64_t n_alloc; // not freed yet
    char message[512], warning[512], last_info[512];
} fake_host;

static void fake_host_fail(void *ctx, const char *text)
{
    fake_host *h = ctx;
    h->n_fail++;
    snprintf(h->message, sizeof h->message, "%s", text);
}

static void fake_host_log(void *ctx, int32_t level, const char *text)
{
    fake_host *h = ctx;
    if (level == COLI_BK_LOG_WARNING) {
        h->n_warning++;
        snprintf(h->warning, sizeof h->warning, "%s", text);
    } else {
        snprintf(h->last_info, sizeof h->last_info, "%s", text);
    }
}

static void *fake_host_alloc(void *ctx, uint64_t n_bytes, uint64_t align, uint32_t flags)
{
    (void)flags;
    T_LE(align, 64);
    void *p = coli__alloc64_raw((size_t)n_bytes);
    ((fake_host *)ctx)->n_alloc += p != NULL;
    return p;
}

static void fake_host_free(void *ctx, void *memory)
{
    ((fake_host *)ctx)->n_alloc -= memory != NULL;
    coli__free_aligned(memory);
}

static inline void fake_host_init(fake_host *h, const char *options)
{
    *h = (fake_host){.table = {.struct_size = sizeof h->table,
                               .abi_minor = COLI_BK_ABI_MINOR,
                               .ctx = h,
                               .fail = fake_host_fail,
                               .log = fake_host_log,
                               .alloc = fake_host_alloc,
                               .free = fake_host_free,
                               .wait_limit_ns = UINT64_C(30000000000),
                               .options = options}};
}

static inline coli_bk_device *fake_open(fake_host *h, const char *options)
{
    coli_bk_device *dev = NULL;
    fake_host_init(h, options);
    T_EQ(fake.open(&h->table, 0, &dev), COLI_BK_OK);
    return dev;
}

/* The call gives this status, and a failure tells the host once, in a text that contains `text`. */
#define T_BK(host, call, expected, text)                                                           \
    do {                                                                                           \
        const uint32_t t_n_ = (host)->n_fail;                                                      \
        (host)->message[0] = 0;                                                                    \
        const coli_bk_status t_s_ = (call);                                                        \
        const bool t_fails_ = t_s_ != COLI_BK_OK && t_s_ != COLI_BK_EMPTY && t_s_ != COLI_BK_BUSY; \
        if (t_s_ != (expected) || (host)->n_fail - t_n_ != t_fails_ ||                             \
            (t_fails_ && !strstr((host)->message, text))) {                                        \
            print_error("%s: status %d, %u texts \"%s\", against %d \"...%s...\"\n", #call,        \
                        (int)t_s_, (host)->n_fail - t_n_, (host)->message, (int)(expected), text); \
            T_WHERE_;                                                                              \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)

#endif
