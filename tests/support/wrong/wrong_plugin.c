/* wrong_plugin.c - a backend in plain C with every optional function, and one mistake.
 *
 * MISTAKE says which, so that tests can see whether a check of backends names it; NONE is right.  The
 * arithmetic is that of docs/backends.md. */
#define COLI_BACKEND_PLUGIN
#include "coli/backend.h"
#include "coli/exact.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum {
    NONE,
    ROUNDING,        // inner activations: half away from zero
    TRUNCATED,       // inner activations
    DIVISION,        // inner activations: divided by d
    UNIT,            // the scale of inner activations: amax / 127
    GATE_UP,         // exchanged
    SILU,            // with a division
    SEQUENTIAL,      // the sum in order
    FAR_PAIRS,       // i with i + n/2, not neighbours
    IN_DOUBLE,       // the sum
    FUSED,           // multiply-add with one rounding
    MINUS_ZERO,      // the last + 0 is missing
    LATE_SCALE,      // (s * d) * scale
    LATER_SCALE,     // of "row" formats: times the sum
    NO_EXP,          // scale_exp ignored
    HALF_DENORMALS,  // f16 scales: flushed to zero
    HALF_SIGN,       // f16 scales: ignored
    NIBBLES,         // even and odd columns
    UNSIGNED,        // codes without their zero point
    LAST_GROUP,      // lost
    ODD_WIDTH,       // the last column of a width that is no multiple of the group is lost
    ROW_STRIDE,      // rows of q taken to be n_in apart
    NO_FLAG,         // rows out of range are not flagged
    ROWS_SWAPPED,    // the last two of a group
    ZERO_ROWS,       // refused
    HOST_MEMORY,     // take reads what issue was given
    FAILED_TAKE,     // take without issue is FAILED
    STALE_OVERWRITE, // nothing is copied
    TORN_OVERWRITE,  // half of it is copied
    EARLY_FENCE,     // the fence is done before the copy
    LEAK,            // some bytes per group
    SECOND_OPEN,     // crashes
    HANG,            // the third take
    FAIL_TWICE,      // two calls of host->fail for one failure
    SILENT_FAILURE,  // none
    WRITES_BEHIND,   // ignores struct_size
    ANY_OPTION,      // accepts all options
    FORGETFUL,       // close leaves tensors that nobody freed
    EXITS,           // ends the process
};
#ifndef MISTAKE
#define MISTAKE NONE
#endif
#define MAKES(mistake) (MISTAKE == (mistake))

const coli_bk_info coli_backend_info = {.magic = COLI_BK_MAGIC,
                                        .struct_size = sizeof(coli_bk_info),
                                        .abi_major = COLI_BK_ABI_MAJOR,
                                        .abi_minor = COLI_BK_ABI_MINOR,
                                        .name = "wrong",
                                        .build = "test"};

static const uint64_t MEMORY_BYTES = 256 << 20;
enum { MAX_PENDING = 8 };

struct coli_bk_tensor {
    coli_bk_source is; // data is our copy
    struct coli_bk_tensor *next;
};

typedef struct pending { // an overwrite whose fence was not polled yet
    coli_bk_tensor *tensor;
    coli_bk_source source;
} pending;

/* What host_alloc gave, behind this. */
typedef struct host_block {
    _Alignas(64) struct host_block *next;
} host_block;

struct coli_bk_device {
    const coli_bk_host *host;
    _Atomic uint64_t used_bytes, upload_bytes, n_group, n_expert, n_row, n_matmul;
    coli_bk_tensor *tensors;
    /* work */
    coli_bk_result result;
    coli_bk_group late; // HOST_MEMORY: computed in take
    int is_issued, n_take;
    /* copy */
    host_block *blocks;
    uint64_t n_fence, n_done; // fences 1..n_done are done
    pending pending[MAX_PENDING];
};

static coli_bk_status fail(const coli_bk_host *host, coli_bk_status status, const char *text)
{
    if (MAKES(SILENT_FAILURE)) return status;
    host->fail(host->ctx, text);
    if (MAKES(FAIL_TWICE)) host->fail(host->ctx, text);
    return status;
}

