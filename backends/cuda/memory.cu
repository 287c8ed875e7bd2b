/* memory.cu - the copy sequence: device memory, tensors, fences, page-locked memory.
 *
 * The arena.  Device memory is taken from CUDA in large buffers and handed out in extents.  A tensor
 * that fits no free extent brings a new buffer that holds as many of its size as go into chunk_bytes,
 * and at least one:
 *
 *     buffer   | tensor | tensor | tensor | tensor | free ...... |      free extents in a list by
 *                                                                       address; neighbours merge
 *
 * So equal tensors, which is what a tier of experts consists of, take exactly their share of a buffer,
 * and that is what alloc_footprint says.  An empty buffer is given back to CUDA only when another size is
 * wanted and there is nothing else, because that waits for everything that runs; mem_info counts what
 * is free in buffers.  The scratch memory of the work sequence comes from here too, so whatever is
 * freed can be had again by both.
 *
 * Copies.  All are asynchronous: through the ring of page-locked stages, or straight from the source
 * when that is page-locked itself.  Each ends with a fence; the synchronous calls wait for theirs.  The
 * stream keeps order, so a fence is done when a later one is, and its number is compared with that of
 * the last one that is done. */
#include "device.cuh"

static const uint64_t ALIGN = 256, STEP = 2 << 20; // bytes: of extents; of CUDA's own granularity

typedef struct coli__cuda_buffer {
    struct coli__cuda_buffer *next;
    uint8_t *memory;
    uint64_t n_bytes;
    coli__cuda_extent *free_list;
} coli__cuda_buffer;

/* ---- the arena ------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t n, uint64_t step)
{
    return (n + step - 1) / step * step;
}

/* How many tensors of so many bytes share a buffer. */
static uint64_t n_in_buffer(const coli_bk_device *dev, uint64_t n_bytes)
{
    const uint64_t n = dev->arena.chunk_bytes / n_bytes;
    return n > 1 ? n : 1;
}

uint64_t coli_backend_alloc_footprint(coli_bk_device *dev, uint64_t n_bytes)
{
    if (!dev || n_bytes == 0 || n_bytes > UINT64_MAX / 2) return n_bytes;
    const uint64_t each = round_up(n_bytes, ALIGN), n = n_in_buffer(dev, each);
    return round_up(n * each, STEP) / n;
}

static coli__cuda_extent *new_extent(coli_bk_device *dev)
{
    coli__cuda_extent *const e = static_cast<coli__cuda_extent *>(
        coli__cuda_host_alloc(dev->host, sizeof(coli__cuda_extent)));
    if (!e) coli__cuda_fail(dev->host, COLI_BK_NOMEM, CUDA_NAME ": no memory on the host");
    return e;
}

static void delete_extent(coli_bk_device *dev, coli__cuda_extent *e)
{
    dev->host->free(dev->host->ctx, e);
}

static bool is_empty(const coli__cuda_buffer *b)
{
    return b->free_list && b->free_list->n_bytes == b->n_bytes;
}

/* Delete a buffer that is not in use, or that nobody will use any more. */
static void delete_buffer(coli_bk_device *dev, coli__cuda_buffer *b)
{
    while (b->free_list) {
        coli__cuda_extent *const e = b->free_list;
        b->free_list = e->next;
        dev->arena.free_bytes -= e->n_bytes;
        delete_extent(dev, e);
    }
    if (!dev->is_lost) cudaFree(b->memory);
    dev->host->free(dev->host->ctx, b);
}

/* Give all empty buffers back to CUDA, if the device comes to rest.  True when there were some. */
static bool give_back(coli_bk_device *dev)
{
    bool any = false;
    for (coli__cuda_buffer *b = dev->arena.buffers; b; b = b->next) any |= is_empty(b);
    if (!any || coli__cuda_settle(dev, dev->copies.stream, COLI_BK_OK) != COLI_BK_OK ||
        coli__cuda_settle(dev, dev->work.stream, COLI_BK_OK) != COLI_BK_OK)
        return false;
    for (coli__cuda_buffer **link = &dev->arena.buffers; *link;) {
        coli__cuda_buffer *const b = *link;
        if (is_empty(b)) {
            *link = b->next;
            delete_buffer(dev, b);
        } else {
            link = &b->next;
        }
    }
    return true;
}

