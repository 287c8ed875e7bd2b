/* coli/backend.h as it was in version 1.0, without its explanations: what the oldest plugin there can
 * be was built against.  Never edited: a plugin that is out there does not change either. */
#ifndef COLI_BACKEND_H
#define COLI_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COLI_BK_ABI_MAJOR 1u
#define COLI_BK_ABI_MINOR 0u

#define COLI_BK_HAS(p, type, member)                                                               \
    ((p)->struct_size >= offsetof(type, member) + sizeof((p)->member))

/* ---- status -------------------------------------------------------------------------------- */

typedef int32_t coli_bk_status;

#define COLI_BK_STATUS_LIST(X)                                                                     \
    X(OK, 0, "ok")                                                                                 \
    X(INVALID, 1, "invalid argument")                                                              \
    X(NOMEM, 2, "no room on the device")                                                           \
    X(UNSUPPORTED, 3, "not supported")                                                             \
    X(FAILED, 4, "failed")                                                                         \
    X(LOST, 5, "the device is lost")                                                               \
    X(EMPTY, 6, "nothing was issued")                                                              \
    X(BUSY, 7, "not ready")

enum {
#define COLI_BK_STATUS_ENUM(name, value, text) COLI_BK_##name = value,
    COLI_BK_STATUS_LIST(COLI_BK_STATUS_ENUM)
#undef COLI_BK_STATUS_ENUM
};

/* ---- weight formats ------------------------------------------------------------------------ */

#define COLI_BK_FORMAT_LIST(X)                                                                     \
    X(I8_G64_F16, 0, 8, 64, 0, 2)                                                                  \
    X(I8_G64_F32, 1, 8, 64, 0, 4)                                                                  \
    X(I8_G32_F16, 2, 8, 32, 0, 2)                                                                  \
    X(I8_G32_F32, 3, 8, 32, 0, 4)                                                                  \
    X(I8_ROW_F16, 4, 8, 64, 1, 2)                                                                  \
    X(I8_ROW_F32, 5, 8, 64, 1, 4)                                                                  \
    X(I4_G64_F16, 6, 4, 64, 0, 2)                                                                  \
    X(I4_G64_F32, 7, 4, 64, 0, 4)                                                                  \
    X(I4_G32_F16, 8, 4, 32, 0, 2)                                                                  \
    X(I4_G32_F32, 9, 4, 32, 0, 4)                                                                  \
    X(I4_ROW_F16, 10, 4, 64, 1, 2)                                                                 \
    X(I4_ROW_F32, 11, 4, 64, 1, 4)

enum {
#define COLI_BK_FORMAT_ENUM(name, value, bits, group, per_row, scale_bytes) COLI_BK_##name = value,
    COLI_BK_FORMAT_LIST(COLI_BK_FORMAT_ENUM)
#undef COLI_BK_FORMAT_ENUM
        COLI_BK_N_FORMAT
};

enum { COLI_BK_PANEL = 16 };

typedef struct coli_bk_layout {
    uint32_t bits, group, per_row, scale_bytes;
    uint32_t n_group;
    uint32_t group_bytes;
    uint32_t code_offset;
    uint32_t first_group;
    uint64_t panel_bytes;
} coli_bk_layout;

static inline coli_bk_layout coli_bk_layout_of(uint32_t format, uint32_t n_in)
{
    static const uint8_t formats[COLI_BK_N_FORMAT][4] = {
#define COLI_BK_FORMAT_ROW(name, value, bits, group, per_row, scale_bytes)                         \
    {bits, group, per_row, scale_bytes},
        COLI_BK_FORMAT_LIST(COLI_BK_FORMAT_ROW)
#undef COLI_BK_FORMAT_ROW
    };
    coli_bk_layout l;
    l.bits = formats[format][0];
    l.group = formats[format][1];
    l.per_row = formats[format][2];
    l.scale_bytes = formats[format][3];
    l.n_group = n_in / l.group + (n_in % l.group != 0);
    l.code_offset = l.per_row ? 0 : COLI_BK_PANEL * l.scale_bytes;
    l.first_group = l.per_row ? COLI_BK_PANEL * l.scale_bytes : 0;
    l.group_bytes = l.code_offset + COLI_BK_PANEL * l.group * l.bits / 8;
    l.panel_bytes = l.first_group + (uint64_t)l.n_group * l.group_bytes;
    return l;
}

static inline uint64_t coli_bk_matrix_bytes(uint32_t format, uint32_t n_out, uint32_t n_in)
{
    const uint64_t n_panel = ((uint64_t)n_out + COLI_BK_PANEL - 1) / COLI_BK_PANEL;
    return n_panel * coli_bk_layout_of(format, n_in).panel_bytes;
}

/* ---- host ---------------------------------------------------------------------------------- */

enum { COLI_BK_LOG_DEBUG, COLI_BK_LOG_INFO, COLI_BK_LOG_WARNING };
enum { COLI_BK_ALLOC_PINNED = 1 };

typedef struct coli_bk_host {
    uint32_t struct_size;
    uint32_t abi_minor;
    void *ctx;
    void (*fail)(void *ctx, const char *text);
    void (*log)(void *ctx, int32_t level, const char *text);
    uint64_t (*clock_ns)(void *ctx);

    void *(*alloc)(void *ctx, uint64_t n_bytes, uint64_t align, uint32_t flags);
    void (*free)(void *ctx, void *memory);
    uint64_t wait_limit_ns;
    const char *options;
} coli_bk_host;