static void *take_memory(const coli_bk_host *host, uint64_t n_bytes)
{
    return host->alloc(host->ctx, n_bytes, 64, 0);
}

/* ---- devices ---- */

coli_bk_status coli_backend_device_count(const coli_bk_host *host, uint32_t *n)
{
    (void)host;
    *n = 1;
    return COLI_BK_OK;
}

coli_bk_status coli_backend_device_info(const coli_bk_host *host, uint32_t device,
                                        coli_bk_device_info *info)
{
    if (device > 0) return fail(host, COLI_BK_INVALID, "wrong: there is one device, number 0");
    const uint32_t struct_size = info->struct_size;
    const coli_bk_device_info mine = {.struct_size = struct_size,
                                      .kind = COLI_BK_CPU,
                                      .formats = (1u << COLI_BK_N_FORMAT) - 1,
                                      .flags = COLI_BK_CAN_JOIN,
                                      .mem_total = MEMORY_BYTES,
                                      .name = "this processor"};
    memcpy(info, &mine, struct_size < sizeof mine ? struct_size : sizeof mine);
    if (MAKES(WRITES_BEHIND)) memset((char *)info + sizeof mine, 0, struct_size - sizeof mine);
    return COLI_BK_OK;
}

coli_bk_status coli_backend_open(const coli_bk_host *host, uint32_t device, coli_bk_device **out)
{
    static atomic_int n_open;
    if (MAKES(SECOND_OPEN) && ++n_open == 2) abort();
    if (device > 0) return fail(host, COLI_BK_INVALID, "wrong: there is one device, number 0");
    if (host->options[0] && !MAKES(ANY_OPTION))
        return fail(host, COLI_BK_INVALID, "wrong: there are no options");
    coli_bk_device *dev = take_memory(host, sizeof *dev);
    if (!dev) return fail(host, COLI_BK_NOMEM, "wrong: out of memory");
    memset(dev, 0, sizeof *dev);
    dev->host = host;
    *out = dev;
    return COLI_BK_OK;
}

void coli_backend_close(coli_bk_device *dev)
{
    if (!dev) return;
    const coli_bk_host *host = dev->host;
    while (dev->tensors && !MAKES(FORGETFUL)) coli_backend_tensor_free(dev, dev->tensors);
    while (dev->blocks) coli_backend_host_free(dev, dev->blocks + 1);
    host->free(host->ctx, (void *)(uintptr_t)dev->result.y);
    host->free(host->ctx, dev);
}

coli_bk_status coli_backend_mem_info(coli_bk_device *dev, coli_bk_mem_info *out)
{
    out->is_assumed = 0;
    out->total_bytes = MEMORY_BYTES;
    out->free_bytes = MEMORY_BYTES - dev->used_bytes;
    return COLI_BK_OK;
}

uint64_t coli_backend_alloc_footprint(coli_bk_device *dev, uint64_t n_bytes)
{
    (void)dev;
    return (n_bytes + 255) / 256 * 256;
}

void *coli_backend_host_alloc(coli_bk_device *dev, uint64_t n_bytes)
{
    host_block *b = take_memory(dev->host, sizeof *b + n_bytes);
    if (!b) return NULL;
    b->next = dev->blocks;
    dev->blocks = b;
    return b + 1;
}

void coli_backend_host_free(coli_bk_device *dev, void *memory)
{
    host_block **link = &dev->blocks;
    while (*link && *link + 1 != memory) link = &(*link)->next;
    host_block *b = *link;
    if (!b) return;
    *link = b->next;
    dev->host->free(dev->host->ctx, b);
}

/* ---- tensors ---- */

