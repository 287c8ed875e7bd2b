/* shim.h - stands between the host and any plugin, counts calls, and spoils one.
 *
 * All calls that take an open device are counted together, in the order in which they happen.
 *   FAIL   call n returns FAILED (NULL, 0) without reaching the plugin
 *   LOSE   call n and all after it return LOST
 *   HANG   call n waits for the host's limit and returns LOST, as do all after it
 *   STICK  call n does not return until shim_release
 *   REFUSE every call of one optional entry returns UNSUPPORTED (NULL, 0)
 *
 * One plugin at a time: its table is kept here. */
#ifndef COLI_TEST_SHIM_H
#define COLI_TEST_SHIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "libcoli/src/backend/device.h"

typedef enum shim_mode { SHIM_NONE, SHIM_FAIL, SHIM_LOSE, SHIM_HANG, SHIM_STICK } shim_mode;

static struct shim {
    coli__backend_api real;
    shim_mode mode;
    uint32_t at;        // the call to spoil, from 1
    const char *only;   // count only calls of this entry; NULL: of all
    const char *refuse; // entry; NULL: none
    uint32_t wait_us;   // the host's limit
    atomic_uint n_call;
    atomic_bool lost, released;
    bool spoil_products,
        spoil_ld;    // every product fails; every result says that its rows are 1 wide
    char spoilt[32]; // the entry that was
} shim;

static inline void shim_release(void)
{
    atomic_store(&shim.released, true);
}

/* Whether a call has to fail, and how. */
static inline coli_bk_status shim_enter(const char *entry)
{
    if (shim.refuse && strcmp(shim.refuse, entry) == 0) return COLI_BK_UNSUPPORTED;
    if (shim.spoil_products && strncmp(entry, "matmul", 6) == 0) return COLI_BK_FAILED;
    if (shim.only && strcmp(shim.only, entry) != 0)
        return atomic_load(&shim.lost) ? COLI_BK_LOST : COLI_BK_OK;
    const uint32_t n = atomic_fetch_add(&shim.n_call, 1) + 1;
    if (atomic_load(&shim.lost)) return COLI_BK_LOST;
    if (shim.mode == SHIM_NONE || n != shim.at) return COLI_BK_OK;
    snprintf(shim.spoilt, sizeof shim.spoilt, "%s", entry);
    if (shim.mode == SHIM_FAIL) return COLI_BK_FAILED;
    if (shim.mode == SHIM_HANG) usleep(shim.wait_us);
    while (shim.mode == SHIM_STICK && !atomic_load(&shim.released)) usleep(500);
    atomic_store(&shim.lost, true);
    return COLI_BK_LOST;
}

/* A call with a status: its arguments follow. */
#define SHIM_STATUS(name, parameters, arguments)                                                   \
    static coli_bk_status shim_##name parameters                                                   \
    {                                                                                              \
        const coli_bk_status status = shim_enter(#name);                                           \
        return status != COLI_BK_OK ? status : shim.real.name arguments;                           \
    }

SHIM_STATUS(mem_info, (coli_bk_device * d, coli_bk_mem_info *out), (d, out))
SHIM_STATUS(tensor_upload, (coli_bk_device * d, const coli_bk_source *s, coli_bk_tensor **out),
            (d, s, out))
SHIM_STATUS(group_issue, (coli_bk_device * d, const coli_bk_group *g), (d, g))
SHIM_STATUS(tensor_overwrite, (coli_bk_device * d, coli_bk_tensor *t, const coli_bk_source *s),
            (d, t, s))
SHIM_STATUS(tensor_overwrite_async,
            (coli_bk_device * d, coli_bk_tensor *t, const coli_bk_source *s, coli_bk_fence *out),
            (d, t, s, out))
SHIM_STATUS(matmul, (coli_bk_device * d, const coli_bk_matmul *a), (d, a))
SHIM_STATUS(matmul_batch, (coli_bk_device * d, const coli_bk_matmul *const *a, uint32_t n),
            (d, a, n))
SHIM_STATUS(group_stats, (coli_bk_device * d, coli_bk_group_stats *out), (d, out))

/* A take or a fence that fails has to be let through: what was issued must not stay pending. */
static coli_bk_status shim_group_take(coli_bk_device *d, uint64_t limit, coli_bk_result *out)
{
    const coli_bk_status status = shim_enter("group_take");
    if (status == COLI_BK_OK) {
        const coli_bk_status real = shim.real.group_take(d, limit, out);
        if (shim.spoil_ld) out->ld = 1;
        return real;
    }
    coli_bk_result ignored = {.struct_size = sizeof ignored};
    shim.real.group_take(d, limit, &ignored);
    return status;
}

static coli_bk_status shim_fence_poll(coli_bk_device *d, coli_bk_fence fence, uint64_t limit)
{
    const coli_bk_status status = shim_enter("fence_poll");
    const coli_bk_status real = shim.real.fence_poll(d, fence, limit);
    return status != COLI_BK_OK ? status : real;
}

static void *shim_host_alloc(coli_bk_device *d, uint64_t n)
{
    return shim_enter("host_alloc") == COLI_BK_OK ? shim.real.host_alloc(d, n) : NULL;
}

static uint64_t shim_alloc_footprint(coli_bk_device *d, uint64_t n)
{
    return shim_enter("alloc_footprint") == COLI_BK_OK ? shim.real.alloc_footprint(d, n) : 0;
}

/* coli__device_hook. */
static inline void shim_hook(coli__backend_api *api)
{
    shim.real = *api;
#define SHIM_PUT(name)                                                                             \
    if (api->name) api->name = shim_##name;
    SHIM_PUT(mem_info)
    SHIM_PUT(tensor_upload)
    SHIM_PUT(group_issue)
    SHIM_PUT(group_take)
    SHIM_PUT(tensor_overwrite)
    SHIM_PUT(tensor_overwrite_async)
    SHIM_PUT(fence_poll)
    SHIM_PUT(host_alloc)
    SHIM_PUT(alloc_footprint)
    SHIM_PUT(matmul)
    SHIM_PUT(matmul_batch)
    SHIM_PUT(group_stats)
#undef SHIM_PUT
}

/* From now on; the count starts at the next call. */
static inline void shim_set(shim_mode mode, uint32_t at, const char *only, const char *refuse)
{
    shim.mode = mode;
    shim.at = at;
    shim.only = only;
    shim.refuse = refuse;
    atomic_store(&shim.n_call, 0);
    atomic_store(&shim.lost, false);
    atomic_store(&shim.released, false);
    shim.spoilt[0] = 0;
}

#endif