/* As many times n_bytes as go into a chunk, or as many as there still are. */
static cudaError_t take_from_cuda(coli_bk_device *dev, uint64_t n_bytes, coli__cuda_buffer *b)
{
    void *memory = nullptr;
    for (uint64_t n = n_in_buffer(dev, n_bytes);; n /= 2) {
        b->n_bytes = round_up(n * n_bytes, STEP);
        const cudaError_t error = cudaMalloc(&memory, b->n_bytes);
        b->memory = static_cast<uint8_t *>(memory);
        if (error != cudaErrorMemoryAllocation || n == 1) return error;
        cudaGetLastError();
    }
}

/* A new buffer with room for n_bytes, all of it one free extent. */
static coli_bk_status add_buffer(coli_bk_device *dev, uint64_t n_bytes)
{
    coli__cuda_extent *const all = new_extent(dev);
    if (!all) return COLI_BK_NOMEM;
    coli__cuda_buffer *const b = static_cast<coli__cuda_buffer *>(
        coli__cuda_host_alloc(dev->host, sizeof(coli__cuda_buffer)));
    if (!b) {
        delete_extent(dev, all);
        return coli__cuda_fail(dev->host, COLI_BK_NOMEM, CUDA_NAME ": no memory on the host");
    }
    cudaError_t error = take_from_cuda(dev, n_bytes, b);
    if (error == cudaErrorMemoryAllocation && give_back(dev))
        error = take_from_cuda(dev, n_bytes, b);
    if (error != cudaSuccess) {
        delete_extent(dev, all);
        dev->host->free(dev->host->ctx, b);
        return dev->is_lost ? coli__cuda_hangs(dev, dev->host->wait_limit_ns)
                            : coli__cuda_check(dev, error, "cudaMalloc");
    }
    all->at = b->memory;
    all->n_bytes = b->n_bytes;
    all->buffer = b;
    b->free_list = all;
    b->next = dev->arena.buffers;
    dev->arena.buffers = b;
    dev->arena.free_bytes += all->n_bytes;
    return COLI_BK_OK;
}

/* Take n_bytes from the first free extent that has them; false when none does. */
static bool take_free(coli_bk_device *dev, uint64_t n_bytes, coli__cuda_extent *out)
{
    for (coli__cuda_buffer *b = dev->arena.buffers; b; b = b->next)
        for (coli__cuda_extent **link = &b->free_list; *link; link = &(*link)->next) {
            coli__cuda_extent *const e = *link;
            if (e->n_bytes < n_bytes) continue;
            out->buffer = b;
            out->at = e->at;
            out->n_bytes = n_bytes;
            e->at += n_bytes;
            e->n_bytes -= n_bytes;
            if (e->n_bytes == 0) {
                *link = e->next;
                delete_extent(dev, e);
            }
            dev->arena.free_bytes -= n_bytes;
            return true;
        }
    return false;
}

coli_bk_status coli__cuda_arena_take(coli_bk_device *dev, uint64_t n_bytes, coli__cuda_extent **out)
{
    *out = nullptr;
    if (n_bytes > UINT64_C(1) << 60)
        return coli__cuda_fail(dev->host, COLI_BK_NOMEM, CUDA_NAME ": no device has %llu bytes",
                               static_cast<unsigned long long>(n_bytes));
    const uint64_t needed = round_up(n_bytes, ALIGN);
    coli__cuda_extent *const e = new_extent(dev);
    if (!e) return COLI_BK_NOMEM;
    const std::lock_guard<std::mutex> lock(dev->arena.mu);
    if (!take_free(dev, needed, e)) {
        const coli_bk_status status = add_buffer(dev, needed);
        if (status != COLI_BK_OK) {
            delete_extent(dev, e);
            return status;
        }
        take_free(dev, needed, e);
    }
    *out = e;
    return COLI_BK_OK;
}