static const char *mistake_in(const coli_bk_source *s)
{
    const coli_bk_matrix *gate = &s->matrix[0], *up = &s->matrix[1], *down = &s->matrix[2];
    if (s->n_matrix != 1 && s->n_matrix != 3) return "wrong: a tensor has one matrix or three";
    if (!s->data) return "wrong: a tensor without data";
    for (const coli_bk_matrix *m = gate; m < gate + s->n_matrix; m++) {
        if (m->format >= COLI_BK_N_FORMAT) return "wrong: unknown weight format";
        if (m->n_in - 1 >= INT32_MAX || m->n_out - 1 >= INT32_MAX)
            return "wrong: widths out of range";
        if (m->offset % 64 != 0 || m->offset > s->n_bytes ||
            coli_bk_matrix_bytes(m->format, m->n_out, m->n_in) > s->n_bytes - m->offset)
            return "wrong: a matrix is not inside its block";
    }
    if (s->n_matrix == 1) return NULL;
    if (up->n_in != gate->n_in || up->n_out != gate->n_out || down->n_in != gate->n_out ||
        down->n_out != gate->n_in ||
        coli_bk_layout_of(gate->format, 1).group != coli_bk_layout_of(up->format, 1).group)
        return "wrong: gate, up and down do not fit each other";
    return NULL;
}

static int same_shape(const coli_bk_source *a, const coli_bk_source *b)
{
    int same = a->n_matrix == b->n_matrix && a->n_bytes == b->n_bytes;
    for (uint32_t i = 0; i < a->n_matrix && same; i++) {
        const coli_bk_matrix *m = &a->matrix[i], *n = &b->matrix[i];
        same = m->format == n->format && m->n_out == n->n_out && m->n_in == n->n_in &&
               m->offset == n->offset;
    }
    return same;
}

coli_bk_status coli_backend_tensor_upload(coli_bk_device *dev, const coli_bk_source *source,
                                          coli_bk_tensor **out)
{
    const coli_bk_host *host = dev->host;
    const char *mistake = mistake_in(source);
    if (mistake) return fail(host, COLI_BK_INVALID, mistake);
    const uint64_t n_bytes = coli_backend_alloc_footprint(dev, source->n_bytes);
    if (n_bytes > MEMORY_BYTES - dev->used_bytes)
        return fail(host, COLI_BK_NOMEM, "wrong: the device is full");
    coli_bk_tensor *tensor = take_memory(host, sizeof *tensor);
    void *data = take_memory(host, source->n_bytes);
    if (!tensor || !data) {
        host->free(host->ctx, tensor);
        host->free(host->ctx, data);
        return fail(host, COLI_BK_NOMEM, "wrong: out of memory");
    }
    tensor->is = *source;
    tensor->is.data = memcpy(data, source->data, source->n_bytes);
    tensor->next = dev->tensors;
    dev->tensors = tensor;
    dev->used_bytes += n_bytes;
    dev->upload_bytes += source->n_bytes;
    *out = tensor;
    return COLI_BK_OK;
}

void coli_backend_tensor_free(coli_bk_device *dev, coli_bk_tensor *tensor)
{
    coli_bk_tensor **at = &dev->tensors;
    if (!tensor) return;
    while (*at != tensor) at = &(*at)->next;
    *at = tensor->next;
    dev->used_bytes -= coli_backend_alloc_footprint(dev, tensor->is.n_bytes);
    dev->host->free(dev->host->ctx, (void *)(uintptr_t)tensor->is.data);
    dev->host->free(dev->host->ctx, tensor);
}

static void replace(coli_bk_tensor *tensor, const coli_bk_source *source)
{
    uint64_t n_bytes = source->n_bytes;
    if (MAKES(STALE_OVERWRITE)) return;
    if (MAKES(TORN_OVERWRITE)) n_bytes /= 2;
    memcpy((void *)(uintptr_t)tensor->is.data, source->data, n_bytes);
    for (uint32_t i = 0; i < source->n_matrix; i++)
        tensor->is.matrix[i].scale_exp = source->matrix[i].scale_exp;
}

coli_bk_status coli_backend_tensor_overwrite(coli_bk_device *dev, coli_bk_tensor *tensor,
                                             const coli_bk_source *source)
{
    if (mistake_in(source) || !same_shape(&tensor->is, source))
        return fail(dev->host, COLI_BK_INVALID, "wrong: another shape");
    replace(tensor, source);
    return COLI_BK_OK;
}

