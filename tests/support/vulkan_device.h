/* vulkan_device.h - the Vulkan plugin for tests: loaded, with a host that counts what it is told, and a
 * device.  That is the machine's CPU device (Mesa's lavapipe) unless TEST_VULKAN_DEVICE gives a number:
 * tests must not depend on what else a machine has. */
#ifndef COLI_TEST_VULKAN_DEVICE_H
#define COLI_TEST_VULKAN_DEVICE_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "t.h"

#include "libcoli/src/backend/reference.h"
#include "libcoli/src/base/alloc.h"
#include "libcoli/src/base/threads.h"

enum { T_SKIPPED = 77 }; // what ctest takes for a skipped test

/* ---- the plugin's functions ------------------------------------------------------------------- */

typedef struct vk_api {
#define VK_API_MEMBER(since, returns, name, parameters) returns(*name) parameters;
    COLI_BACKEND_SYMBOLS(VK_API_MEMBER, VK_API_MEMBER)
#undef VK_API_MEMBER
    const coli_bk_info *info;
} vk_api;

static vk_api vk;
static uint32_t vk_device; // which one the tests use

static inline void *vk_symbol(void *lib, const char *name)
{
    void *symbol = dlsym(lib, name);
    if (!symbol) print_error("%s: no %s\n", TEST_VULKAN, name);
    T_TRUE(symbol);
    return symbol;
}

static inline void vk_load(void)
{
    void *lib = dlopen(TEST_VULKAN, RTLD_NOW | RTLD_LOCAL);
    if (!lib) print_error("%s\n", dlerror());
    T_TRUE(lib);
    void *symbol;
#define VK_API_LOAD(since, returns, name, parameters)                                              \
    symbol = vk_symbol(lib, "coli_backend_" #name);                                                \
    memcpy(&vk.name, &symbol, sizeof symbol);
    COLI_BACKEND_SYMBOLS(VK_API_LOAD, VK_API_LOAD)
#undef VK_API_LOAD
    vk.info = vk_symbol(lib, "coli_backend_info");
}

/* ---- the host --------------------------------------------------------------------------------- */

typedef struct vk_host {
    coli_bk_host table;
    atomic_uint n_fail, n_warning;
    atomic_int n_memory; // blocks that were handed out and not freed
    char message[512];   // of the last failure
    pthread_mutex_t lock;
} vk_host;

static inline void vk_on_fail(void *ctx, const char *text)
{
    vk_host *host = ctx;
    pthread_mutex_lock(&host->lock);
    snprintf(host->message, sizeof host->message, "%s", text);
    pthread_mutex_unlock(&host->lock);
    host->n_fail++;
}
static inline void vk_on_log(void *ctx, int32_t level, const char *text)
{
    vk_host *host = ctx;
    if (level != COLI_BK_LOG_WARNING) return;
    host->n_warning++;
    print_error("%s\n", text);
}
static inline uint64_t vk_on_clock(void *ctx)
{
    (void)ctx;
    return coli__clock_ns();
}
static inline void *vk_on_alloc(void *ctx, uint64_t n_bytes, uint64_t align, uint32_t flags)
{
    vk_host *host = ctx;
    (void)flags;
    T_LE(align, 64);
    void *memory = coli__alloc64(n_bytes);
    host->n_memory += memory != NULL;
    return memory;
}
static inline void vk_on_free(void *ctx, void *memory)
{
    vk_host *host = ctx;
    host->n_memory -= memory != NULL;
    coli__free_aligned(memory);
}

static inline void vk_host_init(vk_host *host, const char *options)
{
    *host = (vk_host){.table = {.struct_size = sizeof(coli_bk_host),
                                .abi_minor = COLI_BK_ABI_MINOR,
                                .ctx = host,
                                .fail = vk_on_fail,
                                .log = vk_on_log,
                                .clock_ns = vk_on_clock,
                                .alloc = vk_on_alloc,
                                .free = vk_on_free,
                                .wait_limit_ns = 60000000000u,
                                .options = options}};
    pthread_mutex_init(&host->lock, NULL);
}

/* The call succeeds and reports no failure. */
#define VK_OK(host, call)                                                                          \
    do {                                                                                           \
        const unsigned vk_before_ = (host)->n_fail;                                                \
        const coli_bk_status vk_s_ = (call);                                                       \
        if (vk_s_ != COLI_BK_OK || (host)->n_fail != vk_before_) {                                 \
            print_error("%s: status %d, \"%s\"\n", #call, (int)vk_s_, (host)->message);            \
            T_WHERE_;                                                                              \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)
/* The call fails with this status, and reports once, with a message that contains this text. */
#define VK_FAILS(host, call, expected, text)                                                       \
    do {                                                                                           \
        const unsigned vk_before_ = (host)->n_fail;                                                \
        const coli_bk_status vk_s_ = (call);                                                       \
        if (vk_s_ != (expected) || (host)->n_fail != vk_before_ + 1 ||                             \
            !strstr((host)->message, (text))) {                                                    \
            print_error("%s: status %d, %u reports, \"%s\" against %d \"...%s...\"\n", #call,      \
                        (int)vk_s_, (host)->n_fail - vk_before_, (host)->message, (int)(expected), \
                        (text));                                                                   \
            T_WHERE_;                                                                              \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)

static inline coli_bk_device *vk_open(vk_host *host, const char *options)
{
    vk_host_init(host, options);
    coli_bk_device *dev = NULL;
    VK_OK(host, vk.open(&host->table, vk_device, &dev));
    return dev;
}

/* Closes; nothing may be left, and no warning have come (validation layers warn). */
static inline void vk_shut(vk_host *host, coli_bk_device *dev)
{
    vk.close(dev);
    T_EQ(host->n_memory, 0);
    T_EQ(host->n_warning, 0);
}

/* Find the device.  Ends the program as skipped when there is none. */
static inline void vk_find_device(void)
{
    vk_load();
    vk_host host;
    vk_host_init(&host, "");
    uint32_t n = 0;
    const coli_bk_status status = vk.device_count(&host.table, &n);
    if (status) print_error("device_count: %s\n", host.message);
    T_EQ(status, COLI_BK_OK);
    const char *wanted = getenv("TEST_VULKAN_DEVICE");
    for (uint32_t i = 0; i < n; i++) {
        coli_bk_device_info info = {.struct_size = sizeof info};
        VK_OK(&host, vk.device_info(&host.table, i, &info));
        if (wanted ? i != strtoul(wanted, NULL, 10) : info.kind != COLI_BK_CPU) continue;
        if (info.unusable[0])
            print_message("%s: %s\n", info.name, info.unusable);
        else {
            vk_device = i;
            return;
        }
    }
    print_message("skipped: none of %u Vulkan devices is a CPU device that can be used%s%s\n", n,
                  n ? "" : "; ", n ? "" : host.message);
    exit(T_SKIPPED);
}

#endif
