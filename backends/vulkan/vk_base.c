/* vk_base.c - see vk_base.h. */
#include "vk_base.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

coli_bk_status vk_fail(const coli_bk_host *host, coli_bk_status status, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    host->fail(host->ctx, text);
    return status;
}

void vk_log(const coli_bk_host *host, int32_t level, const char *format, ...)
{
    if (!host->log) return;
    char text[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    host->log(host->ctx, level, text);
}

const char *vk_result_name(VkResult result, char number[24])
{
    switch (result) {
#define NAME(r)                                                                                    \
    case r:                                                                                        \
        return #r;
        NAME(VK_SUCCESS)
        NAME(VK_NOT_READY)
        NAME(VK_TIMEOUT)
        NAME(VK_INCOMPLETE)
        NAME(VK_ERROR_OUT_OF_HOST_MEMORY)
        NAME(VK_ERROR_OUT_OF_DEVICE_MEMORY)
        NAME(VK_ERROR_INITIALIZATION_FAILED)
        NAME(VK_ERROR_DEVICE_LOST)
        NAME(VK_ERROR_MEMORY_MAP_FAILED)
        NAME(VK_ERROR_LAYER_NOT_PRESENT)
        NAME(VK_ERROR_EXTENSION_NOT_PRESENT)
        NAME(VK_ERROR_FEATURE_NOT_PRESENT)
        NAME(VK_ERROR_INCOMPATIBLE_DRIVER)
        NAME(VK_ERROR_TOO_MANY_OBJECTS)
        NAME(VK_ERROR_FRAGMENTED_POOL)
        NAME(VK_ERROR_OUT_OF_POOL_MEMORY)
        NAME(VK_ERROR_FRAGMENTATION)
        NAME(VK_ERROR_INVALID_SHADER_NV)
        NAME(VK_ERROR_UNKNOWN)
#undef NAME
    default:
        snprintf(number, 24, "VkResult %d", (int)result);
        return number;
    }
}

coli_bk_status vk_result_status(VkResult result)
{
    switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_OUT_OF_POOL_MEMORY:
    case VK_ERROR_FRAGMENTED_POOL:
    case VK_ERROR_TOO_MANY_OBJECTS:
        return COLI_BK_NOMEM;
    case VK_ERROR_DEVICE_LOST:
        return COLI_BK_LOST;
    default:
        return COLI_BK_FAILED;
    }
}

coli_bk_status vk_fail_result(const coli_bk_host *host, VkResult result, const char *what)
{
    char number[24];
    return vk_fail(host, vk_result_status(result), "vulkan: %s: %s", what,
                   vk_result_name(result, number));
}

void *vk_alloc(const coli_bk_host *host, uint64_t n_bytes)
{
    void *memory = host->alloc(host->ctx, n_bytes, 64, 0);
    if (memory) memset(memory, 0, n_bytes);
    return memory;
}

void vk_free(const coli_bk_host *host, void *memory)
{
    host->free(host->ctx, memory);
}

uint64_t vk_clock_ns(const coli_bk_host *host)
{
    return host->clock_ns ? host->clock_ns(host->ctx) : 0;
}

/* ---- options -------------------------------------------------------------------------------- */

/* A number with an optional KiB, MiB or GiB, up to `end`.  False when it is anything else. */
static bool parse_number(const char *text, const char *end, uint64_t *out)
{
    static const struct {
        const char *name;
        uint64_t factor;
    } units[] = {{"", 1}, {"KiB", 1u << 10}, {"MiB", 1u << 20}, {"GiB", 1u << 30}};
    uint64_t n = 0;
    const char *at = text;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (n > (UINT64_MAX >> 34)) return false; // room for a digit and for GiB
        n = 10 * n + (uint64_t)(*at - '0');
    }
    if (at == text) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strlen(units[i].name) == (size_t)(end - at) &&
            memcmp(units[i].name, at, (size_t)(end - at)) == 0) {
            *out = n * units[i].factor;
            return true;
        }
    return false;
}

/* One option, "name=value" of n characters. */
static coli_bk_status parse_option(const coli_bk_host *host, const char *text, size_t n,
                                   vk_options *o)
{
    const struct {
        const char *name;
        uint64_t min, max;
        uint64_t *wide;
        uint32_t *narrow;
    } known[] = {
        {"buffer", 1u << 12, UINT64_MAX, &o->buffer_bytes, NULL},
        {"memory", 1u << 16, UINT64_MAX, &o->memory_bytes, NULL},
        {"staging", 1u << 16, 1u << 30, &o->staging_bytes, NULL},
        {"work", 1u << 16, 1u << 30, &o->work_bytes, NULL},
        {"subgroup", 1, 128, NULL, &o->subgroup},
        {"dot", 0, 1, NULL, &o->dot},
        {"join", 0, 1, NULL, &o->join},
        {"storage16", 0, 1, NULL, &o->storage16},
        {"validate", 0, 2, NULL, &o->validate},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const size_t name_len = strlen(known[i].name);
        if (n <= name_len || memcmp(text, known[i].name, name_len) != 0 || text[name_len] != '=')
            continue;
        uint64_t value;
        if (!parse_number(text + name_len + 1, text + n, &value) || value < known[i].min ||
            value > known[i].max)
            return vk_fail(host, COLI_BK_INVALID,
                           "vulkan: option %.*s: expected a number from %" PRIu64 " to %" PRIu64
                           " (sizes may end in KiB, MiB, GiB)",
                           (int)vk_min(n, 60), text, known[i].min, known[i].max);
        if (known[i].wide)
            *known[i].wide = value;
        else
            *known[i].narrow = (uint32_t)value;
        return COLI_BK_OK;
    }
    return vk_fail(host, COLI_BK_INVALID,
                   "vulkan: unknown option \"%.*s\": expected buffer=, memory=, staging=, work=, "
                   "subgroup=, dot=, storage16=, join= or validate=",
                   (int)vk_min(n, 60), text);
}

coli_bk_status vk_options_parse(const coli_bk_host *host, vk_options *out)
{
    *out = (vk_options){
        .staging_bytes = 32u << 20, .work_bytes = 64u << 20, .dot = 2, .storage16 = 1, .join = 2};
    const char *at = host->options ? host->options : "";
    while (*at) {
        const size_t n = strcspn(at, " ");
        if (n > 0) VK_TRY(parse_option(host, at, n, out));
        at += n + (at[n] == ' ');
    }
    return COLI_BK_OK;
}