/* The copy is made when somebody asks for its fence, or for one behind it. */
coli_bk_status coli_backend_tensor_overwrite_async(coli_bk_device *dev, coli_bk_tensor *tensor,
                                                   const coli_bk_source *source, coli_bk_fence *out)
{
    if (mistake_in(source) || !same_shape(&tensor->is, source))
        return fail(dev->host, COLI_BK_INVALID, "wrong: another shape");
    if (dev->n_fence - dev->n_done == MAX_PENDING) coli_backend_fence_poll(dev, dev->n_done + 1, 0);
    dev->pending[dev->n_fence % MAX_PENDING] = (pending){tensor, *source};
    *out = ++dev->n_fence;
    return COLI_BK_OK;
}

coli_bk_status coli_backend_fence_poll(coli_bk_device *dev, coli_bk_fence fence,
                                       uint64_t wait_limit_ns)
{
    (void)wait_limit_ns;
    if (MAKES(EARLY_FENCE) && dev->n_fence < 3) return COLI_BK_OK;
    for (; dev->n_done < fence; dev->n_done++) {
        const pending *p = &dev->pending[dev->n_done % MAX_PENDING];
        replace(p->tensor, &p->source);
    }
    return COLI_BK_OK;
}

/* ---- arithmetic ---- */

static int32_t weight(const coli_bk_layout *l, const uint8_t *codes, uint32_t c)
{
    const int32_t zero = MAKES(UNSIGNED) ? 0 : l->bits == 8 ? 128 : 8;
    if (l->bits == 8) return codes[64 * (c / 4) + c % 4] - zero;
    if (MAKES(NIBBLES)) c = c / 8 * 8 + c % 8 / 2 + c % 2 * 4;
    return (codes[64 * (c / 8) + c % 4] >> (c % 8 / 4 * 4) & 15) - zero;
}

static float scale_of(const coli_bk_matrix *m, const coli_bk_layout *l, const uint8_t *stored)
{
    float scale;
    uint16_t half;
    memcpy(&half, stored, sizeof half);
    memcpy(&scale, stored, sizeof scale);
    if (l->scale_bytes == 2 && MAKES(HALF_SIGN)) half &= 0x7FFFu;
    if (l->scale_bytes == 2) scale = coli_f16_to_f32(half);
    if (l->scale_bytes == 2 && MAKES(HALF_DENORMALS) && !(half & 0x7C00)) scale = 0.0f;
    return MAKES(NO_EXP) ? scale : scale * coli_pow2(m->scale_exp);
}

enum { MAX_GROUP = 256 };
typedef struct sums { // of one output, in all the ways
    coli_tree tree, late;
    float in_order, fused, scale, v[MAX_GROUP];
    double in_double;
    int is_minus_zero;
} sums;

static void add(sums *a, uint32_t g, int32_t s, float scale, float d)
{
    const float v = MAKES(LATE_SCALE) ? ((float)s * d) * scale : coli_group_value(s, scale, d);
    coli_tree_add(&a->tree, v);
    coli_tree_add(&a->late, (float)s * d);
    a->in_order = a->in_order + v;
    a->fused = fmaf((float)s, scale * d, a->fused);
    a->in_double = a->in_double + (double)v;
    a->scale = scale;
    a->is_minus_zero = (g == 0 || a->is_minus_zero) && v == 0.0f && signbit(v);
    if (g >= MAX_GROUP) abort();
    a->v[g] = v;
}

static float far_pairs(float *v, uint32_t n)
{
    uint32_t half = 1;
    while (half < n) half *= 2;
    for (half /= 2; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++) v[i] = v[i] + v[i + half]; // 0 beyond n
    return v[0] + 0.0f;
}

static float sum(sums *a, const coli_bk_layout *l)
{
    if (MAKES(SEQUENTIAL)) return a->in_order;
    if (MAKES(FAR_PAIRS)) return far_pairs(a->v, l->n_group);
    if (MAKES(IN_DOUBLE)) return (float)a->in_double;
    if (MAKES(FUSED)) return a->fused;
    if (MAKES(MINUS_ZERO) && a->is_minus_zero) return -0.0f;
    if (MAKES(LATER_SCALE) && l->per_row) return coli_tree_sum(&a->late) * a->scale;
    return coli_tree_sum(&a->tree);
}

