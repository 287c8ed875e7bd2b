/* vulkan.c - the functions that coli/backend.h asks for: arguments are checked here. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "vk_device.h"
#include "vk_group.h"
#include "vk_matmul.h"

const coli_bk_info coli_backend_info = {
    .magic = COLI_BK_MAGIC,
    .struct_size = sizeof(coli_bk_info),
    .abi_major = COLI_BK_ABI_MAJOR,
    .abi_minor = COLI_BK_ABI_MINOR,
    .name = "vulkan",
    .build = COLI_VERSION ", " COLI_VK_TOOLS,
};

#define INVALID(host, ...) vk_fail(host, COLI_BK_INVALID, "vulkan: " __VA_ARGS__)

/* The struct reaches at least this member. */
#define NEED(host, p, type, member)                                                                \
    do {                                                                                           \
        if (!(p) || !COLI_BK_HAS(p, type, member))                                                 \
            return INVALID(host, "%s: missing, or its struct_size is too small", #type);           \
    } while (0)

/* ---- devices -------------------------------------------------------------------------------- */

coli_bk_status coli_backend_device_count(const coli_bk_host *host, uint32_t *n)
{
    if (!n) return INVALID(host, "device_count: no place for the result");
    vk_instance instance;
    bool is_absent;
    VK_TRY(vk_instance_open(host, 0, &is_absent, &instance));
    if (is_absent) {
        host->fail(host->ctx, "vulkan: " VK_ABSENT); // the reason for 0, which is no failure
        *n = 0;
        return COLI_BK_OK;
    }
    vk_candidate *list;
    uint32_t n_found;
    const coli_bk_status status = vk_instance_devices(&instance, &list, &n_found);
    vk_free(host, list);
    vk_instance_close(&instance);
    if (!status) *n = n_found;
    return status;
}

static void ignore(void *ctx, const char *text)
{
    (void)ctx;
    (void)text;
}

/* The host's options, or the usual ones where they are wrong, which is open's to report. */
static vk_options options_of(const coli_bk_host *host)
{
    coli_bk_host quiet = {0};
    memcpy(&quiet, host, vk_min(host->struct_size, sizeof quiet));
    quiet.fail = ignore;
    vk_options options;
    if (vk_options_parse(&quiet, &options) != COLI_BK_OK) {
        quiet.options = "";
        vk_options_parse(&quiet, &options);
    }
    return options;
}

static void fill_info(const coli_bk_host *host, const vk_candidate *c, coli_bk_device_info *info)
{
    const uint32_t struct_size = info->struct_size;
    const vk_options options = options_of(host);
    coli_bk_device_info full = {
        .struct_size = struct_size,
        .kind = c->kind,
        .formats = (1u << COLI_BK_N_FORMAT) - 1,
        .flags = vk_options_join(&options, c) ? COLI_BK_CAN_JOIN : 0,
        .mem_total = vk_options_memory(&options, c),
        .max_tensor_bytes = vk_options_buffer(&options, c),
    };
    memcpy(full.name, c->name, sizeof full.name);
    memcpy(full.driver, c->driver, sizeof full.driver);
    memcpy(full.uuid, c->uuid, sizeof full.uuid);
    memcpy(full.unusable, c->unusable, sizeof full.unusable);
    memcpy(info, &full, vk_min(struct_size, sizeof full));
}

coli_bk_status coli_backend_device_info(const coli_bk_host *host, uint32_t device,
                                        coli_bk_device_info *info)
{
    NEED(host, info, coli_bk_device_info, unusable);
    vk_instance instance;
    bool is_absent;
    VK_TRY(vk_instance_open(host, 0, &is_absent, &instance));
    if (is_absent) return INVALID(host, "device %u: " VK_ABSENT, device);
    vk_candidate *list;
    uint32_t n;
    coli_bk_status status = vk_instance_devices(&instance, &list, &n);
    if (!status && device >= n) status = INVALID(host, "device %u: there are %u", device, n);
    if (!status) fill_info(host, &list[device], info);
    vk_free(host, list);
    vk_instance_close(&instance);
    return status;
}

coli_bk_status coli_backend_open(const coli_bk_host *host, uint32_t device, coli_bk_device **out)
{
    if (!out) return INVALID(host, "open: no place for the result");
    return vk_device_open(host, device, out);
}

void coli_backend_close(coli_bk_device *dev)
{
    vk_device_close(dev);
}

coli_bk_status coli_backend_mem_info(coli_bk_device *dev, coli_bk_mem_info *out)
{
    NEED(&dev->host, out, coli_bk_mem_info, total_bytes);
    VK_TRY(vk_device_check(dev));
    vk_memory_info(dev, out);
    return COLI_BK_OK;
}

uint64_t coli_backend_alloc_footprint(coli_bk_device *dev, uint64_t n_bytes)
{
    (void)dev;
    return n_bytes > UINT64_MAX - VK_SLICE_ALIGN ? UINT64_MAX : vk_slice_bytes(n_bytes);
}

coli_bk_status coli_backend_group_stats(coli_bk_device *dev, coli_bk_group_stats *out)
{
    NEED(&dev->host, out, coli_bk_group_stats, upload_ms);
    pthread_mutex_lock(&dev->stats_lock);
    const uint32_t struct_size = out->struct_size;
    coli_bk_group_stats full = dev->stats;
    pthread_mutex_unlock(&dev->stats_lock);
    full.struct_size = struct_size;
    memcpy(out, &full, vk_min(struct_size, sizeof full));
    return COLI_BK_OK;
}

/* ---- tensors -------------------------------------------------------------------------------- */

static coli_bk_status check_matrix(const coli_bk_host *host, const coli_bk_source *s, uint32_t i)
{
    const coli_bk_matrix *m = &s->matrix[i];
    if (m->format >= COLI_BK_N_FORMAT)
        return vk_fail(host, COLI_BK_UNSUPPORTED, "vulkan: matrix %u: unknown format %u", i,
                       m->format);
    if (m->n_out - 1 > INT32_MAX - 1u || m->n_in - 1 > INT32_MAX - 1u)
        return INVALID(host, "matrix %u: (%u, %u) is no shape", i, m->n_out, m->n_in);
    if (m->scale_exp < -60 || m->scale_exp > 60)
        return INVALID(host, "matrix %u: scale_exp %d: expected -60 to 60", i, m->scale_exp);
    const uint64_t n_bytes = coli_bk_matrix_bytes(m->format, m->n_out, m->n_in);
    if (m->offset % 64 || m->offset > s->n_bytes || n_bytes > s->n_bytes - m->offset)
        return INVALID(host, "matrix %u: %" PRIu64 " bytes at %" PRIu64 ": the block has %" PRIu64,
                       i, n_bytes, m->offset, s->n_bytes);
    return COLI_BK_OK;
}

static coli_bk_status check_source(coli_bk_device *dev, const coli_bk_source *s)
{
    const coli_bk_host *host = &dev->host;
    NEED(host, s, coli_bk_source, matrix);
    if (s->n_matrix != 1 && s->n_matrix != 3)
        return INVALID(host, "a block of %u matrices: expected 1 or 3", s->n_matrix);
    if (!s->data || (uintptr_t)s->data % 64 || s->n_bytes % 32 || s->n_bytes == 0)
        return INVALID(host,
                       "a block of %" PRIu64 " bytes at %p: expected a multiple of 32 at a "
                       "multiple of 64",
                       s->n_bytes, s->data);
    for (uint32_t i = 0; i < s->n_matrix; i++) VK_TRY(check_matrix(host, s, i));
    const coli_bk_matrix *m = s->matrix;
    if (s->n_matrix == 3 &&
        (m[1].n_out != m[0].n_out || m[1].n_in != m[0].n_in || m[2].n_out != m[0].n_in ||
         m[2].n_in != m[0].n_out ||
         coli_bk_layout_of(m[0].format, 1).group != coli_bk_layout_of(m[1].format, 1).group))
        return INVALID(host, "gate (%u, %u), up (%u, %u), down (%u, %u) make no expert", m[0].n_out,
                       m[0].n_in, m[1].n_out, m[1].n_in, m[2].n_out, m[2].n_in);
    if (s->n_bytes > dev->max_tensor_bytes)
        return vk_fail(host, COLI_BK_UNSUPPORTED,
                       "vulkan: a block of %" PRIu64 " bytes: a buffer of %s holds %" PRIu64,
                       s->n_bytes, dev->about.name, dev->max_tensor_bytes);
    return s->n_matrix == 3 ? vk_group_check_shape(dev, m) : vk_matmul_check_shape(dev, m);
}

/* The memory of host_alloc that holds all of a block: the device copies from there by itself. */
static const vk_pinned *find_pinned(const coli_bk_device *dev, const uint8_t *from,
                                    uint64_t n_bytes)
{
    for (const vk_pinned *p = dev->pinned; p; p = p->next) {
        const uintptr_t at = (uintptr_t)from - (uintptr_t)p->buffer.map; // huge when below
        if (at < p->buffer.n_bytes && n_bytes <= p->buffer.n_bytes - at) return p;
    }
    return NULL;
}

/* Copy the block into the slice; *value is the submission after which it is there. */
static coli_bk_status copy_block(coli_bk_device *dev, const coli_bk_source *s,
                                 const vk_slice *slice, uint64_t *value)
{
    const uint8_t *from = s->data;
    const vk_pinned *pinned = find_pinned(dev, from, s->n_bytes);
    const uint64_t piece_bytes = pinned ? s->n_bytes : dev->copy.slot_bytes;
    for (uint64_t at = 0; at < s->n_bytes; at += piece_bytes) {
        const uint64_t n = vk_min(piece_bytes, s->n_bytes - at);
        vk_slot *slot;
        VK_TRY(vk_stream_begin(dev, &dev->copy, &slot));
        VkBufferCopy copy = {
            .srcOffset = slot->staging_at, .dstOffset = slice->offset + at, .size = n};
        if (pinned)
            copy.srcOffset = (uint64_t)(from - (uint8_t *)pinned->buffer.map);
        else
            memcpy(slot->staging, from + at, n);
        dev->vk.vkCmdCopyBuffer(slot->commands,
                                pinned ? pinned->buffer.handle : dev->copy.ring.handle,
                                slice->chunk->buffer.handle, 1, &copy);
        VK_TRY(vk_stream_submit(dev, &dev->copy, slot));
    }
    *value = dev->copy.issued;
    pthread_mutex_lock(&dev->stats_lock);
    dev->stats.upload_bytes += s->n_bytes;
    pthread_mutex_unlock(&dev->stats_lock);
    return COLI_BK_OK;
}

/* Copy, and wait until it is done. */
static coli_bk_status copy_block_now(coli_bk_device *dev, const coli_bk_source *s,
                                     const vk_slice *slice)
{
    const uint64_t start_ns = vk_clock_ns(&dev->host);
    uint64_t value;
    VK_TRY(copy_block(dev, s, slice, &value));
    VK_TRY(vk_stream_finish(dev, &dev->copy, value));
    pthread_mutex_lock(&dev->stats_lock);
    dev->stats.upload_ms += (double)(vk_clock_ns(&dev->host) - start_ns) * 1e-6;
    pthread_mutex_unlock(&dev->stats_lock);
    return COLI_BK_OK;
}

coli_bk_status coli_backend_tensor_upload(coli_bk_device *dev, const coli_bk_source *source,
                                          coli_bk_tensor **out)
{
    if (!out) return INVALID(&dev->host, "tensor_upload: no place for the result");
    VK_TRY(vk_device_check(dev));
    VK_TRY(check_source(dev, source));
    VK_TRY(vk_kernels_need(dev, source->matrix, source->n_matrix));
    coli_bk_tensor *t = vk_alloc(&dev->host, sizeof *t);
    if (!t) return vk_fail(&dev->host, COLI_BK_NOMEM, "vulkan: no memory for a tensor's record");
    coli_bk_status status = vk_slice_alloc(dev, source->n_bytes, &t->slice);
    if (status) {
        vk_free(&dev->host, t);
        return status;
    }
    t->n_bytes = source->n_bytes;
    t->n_matrix = source->n_matrix;
    memcpy(t->matrix, source->matrix, sizeof t->matrix);
    status = copy_block_now(dev, source, &t->slice);
    if (status) {
        // When the pieces under way do not end, the tensor is left to close.
        if (vk_stream_drain(dev, &dev->copy)) coli_backend_tensor_free(dev, t);
        return status;
    }
    *out = t;
    return COLI_BK_OK;
}

void coli_backend_tensor_free(coli_bk_device *dev, coli_bk_tensor *tensor)
{
    if (!tensor) return;
    vk_slice_free(dev, &tensor->slice);
    vk_free(&dev->host, tensor);
}

/* A new content must have the tensor's shape. */
static coli_bk_status check_overwrite(coli_bk_device *dev, const coli_bk_tensor *t,
                                      const coli_bk_source *s)
{
    VK_TRY(vk_device_check(dev));
    if (!t) return INVALID(&dev->host, "tensor_overwrite: no tensor");
    VK_TRY(check_source(dev, s));
    bool is_same = s->n_bytes == t->n_bytes && s->n_matrix == t->n_matrix;
    for (uint32_t i = 0; i < t->n_matrix && is_same; i++) {
        const coli_bk_matrix *a = &s->matrix[i], *b = &t->matrix[i];
        is_same = a->format == b->format && a->n_out == b->n_out && a->n_in == b->n_in &&
                  a->offset == b->offset;
    }
    return is_same ? COLI_BK_OK
                   : INVALID(&dev->host, "tensor_overwrite: the tensor has another shape");
}

static void set_exponents(coli_bk_tensor *t, const coli_bk_source *s)
{
    for (uint32_t i = 0; i < t->n_matrix; i++) t->matrix[i].scale_exp = s->matrix[i].scale_exp;
}

coli_bk_status coli_backend_tensor_overwrite(coli_bk_device *dev, coli_bk_tensor *tensor,
                                             const coli_bk_source *source)
{
    VK_TRY(check_overwrite(dev, tensor, source));
    VK_TRY(copy_block_now(dev, source, &tensor->slice));
    set_exponents(tensor, source);
    return COLI_BK_OK;
}

coli_bk_status coli_backend_tensor_overwrite_async(coli_bk_device *dev, coli_bk_tensor *tensor,
                                                   const coli_bk_source *source, coli_bk_fence *out)
{
    if (!out) return INVALID(&dev->host, "tensor_overwrite_async: no place for the fence");
    VK_TRY(check_overwrite(dev, tensor, source));
    VK_TRY(copy_block(dev, source, &tensor->slice, out));
    set_exponents(tensor, source);
    return COLI_BK_OK;
}

/* A fence is the number of a submission of the copy stream. */
coli_bk_status coli_backend_fence_poll(coli_bk_device *dev, coli_bk_fence fence,
                                       uint64_t wait_limit_ns)
{
    if (fence == 0 || fence > dev->copy.issued)
        return INVALID(&dev->host, "fence %" PRIu64 " was never given", fence);
    VK_TRY(vk_device_check(dev));
    return vk_stream_wait(dev, &dev->copy, fence, wait_limit_ns);
}

void *coli_backend_host_alloc(coli_bk_device *dev, uint64_t n_bytes)
{
    if (n_bytes == 0 || atomic_load(&dev->is_lost)) return NULL;
    vk_pinned *pinned = vk_alloc(&dev->host, sizeof *pinned);
    if (!pinned) return NULL;
    if (!vk_pinned_create(dev, n_bytes, &pinned->buffer)) {
        vk_free(&dev->host, pinned);
        return NULL;
    }
    pinned->next = dev->pinned;
    dev->pinned = pinned;
    return pinned->buffer.map;
}

void coli_backend_host_free(coli_bk_device *dev, void *memory)
{
    if (!memory) return;
    vk_pinned **at = &dev->pinned;
    while (*at && (*at)->buffer.map != memory) at = &(*at)->next;
    vk_pinned *pinned = *at;
    if (!pinned) return;
    *at = pinned->next;
    vk_buffer_destroy(dev, &pinned->buffer);
    vk_free(&dev->host, pinned);
}

/* ---- work ----------------------------------------------------------------------------------- */

static coli_bk_status check_expert(const coli_bk_host *host, const coli_bk_group *g, uint32_t i)
{
    const coli_bk_tensor *t = g->experts[i], *first = g->experts[0];
    if (!t || t->n_matrix != 3) return INVALID(host, "expert %u of a group is no expert", i);
    for (uint32_t j = 0; j < 3; j++)
        if (t->matrix[j].format != first->matrix[j].format ||
            t->matrix[j].n_out != first->matrix[j].n_out ||
            t->matrix[j].n_in != first->matrix[j].n_in)
            return INVALID(host, "expert %u of a group has another shape than the first", i);
    return COLI_BK_OK;
}

/* Pairs of joins are pairs, and none occurs twice: then there are no more terms than pairs. */
static coli_bk_status check_joins(coli_bk_device *dev, const coli_bk_group *g, uint64_t n_pair)
{
    const coli_bk_host *host = &dev->host;
    if (!COLI_BK_HAS(g, coli_bk_group, term_weight) || g->n_join == 0) return COLI_BK_OK;
    if (!vk_options_join(&dev->options, &dev->about))
        return vk_fail(host, COLI_BK_UNSUPPORTED, "vulkan: %s does not join rows", dev->about.name);
    if (g->n_expert == 0) return INVALID(host, "joins of no expert: how long are they?");
    if (!g->joins || (g->n_term > 0 && (!g->term_pair || !g->term_weight)))
        return INVALID(host, "joins without their tables");
    if (g->n_term > n_pair || g->n_join > INT32_MAX)
        return INVALID(host, "%u joins of %u terms: there are %" PRIu64 " pairs", g->n_join,
                       g->n_term, n_pair);
    for (uint32_t i = 0; i < g->n_join; i++)
        if (g->joins[i].first_term > g->n_term ||
            g->joins[i].n_term > g->n_term - g->joins[i].first_term)
            return INVALID(host, "join %u: terms %u to %u of %u", i, g->joins[i].first_term,
                           g->joins[i].first_term + g->joins[i].n_term, g->n_term);
    for (uint32_t i = 0; i < g->n_term; i++)
        if (g->term_pair[i] >= n_pair)
            return INVALID(host, "term %u is pair %u of %" PRIu64, i, g->term_pair[i], n_pair);
    return COLI_BK_OK;
}

static coli_bk_status check_group(coli_bk_device *dev, const coli_bk_group *g, uint64_t *out_n_pair)
{
    const coli_bk_host *host = &dev->host;
    NEED(host, g, coli_bk_group, d);
    if (g->n_expert == 0) return check_joins(dev, g, 0);
    if (!g->experts || !g->n_row) return INVALID(host, "a group without experts or n_row");
    uint64_t n_pair = 0;
    for (uint32_t i = 0; i < g->n_expert; i++) {
        VK_TRY(check_expert(host, g, i));
        n_pair += g->n_row[i];
    }
    *out_n_pair = n_pair;
    const coli_bk_matrix *gate = &g->experts[0]->matrix[0];
    const coli_bk_layout l = coli_bk_layout_of(gate->format, gate->n_in);
    if (g->group != l.group || g->n_group != l.n_group)
        return INVALID(host, "activations of %u groups of %u: the experts have %u of %u",
                       g->n_group, g->group, l.n_group, l.group);
    if (n_pair > 0 && (!g->row || !g->q || !g->d))
        return INVALID(host, "a group without row numbers or activations");
    for (uint64_t p = 0; p < n_pair; p++)
        if (g->row[p] >= g->n_x)
            return INVALID(host, "pair %" PRIu64 " takes row %u of %u", p, g->row[p], g->n_x);
    return check_joins(dev, g, n_pair);
}

coli_bk_status coli_backend_group_issue(coli_bk_device *dev, const coli_bk_group *group)
{
    VK_TRY(vk_device_check(dev));
    if (vk_group_is_pending(dev)) return COLI_BK_BUSY;
    uint64_t n_pair = 0;
    VK_TRY(check_group(dev, group, &n_pair));
    return vk_group_issue(dev, group, n_pair);
}

coli_bk_status coli_backend_group_take(coli_bk_device *dev, uint64_t wait_limit_ns,
                                       coli_bk_result *out)
{
    NEED(&dev->host, out, coli_bk_result, flag);
    VK_TRY(vk_device_check(dev));
    return vk_group_take(dev, wait_limit_ns, out);
}

static coli_bk_status check_matmul(const coli_bk_host *host, const coli_bk_matmul *a)
{
    NEED(host, a, coli_bk_matmul, ld);
    if (!a->w || a->w->n_matrix != 1) return INVALID(host, "matmul: no tensor of one matrix");
    const coli_bk_matrix *m = &a->w->matrix[0];
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    if (a->group != l.group || a->n_group != l.n_group)
        return INVALID(host, "matmul: activations of %u groups of %u: the matrix has %u of %u",
                       a->n_group, a->group, l.n_group, l.group);
    if (a->n_row > 0 && (!a->q || !a->d || !a->y || a->ld < m->n_out))
        return INVALID(host, "matmul: activations or results are missing, or ld is below %u",
                       m->n_out);
    return COLI_BK_OK;
}

coli_bk_status coli_backend_matmul_batch(coli_bk_device *dev, const coli_bk_matmul *const *args,
                                         uint32_t n)
{
    VK_TRY(vk_device_check(dev));
    if (n > 0 && !args) return INVALID(&dev->host, "matmul_batch: no list");
    for (uint32_t i = 0; i < n; i++) VK_TRY(check_matmul(&dev->host, args[i]));
    return vk_matmul_run(dev, args, n);
}

coli_bk_status coli_backend_matmul(coli_bk_device *dev, const coli_bk_matmul *args)
{
    return coli_backend_matmul_batch(dev, &args, 1);
}