void coli__cuda_arena_give(coli_bk_device *dev, coli__cuda_extent *e)
{
    if (!e) return;
    const std::lock_guard<std::mutex> lock(dev->arena.mu);
    dev->arena.free_bytes += e->n_bytes;
    coli__cuda_extent *before = nullptr, *after = e->buffer->free_list;
    while (after && after->at < e->at) {
        before = after;
        after = after->next;
    }
    e->next = after;
    if (before)
        before->next = e;
    else
        e->buffer->free_list = e;
    if (after && e->at + e->n_bytes == after->at) {
        e->n_bytes += after->n_bytes;
        e->next = after->next;
        delete_extent(dev, after);
    }
    if (before && before->at + before->n_bytes == e->at) {
        before->n_bytes += e->n_bytes;
        before->next = e->next;
        delete_extent(dev, e);
    }
}

void coli__cuda_arena_finish(coli_bk_device *dev)
{
    while (dev->arena.buffers) {
        coli__cuda_buffer *const b = dev->arena.buffers;
        dev->arena.buffers = b->next;
        delete_buffer(dev, b);
    }
}

/* ---- page-locked memory ---------------------------------------------------------------------- */

coli_bk_status coli__cuda_pinned_take(coli_bk_device *dev, uint64_t n_bytes, uint8_t **out)
{
    void *memory = nullptr;
    COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaHostAlloc, &memory, n_bytes, cudaHostAllocPortable));
    *out = static_cast<uint8_t *>(memory);
    return COLI_BK_OK;
}

void coli__cuda_pinned_give(coli_bk_device *dev, uint8_t *memory)
{
    if (!memory) return;
    // CUDA waits for the device before it lets go of the pages: so see first that it comes to rest.
    const cudaStream_t streams[] = {dev->copies.stream, dev->work.stream};
    for (const cudaStream_t stream : streams)
        if (stream && coli__cuda_settle(dev, stream, COLI_BK_OK) != COLI_BK_OK) return;
    cudaFreeHost(memory);
}

void *coli_backend_host_alloc(coli_bk_device *dev, uint64_t n_bytes)
{
    if (!dev || n_bytes == 0 || dev->is_lost || cudaSetDevice(dev->ordinal) != cudaSuccess)
        return nullptr;
    coli__cuda_pinned *const p = static_cast<coli__cuda_pinned *>(
        coli__cuda_host_alloc(dev->host, sizeof(coli__cuda_pinned)));
    if (!p) return nullptr;
    void *memory = nullptr;
    if (cudaHostAlloc(&memory, n_bytes, cudaHostAllocPortable) != cudaSuccess) {
        cudaGetLastError();
        dev->host->free(dev->host->ctx, p);
        return nullptr;
    }
    p->memory = static_cast<uint8_t *>(memory);
    p->n_bytes = n_bytes;
    p->next = dev->copies.pinned;
    dev->copies.pinned = p;
    return memory;
}

static void free_first_pinned(coli_bk_device *dev, coli__cuda_pinned **link)
{
    coli__cuda_pinned *const p = *link;
    *link = p->next;
    coli__cuda_pinned_give(dev, p->memory);
    dev->host->free(dev->host->ctx, p);
}

void coli_backend_host_free(coli_bk_device *dev, void *memory)
{
    if (!dev || !memory) return;
    if (!dev->is_lost) cudaSetDevice(dev->ordinal);
    for (coli__cuda_pinned **link = &dev->copies.pinned; *link; link = &(*link)->next)
        if ((*link)->memory == memory) {
            free_first_pinned(dev, link);
            return;
        }
}

/* Whether a source is memory that a copy may read while we go on. */
static bool is_pinned(const coli_bk_device *dev, const coli_bk_source *s)
{
    const uint8_t *const at = static_cast<const uint8_t *>(s->data);
    for (const coli__cuda_pinned *p = dev->copies.pinned; p; p = p->next)
        if (at >= p->memory && at < p->memory + p->n_bytes)
            return s->n_bytes <= p->n_bytes - static_cast<uint64_t>(at - p->memory);
    return false;
}

/* ---- copies and fences ----------------------------------------------------------------------- */