static void product(const coli_bk_matrix *m, const void *block, const int8_t *q, const float *d,
                    float *y)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    const uint32_t n_group = MAKES(LAST_GROUP) ? l.n_group - 1 : l.n_group;
    const uint32_t n_in = MAKES(ODD_WIDTH) && m->n_in % 64 ? m->n_in - 1 : n_group * l.group;
    for (uint32_t o = 0; o < m->n_out; o++) {
        const uint8_t *panel = (const uint8_t *)block + m->offset + o / 16 * l.panel_bytes;
        sums all = {0};
        for (uint32_t g = 0; g < n_group; g++) {
            const uint8_t *group = panel + l.first_group + (uint64_t)g * l.group_bytes;
            const uint8_t *stored = (l.per_row ? panel : group) + l.scale_bytes * (o % 16);
            const uint8_t *codes = group + l.code_offset + 4 * (o % 16);
            int32_t s = 0;
            for (uint32_t c = 0; c < l.group && g * l.group + c < n_in; c++)
                s += q[g * l.group + c] * weight(&l, codes, c);
            add(&all, g, s, scale_of(m, &l, stored), d[g]);
        }
        y[o] = sum(&all, &l);
    }
}

static float hidden(float gate, float up)
{
    if (MAKES(GATE_UP)) return coli_silu(up) * gate;
    if (MAKES(SILU)) return gate / (1.0f + coli_exp(-coli_clamp(gate, -80.0f, 80.0f))) * up;
    return coli_silu(gate) * up;
}

static int quantise(const float *x, uint32_t n, uint32_t group, int8_t *q, float *d)
{
    int32_t total;
    float amax = 0.0f;
    const int in_range = coli_quantise_group(x, n, group, q, d, &total);
    if (*d == 0.0f) return in_range;
    for (uint32_t i = 0; i < n; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    if (MAKES(UNIT)) *d = amax / 127.0f;
    for (uint32_t i = 0; i < n; i++) {
        const float v = x[i] * coli_recip(*d);
        float r = rintf(v);
        if (MAKES(ROUNDING)) r = roundf(v);
        if (MAKES(TRUNCATED)) r = truncf(v);
        if (MAKES(DIVISION)) r = rintf(x[i] / *d);
        q[i] = (int8_t)(r < -127 ? -127 : r > 127 ? 127 : r);
    }
    return in_range;
}

/* h (2f), hd, hq: scratch.  False when the row is flagged. */
static int expert(const coli_bk_source *e, const int8_t *q, const float *d, float *h, float *hd,
                  int8_t *hq, float *y)
{
    const uint32_t f = e->matrix[2].n_in, group = coli_bk_layout_of(e->matrix[2].format, f).group;
    int in_range = 1;
    product(&e->matrix[0], e->data, q, d, h);
    product(&e->matrix[1], e->data, q, d, h + f);
    for (uint32_t i = 0; i < f; i++) h[i] = hidden(h[i], h[f + i]);
    for (uint32_t i = 0; i < f; i += group)
        in_range &= quantise(h + i, f - i < group ? f - i : group, group, hq + i, &hd[i / group]);
    product(&e->matrix[2], e->data, hq, hd, y);
    return in_range || MAKES(NO_FLAG);
}

/* ---- groups ---- */

static int has_joins(const coli_bk_group *g)
{
    return COLI_BK_HAS(g, coli_bk_group, term_weight) && g->n_join > 0;
}

static const char *mistake_in_group(const coli_bk_group *g, uint32_t *n_pair)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->n_expert; n += g->n_row[i++]) {
        const coli_bk_tensor *e = g->experts[i];
        if (!e || e->is.n_matrix != 3) return "wrong: something else than experts";
        if (!same_shape(&e->is, &g->experts[0]->is)) return "wrong: experts of several shapes";
        const coli_bk_layout l = coli_bk_layout_of(e->is.matrix[0].format, e->is.matrix[0].n_in);
        if (g->group != l.group || g->n_group != l.n_group) return "wrong: rows do not fit";
        if (MAKES(ZERO_ROWS) && g->n_row[i] == 0) return "wrong: an expert without rows";
    }
    for (uint64_t p = 0; p < n; p++)
        if (g->row[p] >= g->n_x) return "wrong: a row that is not there";
    if (has_joins(g)) {
        for (uint32_t t = 0; t < g->n_term; t++)
            if (g->term_pair[t] >= n) return "wrong: a term that is no pair";
        for (uint32_t j = 0; j < g->n_join; j++)
            if ((uint64_t)g->joins[j].first_term + g->joins[j].n_term > g->n_term)
                return "wrong: terms that are not there";
    }
    *n_pair = (uint32_t)n;
    return NULL;
}

