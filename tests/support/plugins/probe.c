/* probe.c - a plugin that computes nothing and tells what is done to it: every function, and what
 * runs when it is loaded, appends its name to the file that TEST_MARKS names.  Tests of the loader
 * patch copies of it (plugin_test.c); -D makes the variants that need a compiler:
 *
 *   PROBE_NAME       "probe"; what the record says
 *   PROBE_NEWER      made by minor version 9: more exports, larger structs with something in them
 *   PROBE_DATA       coli_backend_open is a number
 *   PROBE_UNRESOLVED calls a function that nobody has
 *   PROBE_DEPENDS    calls a function of another library */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coli/backend.h"

#ifndef PROBE_NAME
#define PROBE_NAME "probe"
#endif
#ifdef PROBE_NEWER
#define PROBE_MINOR 9
#else
#define PROBE_MINOR COLI_BK_ABI_MINOR
#endif

static void mark(const char *name)
{
    const char *path = getenv("TEST_MARKS");
    FILE *marks = path ? fopen(path, "a") : NULL;
    if (!marks) return;
    fprintf(marks, "%s\n", name);
    fclose(marks);
}

__attribute__((constructor)) static void loaded(void)
{
    mark("loaded");
}

/* Another library that defines the same symbol must not be seen, nor see this one. */
extern COLI_BK_EXPORT const char *probe_self(void);
const char *probe_self(void)
{
    static const char *const self = PROBE_NAME;
    return self;
}
extern COLI_BK_EXPORT const char *probe_internal(void);
const char *probe_internal(void)
{
    return probe_self();
}

typedef struct record {
    coli_bk_info info;
#ifdef PROBE_NEWER
    char more[64];
#endif
} record;

extern COLI_BK_EXPORT const record coli_backend_info;
const record coli_backend_info = {
    .info = {.magic = COLI_BK_MAGIC,
             .struct_size = sizeof(record),
             .abi_major = COLI_BK_ABI_MAJOR,
             .abi_minor = PROBE_MINOR,
             .name = PROBE_NAME,
             .build = "for tests"},
#ifdef PROBE_NEWER
    .more = "what a later version put here",
#endif
};

#ifdef PROBE_UNRESOLVED
void probe_nobody_has_this(void);
#endif
#ifdef PROBE_DEPENDS
void probe_dependency(void);
#endif

#define ENTRY(returns, name, parameters)                                                           \
    extern COLI_BK_EXPORT returns coli_backend_##name parameters;                                  \
    returns coli_backend_##name parameters

ENTRY(coli_bk_status, device_count, (const coli_bk_host *host, uint32_t *n))
{
    mark("device_count");
#ifdef PROBE_UNRESOLVED
    probe_nobody_has_this();
#endif
#ifdef PROBE_DEPENDS
    probe_dependency();
#endif
    *n = strcmp(host->options, "none") == 0 ? 0 : 1;
    if (*n == 0) host->fail(host->ctx, "no device is plugged in");
    return COLI_BK_OK;
}

ENTRY(coli_bk_status, device_info,
      (const coli_bk_host *host, uint32_t device, coli_bk_device_info *info))
{
    mark("device_info");
    if (device > 0) {
        host->fail(host->ctx, "there is one device");
        return COLI_BK_INVALID;
    }
    coli_bk_device_info full = {.kind = COLI_BK_SIMULATED,
                                .formats = 1u << COLI_BK_I8_G64_F16 | 1u << COLI_BK_I4_G64_F16,
                                .mem_total = (uint64_t)3 << 30,
                                .name = "Probe",
                                .driver = "none 1.0",
                                .uuid = "00-01"};
    const uint32_t size = info->struct_size;
    full.struct_size = size;
    memcpy(info, &full, size < sizeof full ? size : sizeof full);
    if (strcmp(host->options, "unusable") == 0 && COLI_BK_HAS(info, coli_bk_device_info, unusable))
        snprintf(info->unusable, sizeof info->unusable, "it is only a probe");
    return COLI_BK_OK;
}