coli_bk_status coli__cuda_copies_init(coli_bk_device *dev)
{
    coli__cuda_copies *const c = &dev->copies;
    COLI__CUDA_TRY(
        COLI__CUDA_CALL(dev, cudaStreamCreateWithFlags, &c->stream, cudaStreamNonBlocking));
    COLI__CUDA_TRY(coli__cuda_pinned_take(
        dev, static_cast<uint64_t>(COLI__CUDA_N_STAGE) * COLI__CUDA_STAGE_BYTES, &c->stages));
    for (uint32_t i = 0; i < COLI__CUDA_N_STAGE; i++)
        COLI__CUDA_TRY(coli__cuda_event(dev, &c->stage_done[i]));
    for (uint32_t i = 0; i < COLI__CUDA_N_FENCE; i++) {
        COLI__CUDA_TRY(coli__cuda_event(dev, &c->begin[i]));
        COLI__CUDA_TRY(coli__cuda_event(dev, &c->end[i]));
    }
    return COLI_BK_OK;
}

void coli__cuda_copies_finish(coli_bk_device *dev)
{
    coli__cuda_copies *const c = &dev->copies;
    while (c->tensors) coli_backend_tensor_free(dev, c->tensors);
    while (c->pinned) free_first_pinned(dev, &c->pinned);
    if (dev->is_lost) return;
    for (uint32_t i = 0; i < COLI__CUDA_N_FENCE; i++) {
        if (c->begin[i]) cudaEventDestroy(c->begin[i]);
        if (c->end[i]) cudaEventDestroy(c->end[i]);
    }
    for (uint32_t i = 0; i < COLI__CUDA_N_STAGE; i++)
        if (c->stage_done[i]) cudaEventDestroy(c->stage_done[i]);
    if (c->stages) cudaFreeHost(c->stages);
    if (c->stream) cudaStreamDestroy(c->stream);
}

/* See which fences are done by now. */
static coli_bk_status look(coli_bk_device *dev)
{
    coli__cuda_copies *const c = &dev->copies;
    while (c->done < c->issued) {
        const uint32_t i = static_cast<uint32_t>((c->done + 1) % COLI__CUDA_N_FENCE);
        const coli_bk_status status = coli__cuda_wait(dev, c->end[i], 0);
        if (status == COLI_BK_BUSY) return COLI_BK_OK;
        COLI__CUDA_TRY(status);
        coli__cuda_count_ns(&dev->counts.upload_ns, c->begin[i], c->end[i]);
        c->done++;
        c->progress_ns = coli__cuda_clock_ns(dev->host);
    }
    return COLI_BK_OK;
}

/* Wait for a fence, up to limit_ns: OK or BUSY; LOST when no copy has ended for as long as the host wants
 * to wait at most. */
static coli_bk_status wait_for_fence(coli_bk_device *dev, coli_bk_fence fence, uint64_t limit_ns)
{
    coli__cuda_copies *const c = &dev->copies;
    COLI__CUDA_TRY(look(dev));
    if (fence <= c->done) return COLI_BK_OK;
    const coli_bk_status status =
        coli__cuda_wait(dev, c->end[fence % COLI__CUDA_N_FENCE], limit_ns);
    if (status != COLI_BK_OK && status != COLI_BK_BUSY) return status;
    COLI__CUDA_TRY(look(dev));
    if (fence <= c->done) return COLI_BK_OK;
    if (coli__cuda_clock_ns(dev->host) - c->progress_ns < dev->host->wait_limit_ns)
        return COLI_BK_BUSY;
    return coli__cuda_hangs(dev, dev->host->wait_limit_ns);
}

/* What is left of the host's limit for a call that began then. */
static uint64_t left_ns(const coli_bk_device *dev, uint64_t begin_ns)
{
    const uint64_t gone_ns = coli__cuda_clock_ns(dev->host) - begin_ns;
    return gone_ns < dev->host->wait_limit_ns ? dev->host->wait_limit_ns - gone_ns : 0;
}