/* All pairs are in y; behind them the result is put together: pairs of no join, then the joins. */
static uint32_t join(const coli_bk_group *g, uint32_t n_pair, uint64_t d, float *y, uint8_t *flag)
{
    float *to = y + n_pair * d;
    uint8_t *to_flag = flag + n_pair;
    for (uint32_t p = 0; p < n_pair; p++) {
        int is_term = 0;
        for (uint32_t t = 0; t < g->n_term; t++) is_term |= g->term_pair[t] == p;
        if (is_term) continue;
        memcpy(to, y + p * d, d * sizeof *y);
        to += d;
        *to_flag++ = flag[p];
    }
    for (uint32_t j = 0; j < g->n_join; j++, to += d, to_flag++) {
        memset(to, 0, d * sizeof *to);
        *to_flag = 0;
        for (uint32_t t = g->joins[j].first_term; t < g->joins[j].first_term + g->joins[j].n_term;
             t++) {
            const float *from = y + g->term_pair[t] * d;
            *to_flag |= flag[g->term_pair[t]];
            for (uint64_t o = 0; o < d; o++) to[o] = to[o] + g->term_weight[t] * from[o];
        }
    }
    return (uint32_t)(to_flag - flag) - n_pair;
}

static coli_bk_status compute(coli_bk_device *dev, const coli_bk_group *g, uint32_t n_pair)
{
    const coli_bk_host *host = dev->host;
    const uint64_t d = g->n_expert ? g->experts[0]->is.matrix[2].n_out : 0;
    const uint64_t f = g->n_expert ? g->experts[0]->is.matrix[2].n_in + 64u : 0;
    const uint64_t n_most = 2 * (uint64_t)n_pair + (has_joins(g) ? g->n_join : 0);
    float *y = take_memory(host, (n_most * d + 3 * f) * sizeof *y + f + n_most + 1);
    if (!y) return fail(host, COLI_BK_NOMEM, "wrong: out of memory");
    float *h = y + n_most * d, *hd = h + 2 * f;
    int8_t *hq = (int8_t *)(hd + f);
    uint8_t *flag = (uint8_t *)(hq + f);
    uint32_t p = 0;
    for (uint32_t i = 0; i < g->n_expert; i++)
        for (uint32_t k = 0; k < g->n_row[i]; k++, p++) {
            const uint64_t at = (uint64_t)g->row[p] * g->n_group;
            const uint64_t to = MAKES(ROWS_SWAPPED) && n_pair > 1 && p + 2 >= n_pair
                                    ? 2 * (uint64_t)n_pair - 3 - p
                                    : p;
            flag[p] =
                !expert(&g->experts[i]->is, g->q + at * g->group, g->d + at, h, hd, hq, y + to * d);
        }
    host->free(host->ctx, (void *)(uintptr_t)dev->result.y);
    dev->result = (coli_bk_result){.n_row = n_pair, .y = y, .ld = d, .flag = flag};
    if (has_joins(g)) {
        dev->result.n_row = join(g, n_pair, d, y, flag);
        // nobody frees by y + ...: the joined rows move to the front
        memmove(y, y + n_pair * d, dev->result.n_row * d * sizeof *y);
        memmove(flag, flag + n_pair, dev->result.n_row);
    }
    dev->n_group++;
    dev->n_expert += g->n_expert;
    dev->n_row += n_pair;
    return COLI_BK_OK;
}