static coli_bk_status refuse(const char *name)
{
    mark(name);
    return COLI_BK_UNSUPPORTED;
}

#ifdef PROBE_DATA
extern COLI_BK_EXPORT const int coli_backend_open;
const int coli_backend_open = 7;
#else
ENTRY(coli_bk_status, open, (const coli_bk_host *host, uint32_t device, coli_bk_device **out))
{
    (void)device, (void)out;
    host->fail(host->ctx, "a probe does not open");
    return refuse("open");
}
#endif
ENTRY(void, close, (coli_bk_device * dev))
{
    (void)dev;
    mark("close");
}
ENTRY(coli_bk_status, mem_info, (coli_bk_device * dev, coli_bk_mem_info *out))
{
    (void)dev, (void)out;
    return refuse("mem_info");
}
ENTRY(coli_bk_status, tensor_upload,
      (coli_bk_device * dev, const coli_bk_source *source, coli_bk_tensor **out))
{
    (void)dev, (void)source, (void)out;
    return refuse("tensor_upload");
}
ENTRY(void, tensor_free, (coli_bk_device * dev, coli_bk_tensor *tensor))
{
    (void)dev, (void)tensor;
    mark("tensor_free");
}
ENTRY(coli_bk_status, group_issue, (coli_bk_device * dev, const coli_bk_group *group))
{
    (void)dev, (void)group;
    return refuse("group_issue");
}
ENTRY(coli_bk_status, group_take,
      (coli_bk_device * dev, uint64_t wait_limit_ns, coli_bk_result *out))
{
    (void)dev, (void)wait_limit_ns, (void)out;
    return refuse("group_take");
}
ENTRY(coli_bk_status, tensor_overwrite,
      (coli_bk_device * dev, coli_bk_tensor *tensor, const coli_bk_source *source))
{
    (void)dev, (void)tensor, (void)source;
    return refuse("tensor_overwrite");
}
ENTRY(coli_bk_status, tensor_overwrite_async,
      (coli_bk_device * dev, coli_bk_tensor *tensor, const coli_bk_source *source,
       coli_bk_fence *out))
{
    (void)dev, (void)tensor, (void)source, (void)out;
    return refuse("tensor_overwrite_async");
}
ENTRY(coli_bk_status, fence_poll,
      (coli_bk_device * dev, coli_bk_fence fence, uint64_t wait_limit_ns))
{
    (void)dev, (void)fence, (void)wait_limit_ns;
    return refuse("fence_poll");
}
ENTRY(void *, host_alloc, (coli_bk_device * dev, uint64_t n_bytes))
{
    (void)dev, (void)n_bytes;
    mark("host_alloc");
    return NULL;
}
ENTRY(void, host_free, (coli_bk_device * dev, void *memory))
{
    (void)dev, (void)memory;
    mark("host_free");
}
ENTRY(uint64_t, alloc_footprint, (coli_bk_device * dev, uint64_t n_bytes))
{
    (void)dev;
    mark("alloc_footprint");
    return n_bytes;
}
ENTRY(coli_bk_status, matmul, (coli_bk_device * dev, const coli_bk_matmul *args))
{
    (void)dev, (void)args;
    return refuse("matmul");
}
ENTRY(coli_bk_status, matmul_batch,
      (coli_bk_device * dev, const coli_bk_matmul *const *args, uint32_t n))
{
    (void)dev, (void)args, (void)n;
    return refuse("matmul_batch");
}
ENTRY(coli_bk_status, group_stats, (coli_bk_device * dev, coli_bk_group_stats *out))
{
    (void)dev, (void)out;
    return refuse("group_stats");
}

#ifdef PROBE_NEWER
ENTRY(coli_bk_status, brought_by_1_7, (coli_bk_device * dev, double how_much))
{
    (void)dev, (void)how_much;
    return refuse("brought_by_1_7");
}
#endif
