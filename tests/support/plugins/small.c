/* small.c - a whole backend that computes on the processor, slowly, with mandatory functions alone.
 * It is built three times, to stand for plugins that the library must get on with:
 *
 *   SMALL_NAME "today"   as it is
 *   SMALL_NAME "oldest"  SMALL_OLDEST: against oldest/coli/backend.h, version 1.0; it also exports a
 *                        matmul, which 1.0 did not have and which must not be called
 *   SMALL_NAME "newest"  SMALL_NEWEST: version 1.9, whose structs have grown.  What it does not find
 *                        there it takes for zero: the older behaviour */
#include <stdlib.h>
#include <string.h>

#include "coli/backend.h"
#include "coli/exact.h"

#ifdef SMALL_NEWEST
/* What 1.9 appended. */
typedef struct grown_info {
    coli_bk_info base;
    char more[64];
} grown_info;
typedef struct grown_group {
    coli_bk_group base;
    uint64_t negate; // not 0: every result with the other sign
} grown_group;
typedef struct grown_device_info {
    coli_bk_device_info base;
    char more[64];
} grown_device_info;
enum { MINOR = 9 };
#else
typedef struct grown_info {
    coli_bk_info base;
} grown_info;
typedef coli_bk_group grown_group;
typedef struct grown_device_info {
    coli_bk_device_info base;
} grown_device_info;
enum { MINOR = COLI_BK_ABI_MINOR };
#endif

extern COLI_BK_EXPORT const grown_info coli_backend_info;
const grown_info coli_backend_info = {
    .base = {.magic = COLI_BK_MAGIC,
             .struct_size = sizeof(grown_info),
             .abi_major = COLI_BK_ABI_MAJOR,
             .abi_minor = MINOR,
             .name = SMALL_NAME,
             .build = "for tests"},
#ifdef SMALL_NEWEST
    .more = "of a later version",
#endif
};

struct coli_bk_tensor {
    uint32_t n_matrix;
    coli_bk_matrix matrix[3];
    uint8_t *data;
    coli_bk_tensor *next, **link; // in the device's list; link is what points here
};

struct coli_bk_device {
    const coli_bk_host *host;
    coli_bk_tensor *tensors;
    bool is_issued;
    uint32_t n_row;
    uint64_t ld;
    float *y;      // (n_row, ld)
    uint8_t *flag; // (n_row)
};

#define ENTRY(returns, name, parameters)                                                           \
    extern COLI_BK_EXPORT returns coli_backend_##name parameters;                                  \
    returns coli_backend_##name parameters

static coli_bk_status fail(const coli_bk_host *host, coli_bk_status status, const char *text)
{
    host->fail(host->ctx, text);
    return status;
}

/* ---- arithmetic ---------------------------------------------------------------------------- */

static float scale_of(const coli_bk_layout *l, const uint8_t *scales, uint32_t r, float pow2)
{
    uint16_t half;
    float whole;
    memcpy(&half, scales + 2 * r, sizeof half);
    if (l->scale_bytes == 2) return coli_f16_to_f32(half) * pow2;
    memcpy(&whole, scales + 4 * r, sizeof whole);
    return whole * pow2;
}

static int32_t code_of(const coli_bk_layout *l, const uint8_t *codes, uint32_t r, uint32_t column)
{
    if (l->bits == 8) return codes[column / 4 * 64 + 4 * r + column % 4] - 128;
    const uint8_t two = codes[column / 8 * 64 + 4 * r + column % 4];
    return (column % 8 < 4 ? two & 15 : two >> 4) - 8;
}

static void multiply(const coli_bk_matrix *m, const uint8_t *block, const int8_t *q, const float *d,
                     float *y)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    const float pow2 = coli_pow2(m->scale_exp);
    for (uint32_t o = 0; o < m->n_out; o++) {
        const uint8_t *panel = block + m->offset + o / COLI_BK_PANEL * l.panel_bytes;
        coli_tree sum = {0};
        for (uint32_t g = 0; g < l.n_group; g++) {
            const uint8_t *group = panel + l.first_group + (uint64_t)g * l.group_bytes;
            int32_t s = 0;
            for (uint32_t c = 0; c < l.group; c++)
                s += q[g * l.group + c] * code_of(&l, group + l.code_offset, o % COLI_BK_PANEL, c);
            const float scale = scale_of(&l, l.per_row ? panel : group, o % COLI_BK_PANEL, pow2);
            coli_tree_add(&sum, coli_group_value(s, scale, d[g]));
        }
        y[o] = coli_tree_sum(&sum);
    }
}

/* One row through an expert; false when there is no memory. */
static bool run_expert(const coli_bk_tensor *t, const int8_t *q, const float *d, float *y,
                       uint8_t *flag)
{
    const uint32_t n = t->matrix[2].n_in;
    const coli_bk_layout l = coli_bk_layout_of(t->matrix[2].format, n);
    float *gate = calloc(2 * (size_t)n + l.n_group, sizeof *gate), *up = gate + n, *hd = up + n;
    int8_t *hq = calloc((size_t)l.n_group * l.group, 1);
    const bool there = gate && hq;
    if (there) {
        multiply(&t->matrix[0], t->data, q, d, gate);
        multiply(&t->matrix[1], t->data, q, d, up);
        for (uint32_t i = 0; i < n; i++) gate[i] = coli_silu(gate[i]) * up[i];
        for (uint32_t g = 0; g < l.n_group; g++) {
            const uint32_t first = g * l.group, left = n - first;
            int32_t sum;
            if (!coli_quantise_group(gate + first, left < l.group ? left : l.group, l.group,
                                     hq + first, &hd[g], &sum))
                *flag = 1;
        }
        if (!*flag) multiply(&t->matrix[2], t->data, hq, hd, y);
    }
    free(gate);
    free(hq);
    return there;
}

