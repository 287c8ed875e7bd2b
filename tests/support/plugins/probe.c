/* probe.c - a plugin that computes nothing and tells what is done to it: every function, and what
 * runs when it is loaded, appends its name to the file that TEST_MARKS names.  Tests of the loader
 * patch copies of it (plugin_test.c); -D makes the variants that need a compiler:
 *
 *   PROBE_NAME       what the record says
 *   PROBE_DATA       coli_backend_open is a number
 *   PROBE_UNRESOLVED calls a function that nobody has
 *   PROBE_DEPENDS    calls a function of another library */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coli/backend.h"

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

extern COLI_BK_EXPORT const coli_bk_info coli_backend_info;
const coli_bk_info coli_backend_info = {.magic = COLI_BK_MAGIC,
                                        .struct_size = sizeof coli_backend_info,
                                        .abi_major = COLI_BK_ABI_MAJOR,
                                        .abi_minor = COLI_BK_ABI_MINOR,
                                        .name = PROBE_NAME,
                                        .build = "for tests"};

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
    static const struct {
        const char *options; // that the host was told
        uint32_t n;
        coli_bk_status status;
        const char *why;
    } answers[] = {{"none", 0, COLI_BK_OK, "no device is plugged in"},
                   {"fail", 1, COLI_BK_FAILED, "the driver is too old"},
                   {"nomem", 1, COLI_BK_NOMEM, NULL},
                   {"silent", 1, 4711, NULL},
                   {"million", 1000000, COLI_BK_OK, NULL}};
    *n = 1;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        if (strcmp(host->options, answers[i].options) != 0) continue;
        if (answers[i].why) host->fail(host->ctx, answers[i].why);
        *n = answers[i].n;
        return answers[i].status;
    }
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
    if (strcmp(host->options, "shy") == 0) {
        memset((char *)info + 4, 0x5A, sizeof *info - 4); // and leaves that behind
        host->fail(host->ctx, "it is shy");
        return COLI_BK_FAILED;
    }
    coli_bk_device_info full = {.kind = COLI_BK_SIMULATED,
                                .formats = 1u << COLI_BK_I8_G64_F16 | 1u << COLI_BK_I4_G64_F16,
                                .mem_total = (uint64_t)3 << 30,
                                .name = "Probe",
                                .driver = "none 1.0",
                                .uuid = "00-01"};
    if (strcmp(host->options, "strange") == 0) {
        full.kind = 77;
        full.formats = 0xFFFFF001;
        memset(full.name, 'n', sizeof full.name);
        strcpy(full.driver, "a\nb \xFF");
    }
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