/* Queue the copy of n_bytes through the stages. */
static coli_bk_status copy_through_stages(coli_bk_device *dev, uint8_t *to, const uint8_t *from,
                                          uint64_t n_bytes, uint64_t begin_ns)
{
    coli__cuda_copies *const c = &dev->copies;
    while (n_bytes > 0) {
        const uint32_t i = c->next_stage;
        const uint64_t n = n_bytes < COLI__CUDA_STAGE_BYTES
                               ? n_bytes
                               : static_cast<uint64_t>(COLI__CUDA_STAGE_BYTES);
        uint8_t *const stage = c->stages + static_cast<size_t>(i) * COLI__CUDA_STAGE_BYTES;
        if (c->stage_used[i]) {
            const coli_bk_status status =
                coli__cuda_wait(dev, c->stage_done[i], left_ns(dev, begin_ns));
            if (status == COLI_BK_BUSY) return coli__cuda_hangs(dev, dev->host->wait_limit_ns);
            COLI__CUDA_TRY(status);
        }
        memcpy(stage, from, n);
        COLI__CUDA_TRY(
            COLI__CUDA_CALL(dev, cudaMemcpyAsync, to, stage, n, cudaMemcpyHostToDevice, c->stream));
        COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaEventRecord, c->stage_done[i], c->stream));
        c->stage_used[i] = true;
        c->next_stage = (i + 1) % COLI__CUDA_N_STAGE;
        to += n;
        from += n;
        n_bytes -= n;
    }
    return COLI_BK_OK;
}

/* The fence's number is c->issued + 1; its events are free. */
static coli_bk_status queue_copy(coli_bk_device *dev, coli_bk_tensor *t, const coli_bk_source *s,
                                 uint64_t begin_ns)
{
    coli__cuda_copies *const c = &dev->copies;
    const uint32_t i = static_cast<uint32_t>((c->issued + 1) % COLI__CUDA_N_FENCE);
    COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaEventRecord, c->begin[i], c->stream));
    if (is_pinned(dev, s))
        COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaMemcpyAsync, t->extent->at, s->data, s->n_bytes,
                                       cudaMemcpyHostToDevice, c->stream));
    else
        COLI__CUDA_TRY(copy_through_stages(
            dev, t->extent->at, static_cast<const uint8_t *>(s->data), s->n_bytes, begin_ns));
    return COLI__CUDA_CALL(dev, cudaEventRecord, c->end[i], c->stream);
}

/* Start to copy a source into a tensor of its shape.  After a failure nothing is pending. */
static coli_bk_status start_copy(coli_bk_device *dev, coli_bk_tensor *t, const coli_bk_source *s,
                                 uint64_t begin_ns, coli_bk_fence *out)
{
    coli__cuda_copies *const c = &dev->copies;
    COLI__CUDA_TRY(look(dev));
    if (c->issued - c->done == COLI__CUDA_N_FENCE) {
        const coli_bk_status status = wait_for_fence(dev, c->done + 1, left_ns(dev, begin_ns));
        if (status == COLI_BK_BUSY) return coli__cuda_hangs(dev, dev->host->wait_limit_ns);
        COLI__CUDA_TRY(status);
    }
    if (c->issued == c->done) c->progress_ns = coli__cuda_clock_ns(dev->host);
    const coli_bk_status status = queue_copy(dev, t, s, begin_ns);
    if (status != COLI_BK_OK) {
        const coli_bk_status settled = coli__cuda_settle(dev, c->stream, status);
        c->done = c->issued; // or the device is lost
        return settled;
    }
    for (uint32_t i = 0; i < s->n_matrix; i++) t->matrix[i].scale_exp = s->matrix[i].scale_exp;
    dev->counts.upload_bytes += s->n_bytes;
    *out = ++c->issued;
    return COLI_BK_OK;
}

/* The same, until it is done. */
static coli_bk_status copy_now(coli_bk_device *dev, coli_bk_tensor *t, const coli_bk_source *s)
{
    const uint64_t begin_ns = coli__cuda_clock_ns(dev->host);
    coli_bk_fence fence = 0;
    COLI__CUDA_TRY(start_copy(dev, t, s, begin_ns, &fence));
    const coli_bk_status status = wait_for_fence(dev, fence, left_ns(dev, begin_ns));
    if (status == COLI_BK_OK) return status;
    if (status == COLI_BK_BUSY) return coli__cuda_hangs(dev, dev->host->wait_limit_ns);
    return coli__cuda_settle(dev, dev->copies.stream, status);
}

