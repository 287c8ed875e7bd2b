/* vk_base.h - what all files of the Vulkan backend share: the host's services, errors, options.
 *
 * Names: Vulkan's own are vkCamel and VkCamel, this backend's are vk_snake.  A function that
 * returns coli_bk_status has called host->fail when it returns a failure (BUSY and EMPTY are
 * none). */
#ifndef COLI_VK_BASE_H
#define COLI_VK_BASE_H

#include <stdbool.h>

#include <volk.h>

#include "coli/backend.h"

#if defined(__GNUC__)
#define VK_PRINTF(text, args) __attribute__((format(printf, text, args)))
#else
#define VK_PRINTF(text, args)
#endif

/* Report a failure, once, and return `status`. */
coli_bk_status vk_fail(const coli_bk_host *host, coli_bk_status status, const char *format, ...)
    VK_PRINTF(3, 4);
void vk_log(const coli_bk_host *host, int32_t level, const char *format, ...) VK_PRINTF(3, 4);

/* "VK_ERROR_DEVICE_LOST"; the number for one that is not known. */
const char *vk_result_name(VkResult result, char number[24]);
/* NOMEM, LOST or FAILED. */
coli_bk_status vk_result_status(VkResult result);
/* vk_fail with what was tried and the result's name. */
coli_bk_status vk_fail_result(const coli_bk_host *host, VkResult result, const char *what);

#define VK_TRY(call)                                                                               \
    do {                                                                                           \
        const coli_bk_status vk_try_ = (call);                                                     \
        if (vk_try_ != COLI_BK_OK) return vk_try_;                                                 \
    } while (0)

/* Zeroed memory of the host, 64-byte aligned; NULL when there is none. */
void *vk_alloc(const coli_bk_host *host, uint64_t n_bytes);
void vk_free(const coli_bk_host *host, void *memory);
uint64_t vk_clock_ns(const coli_bk_host *host); // 0 when the host has no clock

/* What the user asked for; see docs/backends/vulkan.md. */
typedef struct vk_options {
    uint64_t buffer_bytes;  // largest buffer; 0: as the device says
    uint64_t memory_bytes;  // for tensors; 0: as much as there is
    uint64_t staging_bytes; // of each of the two rings
    uint64_t work_bytes;    // of the work buffer
    uint32_t subgroup;      // size of subgroups; 0: the driver's choice
    uint32_t dot;           // integer dot products: 0 no, 1 yes, 2 where they are fast
    uint32_t join;          // joins on the device: 0 no, 1 yes, 2 where it keeps denormals
    uint32_t storage16;     // 16-bit loads: 0 no, 1 where there are
    uint32_t validate;      // the validation layer: 0 no, 1 yes, 2 with its look at synchronisation
} vk_options;

/* INVALID, naming what was not understood. */
coli_bk_status vk_options_parse(const coli_bk_host *host, vk_options *out);

static inline uint64_t vk_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t vk_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
static inline uint64_t vk_round_up(uint64_t n, uint64_t to) // to: a power of two
{
    return (n + to - 1) & ~(to - 1);
}

#endif
