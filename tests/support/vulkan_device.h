/* vulkan_device.h - the Vulkan plugin for tests: loaded, with a host that counts what it is told,
 * and a device.  That is the machine's CPU device (Mesa's lavapipe) unless TEST_VULKAN_DEVICE gives
 * a number: tests must not depend on what else a machine has. */
#ifndef COLI_TEST_VULKAN_DEVICE_H
#define COLI_TEST_VULKAN_DEVICE_H

#include <stdatomic.h>

#include "t.h"

#include "libcoli/src/backend/plugin.h"
#include "libcoli/src/backend/reference.h"
#include "libcoli/src/base/alloc.h"

enum { T_SKIPPED = 77 }; // what ctest takes for a skipped test

static coli__plugin vk_plugin;
static coli__backend_api vk; // its functions
static uint32_t vk_device;   // which device the tests use

/* ---- the host ------------------------------------------------------------------------------- */

typedef struct vk_host {
    coli__host base;
    atomic_uint n_warning;
} vk_host;

static inline void vk_on_log(void *user, int32_t level, const char *text)
{
    vk_host *host = user;
    if (level != COLI_BK_LOG_WARNING) return;
    host->n_warning++;
    print_error("%s\n", text);
}

static inline void vk_host_init(vk_host *host, const char *options)
{
    *host = (vk_host){0};
    T_OK(coli__host_init(&host->base, options, 60000000000u));
    host->base.log = vk_on_log;
    host->base.log_user = host;
}

/* The call succeeds and reports no failure. */
#define VK_OK(host, call)                                                                          \
    do {                                                                                           \
        const unsigned vk_before_ = (host)->base.n_fail;                                           \
        const coli_bk_status vk_s_ = (call);                                                       \
        if (vk_s_ != COLI_BK_OK || (host)->base.n_fail != vk_before_) {                            \
            print_error("%s: status %d, \"%s\"\n", #call, (int)vk_s_, (host)->base.message);       \
            T_WHERE_;                                                                              \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)
/* The call fails with this status, and reports once, with a message that contains this text. */
#define VK_FAILS(host, call, expected, text)                                                       \
    do {                                                                                           \
        const unsigned vk_before_ = (host)->base.n_fail;                                           \
        const coli_bk_status vk_s_ = (call);                                                       \
        if (vk_s_ != (expected) || (host)->base.n_fail != vk_before_ + 1 ||                        \
            !strstr((host)->base.message, (text))) {                                               \
            print_error("%s: status %d, %u reports, \"%s\" against %d \"...%s...\"\n", #call,      \
                        (int)vk_s_, (host)->base.n_fail - vk_before_, (host)->base.message,        \
                        (int)(expected), (text));                                                  \
            T_WHERE_;                                                                              \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)

static inline coli_bk_device *vk_open(vk_host *host, const char *options)
{
    vk_host_init(host, options);
    coli_bk_device *dev = NULL;
    VK_OK(host, vk.open(&host->base.table, vk_device, &dev));
    return dev;
}

/* Closes; nothing may be left, and no warning have come (validation layers warn). */
static inline void vk_shut(vk_host *host, coli_bk_device *dev)
{
    vk.close(dev);
    T_EQ(host->base.n_block, 0);
    T_EQ(host->n_warning, 0);
    coli__host_finish(&host->base);
}

/* Find the device.  Ends the program as skipped when there is none. */
static inline void vk_find_device(void)
{
    T_OK(coli__plugin_load(TEST_VULKAN, &vk_plugin));
    if (vk_plugin.stage != COLI__PLUGIN_READY)
        print_error("%s: %s\n", TEST_VULKAN, vk_plugin.reason);
    T_EQ(vk_plugin.stage, COLI__PLUGIN_READY);
    vk = vk_plugin.api;
    vk_host host;
    vk_host_init(&host, "");
    uint32_t n = 0;
    const coli_bk_status status = vk.device_count(&host.base.table, &n);
    if (status) print_error("device_count: %s\n", host.base.message);
    T_EQ(status, COLI_BK_OK);
    const char *wanted = getenv("TEST_VULKAN_DEVICE");
    for (uint32_t i = 0; i < n; i++) {
        coli_bk_device_info info = {.struct_size = sizeof info};
        VK_OK(&host, vk.device_info(&host.base.table, i, &info));
        if (wanted ? i != strtoul(wanted, NULL, 10) : info.kind != COLI_BK_CPU) continue;
        if (info.unusable[0])
            print_message("%s: %s\n", info.name, info.unusable);
        else {
            vk_device = i;
            return;
        }
    }
    print_message("skipped: none of %u Vulkan devices is a CPU device that can be used%s%s\n", n,
                  n ? "" : "; ", n ? "" : host.base.message);
    exit(T_SKIPPED);
}

#endif