coli_bk_status coli_backend_fence_poll(coli_bk_device *dev, coli_bk_fence fence,
                                       uint64_t wait_limit_ns)
{
    if (!dev) return COLI_BK_INVALID;
    COLI__CUDA_TRY(coli__cuda_enter(dev));
    if (fence == 0 || fence > dev->copies.issued)
        return coli__cuda_fail(dev->host, COLI_BK_INVALID, CUDA_NAME ": fence_poll: no fence %llu",
                               static_cast<unsigned long long>(fence));
    const uint64_t most = dev->host->wait_limit_ns;
    return wait_for_fence(dev, fence, wait_limit_ns < most ? wait_limit_ns : most);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static coli_bk_status bad_source(coli_bk_device *dev, coli_bk_status status, const char *why)
{
    return coli__cuda_fail(dev->host, status, CUDA_NAME ": source of a tensor: %s", why);
}

static coli_bk_status check_matrix(coli_bk_device *dev, const coli_bk_source *s, uint32_t i)
{
    const coli_bk_matrix *const m = &s->matrix[i];
    if (m->format >= COLI_BK_N_FORMAT)
        return bad_source(dev, COLI_BK_UNSUPPORTED, "a matrix has an unknown format");
    if (m->n_out == 0 || m->n_in == 0 || m->n_out > INT32_MAX || m->n_in > INT32_MAX)
        return bad_source(dev, COLI_BK_INVALID, "a dimension is 0 or not below 2^31");
    if (m->scale_exp < -60 || m->scale_exp > 60)
        return bad_source(dev, COLI_BK_INVALID, "a scale_exp is not within -60..60");
    if (m->offset % 64 != 0)
        return bad_source(dev, COLI_BK_INVALID, "an offset is no multiple of 64");
    if (m->offset > s->n_bytes ||
        coli_bk_matrix_bytes(m->format, m->n_out, m->n_in) > s->n_bytes - m->offset)
        return bad_source(dev, COLI_BK_INVALID, "a matrix is not inside the block");
    return COLI_BK_OK;
}

/* Check a source and copy it, as far as its struct_size reaches. */
static coli_bk_status take_source(coli_bk_device *dev, const coli_bk_source *in, coli_bk_source *s)
{
    if (!in || !COLI_BK_HAS(in, coli_bk_source, matrix))
        return bad_source(dev, COLI_BK_INVALID, in ? "its struct_size is too small" : "it is NULL");
    coli__cuda_take_struct(s, sizeof *s, in, in->struct_size);
    if (s->n_matrix != 1 && s->n_matrix != 3)
        return bad_source(dev, COLI_BK_INVALID, "n_matrix is neither 1 nor 3");
    if (!s->data || reinterpret_cast<uintptr_t>(s->data) % 64 != 0)
        return bad_source(dev, COLI_BK_INVALID, "data is NULL or not aligned to 64 bytes");
    if (s->n_bytes % 32 != 0)
        return bad_source(dev, COLI_BK_INVALID, "n_bytes is no multiple of 32");
    for (uint32_t i = 0; i < s->n_matrix; i++) COLI__CUDA_TRY(check_matrix(dev, s, i));
    if (s->n_matrix == 1) return COLI_BK_OK;
    const coli_bk_matrix *const gate = &s->matrix[0], *const up = &s->matrix[1],
                                *const down = &s->matrix[2];
    if (up->n_out != gate->n_out || up->n_in != gate->n_in || down->n_out != gate->n_in ||
        down->n_in != gate->n_out)
        return bad_source(dev, COLI_BK_INVALID, "its matrices are no gate, up and down");
    if (coli_bk_layout_of(up->format, 1).group != coli_bk_layout_of(gate->format, 1).group)
        return bad_source(dev, COLI_BK_INVALID, "gate and up have different groups");
    return COLI_BK_OK;
}

bool coli__cuda_same_shape(const coli_bk_matrix *a, const coli_bk_matrix *b, uint32_t n_matrix)
{
    for (uint32_t i = 0; i < n_matrix; i++)
        if (a[i].format != b[i].format || a[i].n_out != b[i].n_out || a[i].n_in != b[i].n_in ||
            a[i].offset != b[i].offset)
            return false;
    return true;
}

static coli_bk_tensor *new_tensor(coli_bk_device *dev, const coli_bk_source *s)
{
    coli_bk_tensor *const t =
        static_cast<coli_bk_tensor *>(coli__cuda_host_alloc(dev->host, sizeof(coli_bk_tensor)));
    if (!t) return nullptr;
    t->dev = dev;
    t->n_matrix = s->n_matrix;
    t->n_bytes = s->n_bytes;
    memcpy(t->matrix, s->matrix, sizeof t->matrix);
    t->link = &dev->copies.tensors;
    t->next = *t->link;
    if (t->next) t->next->link = &t->next;
    *t->link = t;
    return t;
}

static void delete_tensor(coli_bk_device *dev, coli_bk_tensor *t)
{
    if (t->next) t->next->link = t->link;
    *t->link = t->next;
    coli__cuda_arena_give(dev, t->extent);
    dev->host->free(dev->host->ctx, t);
}

coli_bk_status coli_backend_tensor_upload(coli_bk_device *dev, const coli_bk_source *source,
                                          coli_bk_tensor **out)
{
    if (!dev) return COLI_BK_INVALID;
    COLI__CUDA_TRY(coli__cuda_enter(dev));
    if (!out) return bad_source(dev, COLI_BK_INVALID, "out is NULL");
    coli_bk_source s;
    COLI__CUDA_TRY(take_source(dev, source, &s));
    coli_bk_tensor *const t = new_tensor(dev, &s);
    if (!t) return coli__cuda_fail(dev->host, COLI_BK_NOMEM, CUDA_NAME ": no memory on the host");
    coli_bk_status status = coli__cuda_arena_take(dev, s.n_bytes, &t->extent);
    if (status == COLI_BK_OK) status = copy_now(dev, t, &s);
    if (status != COLI_BK_OK) {
        delete_tensor(dev, t);
        return status;
    }
    *out = t;
    return COLI_BK_OK;
}

void coli_backend_tensor_free(coli_bk_device *dev, coli_bk_tensor *tensor)
{
    if (dev && tensor) delete_tensor(dev, tensor);
}

/* What both kinds of overwriting check. */
static coli_bk_status take_overwrite(coli_bk_device *dev, coli_bk_tensor *tensor,
                                     const coli_bk_source *source, coli_bk_source *s)
{
    COLI__CUDA_TRY(coli__cuda_enter(dev));
    if (!tensor || tensor->dev != dev)
        return bad_source(dev, COLI_BK_INVALID, "the tensor is not one of this device");
    COLI__CUDA_TRY(take_source(dev, source, s));
    if (s->n_matrix != tensor->n_matrix || s->n_bytes != tensor->n_bytes ||
        !coli__cuda_same_shape(s->matrix, tensor->matrix, s->n_matrix))
        return bad_source(dev, COLI_BK_INVALID, "the tensor has another shape");
    return COLI_BK_OK;
}

coli_bk_status coli_backend_tensor_overwrite(coli_bk_device *dev, coli_bk_tensor *tensor,
                                             const coli_bk_source *source)
{
    if (!dev) return COLI_BK_INVALID;
    coli_bk_source s;
    COLI__CUDA_TRY(take_overwrite(dev, tensor, source, &s));
    return copy_now(dev, tensor, &s);
}

coli_bk_status coli_backend_tensor_overwrite_async(coli_bk_device *dev, coli_bk_tensor *tensor,
                                                   const coli_bk_source *source, coli_bk_fence *out)
{
    if (!dev) return COLI_BK_INVALID;
    coli_bk_source s;
    COLI__CUDA_TRY(take_overwrite(dev, tensor, source, &s));
    if (!out) return bad_source(dev, COLI_BK_INVALID, "out is NULL");
    return start_copy(dev, tensor, &s, coli__cuda_clock_ns(dev->host), out);
}