/* ---- devices ------------------------------------------------------------------------------- */

ENTRY(coli_bk_status, device_count, (const coli_bk_host *host, uint32_t *n))
{
    (void)host;
    *n = 1;
    return COLI_BK_OK;
}

ENTRY(coli_bk_status, device_info,
      (const coli_bk_host *host, uint32_t device, coli_bk_device_info *info))
{
    if (device > 0) return fail(host, COLI_BK_INVALID, "there is one device");
    const grown_device_info full = {.base = {.struct_size = info->struct_size,
                                             .kind = COLI_BK_CPU,
                                             .formats = (1u << COLI_BK_N_FORMAT) - 1,
                                             .mem_total = (uint64_t)1 << 30,
                                             .name = "Small"}};
    memcpy(info, &full, info->struct_size < sizeof full ? info->struct_size : sizeof full);
    return COLI_BK_OK;
}

ENTRY(coli_bk_status, open, (const coli_bk_host *host, uint32_t device, coli_bk_device **out))
{
    if (device > 0) return fail(host, COLI_BK_INVALID, "there is one device");
    *out = calloc(1, sizeof **out);
    if (!*out) return fail(host, COLI_BK_NOMEM, "no memory");
    (*out)->host = host;
    return COLI_BK_OK;
}

ENTRY(void, tensor_free, (coli_bk_device * dev, coli_bk_tensor *tensor))
{
    (void)dev;
    if (!tensor) return;
    *tensor->link = tensor->next;
    if (tensor->next) tensor->next->link = tensor->link;
    free(tensor->data);
    free(tensor);
}

ENTRY(void, close, (coli_bk_device * dev))
{
    if (!dev) return;
    while (dev->tensors) coli_backend_tensor_free(dev, dev->tensors);
    free(dev->y);
    free(dev->flag);
    free(dev);
}

ENTRY(coli_bk_status, mem_info, (coli_bk_device * dev, coli_bk_mem_info *out))
{
    (void)dev;
    out->is_assumed = 1;
    out->total_bytes = (uint64_t)4 << 30;
    out->free_bytes = (uint64_t)4 << 30;
    return COLI_BK_OK;
}

ENTRY(coli_bk_status, tensor_upload,
      (coli_bk_device * dev, const coli_bk_source *source, coli_bk_tensor **out))
{
    coli_bk_tensor *t = calloc(1, sizeof *t);
    if (t) t->data = malloc(source->n_bytes);
    if (!t || !t->data) {
        free(t);
        return fail(dev->host, COLI_BK_NOMEM, "no memory");
    }
    t->n_matrix = source->n_matrix;
    memcpy(t->matrix, source->matrix, sizeof t->matrix);
    memcpy(t->data, source->data, source->n_bytes);
    t->next = dev->tensors;
    t->link = &dev->tensors;
    if (t->next) t->next->link = &t->next;
    dev->tensors = t;
    *out = t;
    return COLI_BK_OK;
}

/* ---- work ---------------------------------------------------------------------------------- */

static bool take_rows(coli_bk_device *dev, const coli_bk_group *group)
{
    dev->n_row = 0;
    for (uint32_t e = 0; e < group->n_expert; e++) dev->n_row += group->n_row[e];
    dev->ld = group->n_expert ? group->experts[0]->matrix[2].n_out : 0;
    free(dev->y);
    free(dev->flag);
    dev->y = calloc((size_t)dev->n_row * dev->ld + 1, sizeof *dev->y);
    dev->flag = calloc((size_t)dev->n_row + 1, 1);
    return dev->y && dev->flag;
}

ENTRY(coli_bk_status, group_issue, (coli_bk_device * dev, const coli_bk_group *group))
{
    if (dev->is_issued) return COLI_BK_BUSY;
    if (!take_rows(dev, group)) return fail(dev->host, COLI_BK_NOMEM, "no memory");
    uint32_t pair = 0;
    for (uint32_t e = 0; e < group->n_expert; e++)
        for (uint32_t i = 0; i < group->n_row[e]; i++, pair++) {
            const size_t x = group->row[pair], n = group->n_group;
            if (!run_expert(group->experts[e], group->q + x * n * group->group, group->d + x * n,
                            dev->y + pair * dev->ld, dev->flag + pair))
                return fail(dev->host, COLI_BK_NOMEM, "no memory");
        }
#ifdef SMALL_NEWEST
    const grown_group *g = (const grown_group *)(const void *)group;
    const bool reaches = group->struct_size >= sizeof *g;
    for (uint64_t i = 0; reaches && g->negate && i < dev->n_row * dev->ld; i++)
        dev->y[i] = -dev->y[i];
#endif
    dev->is_issued = true;
    return COLI_BK_OK;
}

ENTRY(coli_bk_status, group_take,
      (coli_bk_device * dev, uint64_t wait_limit_ns, coli_bk_result *out))
{
    (void)wait_limit_ns;
    if (!dev->is_issued) return COLI_BK_EMPTY;
    dev->is_issued = false;
    out->n_row = dev->n_row;
    out->y = dev->y;
    out->ld = dev->ld;
    out->flag = dev->flag;
    return COLI_BK_OK;
}

#ifdef SMALL_NEWEST
ENTRY(coli_bk_status, brought_by_1_8, (coli_bk_device * dev, double what))
{
    (void)what;
    return fail(dev->host, COLI_BK_FAILED, "nobody of today can know this function");
}
#endif
#ifdef SMALL_OLDEST
ENTRY(coli_bk_status, matmul, (coli_bk_device * dev, const void *args))
{
    (void)dev, (void)args;
    abort(); // version 1.0 has none: this is something else of the same name
}
#endif