static void *volatile lost; // of LEAK; volatile, or the compiler leaves the malloc out

coli_bk_status coli_backend_group_issue(coli_bk_device *dev, const coli_bk_group *g)
{
    uint32_t n_pair = 0;
    if (dev->is_issued) return COLI_BK_BUSY;
    const char *mistake = mistake_in_group(g, &n_pair);
    if (mistake) return fail(dev->host, COLI_BK_INVALID, mistake);
    if (MAKES(LEAK)) lost = malloc(40);
    if (MAKES(HOST_MEMORY)) {
        memset(&dev->late, 0, sizeof dev->late);
        memcpy(&dev->late, g, g->struct_size < sizeof *g ? g->struct_size : sizeof *g);
    } else {
        const coli_bk_status status = compute(dev, g, n_pair);
        if (status != COLI_BK_OK) return status;
    }
    dev->is_issued = 1;
    return COLI_BK_OK;
}

coli_bk_status coli_backend_group_take(coli_bk_device *dev, uint64_t wait_limit_ns,
                                       coli_bk_result *out)
{
    (void)wait_limit_ns;
    if (!dev->is_issued)
        return MAKES(FAILED_TAKE) ? fail(dev->host, COLI_BK_FAILED, "wrong: nothing was issued")
                                  : COLI_BK_EMPTY;
    if (MAKES(HANG) && ++dev->n_take == 3)
        for (;;) nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    if (MAKES(EXITS)) exit(3);
    dev->is_issued = 0;
    if (MAKES(HOST_MEMORY)) {
        uint32_t n_pair = 0;
        for (uint32_t i = 0; i < dev->late.n_expert; i++) n_pair += dev->late.n_row[i];
        const coli_bk_status status = compute(dev, &dev->late, n_pair);
        if (status != COLI_BK_OK) return status;
    }
    out->n_row = dev->result.n_row;
    out->y = dev->result.y;
    out->ld = dev->result.ld;
    out->flag = dev->result.flag;
    return COLI_BK_OK;
}

/* ---- products ---- */

coli_bk_status coli_backend_matmul(coli_bk_device *dev, const coli_bk_matmul *a)
{
    if (!a->w || a->w->is.n_matrix != 1)
        return fail(dev->host, COLI_BK_INVALID, "wrong: no matrix");
    const coli_bk_matrix *m = &a->w->is.matrix[0];
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    if (a->group != l.group || a->n_group != l.n_group || a->ld < m->n_out)
        return fail(dev->host, COLI_BK_INVALID, "wrong: rows do not fit the matrix");
    for (uint64_t i = 0; i < a->n_row; i++)
        product(m, a->w->is.data, a->q + i * (MAKES(ROW_STRIDE) ? m->n_in : l.n_group * l.group),
                a->d + i * l.n_group, a->y + i * a->ld);
    dev->n_matmul++;
    return COLI_BK_OK;
}

coli_bk_status coli_backend_matmul_batch(coli_bk_device *dev, const coli_bk_matmul *const *args,
                                         uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const coli_bk_status status = coli_backend_matmul(dev, args[i]);
        if (status != COLI_BK_OK) return status;
    }
    return COLI_BK_OK;
}

coli_bk_status coli_backend_group_stats(coli_bk_device *dev, coli_bk_group_stats *out)
{
    const coli_bk_group_stats mine = {.struct_size = out->struct_size,
                                      .n_group = dev->n_group,
                                      .n_expert = dev->n_expert,
                                      .n_row = dev->n_row,
                                      .n_matmul = dev->n_matmul,
                                      .upload_bytes = dev->upload_bytes};
    memcpy(out, &mine, out->struct_size < sizeof mine ? out->struct_size : sizeof mine);
    return COLI_BK_OK;
}