/* ---- devices ------------------------------------------------------------------------------- */

typedef struct coli_bk_device coli_bk_device;
typedef struct coli_bk_tensor coli_bk_tensor;

enum { COLI_BK_DISCRETE, COLI_BK_INTEGRATED, COLI_BK_CPU, COLI_BK_SIMULATED };

typedef struct coli_bk_device_info {
    uint32_t struct_size;
    uint32_t kind;
    uint32_t formats;
    uint32_t flags;
    uint64_t mem_total;
    uint64_t max_tensor_bytes;
    char name[128];
    char driver[128];
    char uuid[64];
    char unusable[256];
} coli_bk_device_info;

typedef struct coli_bk_mem_info {
    uint32_t struct_size;
    uint32_t is_assumed;
    uint64_t free_bytes, total_bytes;
} coli_bk_mem_info;

/* ---- tensors ------------------------------------------------------------------------------- */

typedef struct coli_bk_matrix {
    uint32_t format, n_out, n_in;
    int32_t scale_exp;
    uint64_t offset;
} coli_bk_matrix;

typedef struct coli_bk_source {
    uint32_t struct_size;
    uint32_t n_matrix;
    const void *data;
    uint64_t n_bytes;
    coli_bk_matrix matrix[3];
} coli_bk_source;

/* ---- work ---------------------------------------------------------------------------------- */

typedef struct coli_bk_group {
    uint32_t struct_size;
    uint32_t n_expert;
    coli_bk_tensor *const *experts;
    const uint32_t *n_row;
    const uint32_t *row;
    uint32_t n_x;
    uint32_t group, n_group;
    uint32_t reserved;
    const int8_t *q;
    const float *d;
} coli_bk_group;

typedef struct coli_bk_result {
    uint32_t struct_size;
    uint32_t n_row;
    const float *y;
    uint64_t ld;
    const uint8_t *flag;
} coli_bk_result;

typedef uint64_t coli_bk_fence;

/* ---- the list ------------------------------------------------------------------------------ */

/* clang-format off */
#define COLI_BACKEND_SYMBOLS(RESOLVE, RESOLVE_OPT) \
    RESOLVE    (0, coli_bk_status, device_count,    (const coli_bk_host *host, uint32_t *n)) \
    RESOLVE    (0, coli_bk_status, device_info,     (const coli_bk_host *host, uint32_t device,    \
                                                     coli_bk_device_info *info)) \
    RESOLVE    (0, coli_bk_status, open,            (const coli_bk_host *host, uint32_t device,    \
                                                     coli_bk_device **out)) \
    RESOLVE    (0, void,           close,           (coli_bk_device *dev))                         \
    RESOLVE    (0, coli_bk_status, mem_info,        (coli_bk_device *dev, coli_bk_mem_info *out)) \
    RESOLVE    (0, coli_bk_status, tensor_upload,   (coli_bk_device *dev,                          \
                                                     const coli_bk_source *source,                 \
                                                     coli_bk_tensor **out))                        \
    RESOLVE    (0, void,           tensor_free,     (coli_bk_device *dev, coli_bk_tensor *tensor)) \
    RESOLVE    (0, coli_bk_status, group_issue,     (coli_bk_device *dev,                          \
                                                     const coli_bk_group *group)) \
    RESOLVE    (0, coli_bk_status, group_take,      (coli_bk_device *dev, uint64_t wait_limit_ns,  \
                                                     coli_bk_result *out)) \
    RESOLVE_OPT(0, coli_bk_status, tensor_overwrite, (coli_bk_device *dev, coli_bk_tensor *tensor, \
                                                     const coli_bk_source *source)) \
    RESOLVE_OPT(0, coli_bk_status, tensor_overwrite_async, (coli_bk_device *dev,                   \
                                                     coli_bk_tensor *tensor,                       \
                                                     const coli_bk_source *source,                 \
                                                     coli_bk_fence *out)) \
    RESOLVE_OPT(0, coli_bk_status, fence_poll,      (coli_bk_device *dev, coli_bk_fence fence,     \
                                                     uint64_t wait_limit_ns)) \
    RESOLVE_OPT(0, void *,         host_alloc,      (coli_bk_device *dev, uint64_t n_bytes))       \
    RESOLVE_OPT(0, void,           host_free,       (coli_bk_device *dev, void *memory)) \
    RESOLVE_OPT(0, uint64_t,       alloc_footprint, (coli_bk_device *dev, uint64_t n_bytes))
/* clang-format on */

/* ---- what a plugin exports ----------------------------------------------------------------- */

#define COLI_BK_MAGIC "coli-bk"

typedef struct coli_bk_info {
    char magic[8];
    uint32_t struct_size;
    uint32_t abi_major, abi_minor;
    uint32_t reserved;
    char name[32];
    char build[128];
} coli_bk_info;

#if defined(_WIN32)
#define COLI_BK_EXPORT __declspec(dllexport)
#else
#define COLI_BK_EXPORT __attribute__((visibility("default")))
#endif

#if defined(COLI_BACKEND_PLUGIN)
extern COLI_BK_EXPORT const coli_bk_info coli_backend_info;
#define COLI_BK_DECLARE(since, returns, name, parameters)                                          \
    COLI_BK_EXPORT returns coli_backend_##name parameters;
COLI_BACKEND_SYMBOLS(COLI_BK_DECLARE, COLI_BK_DECLARE)
#undef COLI_BK_DECLARE
#endif

#ifdef __cplusplus
}
#endif
#endif
