/* fake_copy.c - tensors: memory that is accounted against vram, copies into it, fences.
 *
 * States of a tensor (fake_device.h), and who makes each transition:
 *
 *     upload -> READY -- tensor_overwrite, tensor_overwrite_async --> COPYING
 *                 ^                                                      |
 *                 +------------- the same call, or the copier -----------+--> SPOILED (failed, torn)
 *     any -> FREED by tensor_free
 *
 * Handles of freed tensors are kept, and used again only when there are many: so a host that uses one
 * after it freed it is told, and memory does not grow. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fake_device.h"

enum { KEEP_FREED = 1024 };

/* ---- sources ------------------------------------------------------------------------------------ */

static const char *matrix_fault(const coli_bk_source *s, const coli_bk_matrix *m)
{
    if (m->format >= COLI_BK_N_FORMAT) return "a format is unknown";
    if (m->n_out == 0 || m->n_in == 0 || m->n_out > INT32_MAX || m->n_in > INT32_MAX)
        return "a matrix has no rows or columns, or 2^31 or more";
    if (m->scale_exp < -60 || m->scale_exp > 60) return "scale_exp is not within -60..60";
    if (m->offset % 64 != 0) return "an offset is not a multiple of 64";
    if (m->offset > s->n_bytes ||
        coli_bk_matrix_bytes(m->format, m->n_out, m->n_in) > s->n_bytes - m->offset)
        return "a matrix reaches beyond the block";
    return NULL;
}

/* NULL, or what is wrong. */
static const char *source_fault(const coli_bk_source *s)
{
    if (!s) return "source is NULL";
    if (!COLI_BK_HAS(s, coli_bk_source, matrix)) return "struct_size of the source is too small";
    if (s->n_matrix != 1 && s->n_matrix != 3) return "n_matrix is neither 1 nor 3";
    if (!s->data || (uintptr_t)s->data % 64 != 0) return "data is NULL or not 64-byte aligned";
    if (s->n_bytes == 0 || s->n_bytes % 32 != 0) return "n_bytes is 0 or not a multiple of 32";
    for (uint32_t i = 0; i < s->n_matrix; i++) {
        const char *fault = matrix_fault(s, &s->matrix[i]);
        if (fault) return fault;
    }
    if (s->n_matrix == 1) return NULL;
    const coli_bk_matrix *gate = &s->matrix[0], *up = &s->matrix[1], *down = &s->matrix[2];
    if (gate->n_out != up->n_out || gate->n_in != up->n_in || down->n_in != gate->n_out ||
        down->n_out != gate->n_in)
        return "the matrices are not gate (f, d), up (f, d), down (d, f)";
    if (coli_bk_layout_of(gate->format, 1).group != coli_bk_layout_of(up->format, 1).group)
        return "gate and up have different groups";
    return NULL;
}

static bool has_formats(const coli_bk_device *dev, const coli_bk_source *s)
{
    for (uint32_t i = 0; i < s->n_matrix; i++)
        if (!(dev->options.formats >> s->matrix[i].format & 1)) return false;
    return true;
}

/* A source that was checked has this very shape: all but scale_exp. */
static bool same_shape(const coli_bk_tensor *t, const coli_bk_source *s)
{
    if (t->n_matrix != s->n_matrix || t->n_bytes != s->n_bytes) return false;
    for (uint32_t i = 0; i < t->n_matrix; i++) {
        const coli_bk_matrix *a = &t->matrix[i], *b = &s->matrix[i];
        if (a->format != b->format || a->n_out != b->n_out || a->n_in != b->n_in ||
            a->offset != b->offset)
            return false;
    }
    return true;
}

/* ---- handles ------------------------------------------------------------------------------------ */

const char *fake_tensor_fault(const coli_bk_device *dev, const coli_bk_tensor *tensor)
{
    if (!tensor) return "the tensor is NULL";
    if (tensor->dev != dev) return "the tensor is another device's";
    switch (tensor->content) {
    case FAKE_FREED:
        return "the tensor was freed";
    case FAKE_COPYING:
        return "the tensor is being overwritten, and its fence is not done";
    case FAKE_SPOILED:
        return "the tensor's last overwrite failed, it may only be freed";
    case FAKE_READY:
        break;
    }
    return NULL;
}

static coli_bk_tensor *take_handle(coli_bk_device *dev)
{
    coli_bk_tensor *t = dev->first_freed;
    if (t && dev->n_freed > KEEP_FREED) {
        dev->first_freed = t->next_freed;
        if (!dev->first_freed) dev->last_freed = NULL;
        dev->n_freed--;
        return t;
    }
    t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->dev = dev;
    t->next = dev->tensors;
    dev->tensors = t;
    return t;
}

static void drop_handle(coli_bk_device *dev, coli_bk_tensor *t)
{
    t->content = FAKE_FREED;
    t->data = NULL;
    t->n_use = 0;
    t->next_freed = NULL;
    if (dev->last_freed)
        dev->last_freed->next_freed = t;
    else
        dev->first_freed = t;
    dev->last_freed = t;
    dev->n_freed++;
}

/* ---- upload and free ----------------------------------------------------------------------------- */

/* In whole pages; the largest number when that does not fit. */
static uint64_t footprint(const coli_bk_device *dev, uint64_t n_bytes)
{
    const uint64_t page = dev->options.page_bytes, n = n_bytes / page + (n_bytes % page != 0);
    uint64_t bytes;
    return __builtin_mul_overflow(n, page, &bytes) ? UINT64_MAX : bytes;
}

uint64_t coli_backend_alloc_footprint(coli_bk_device *dev, uint64_t n_bytes)
{
    const fake_fault *fault;
    return fake_enter(dev, FAKE_alloc_footprint, &fault) == COLI_BK_OK ? footprint(dev, n_bytes)
                                                                       : 0;
}

/* Memory and a handle for a source; NULL when one of the two is not to be had.  Under the mutex. */
static coli_bk_tensor *reserve(coli_bk_device *dev, const coli_bk_source *s)
{
    const uint64_t needs = footprint(dev, s->n_bytes);
    if (needs > dev->options.vram_bytes - dev->used_bytes || s->n_bytes > SIZE_MAX) return NULL;
    uint8_t *data = malloc((size_t)s->n_bytes);
    coli_bk_tensor *t = data ? take_handle(dev) : NULL;
    if (!t) {
        free(data);
        return NULL;
    }
    t->data = data;
    t->n_bytes = s->n_bytes;
    t->footprint = needs;
    t->n_matrix = s->n_matrix;
    memcpy(t->matrix, s->matrix, sizeof t->matrix);
    t->content = FAKE_COPYING;
    dev->used_bytes += needs;
    dev->n_tensor++;
    return t;
}

static void release(coli_bk_device *dev, coli_bk_tensor *t)
{
    free(t->data);
    dev->used_bytes -= t->footprint;
    dev->n_tensor--;
    drop_handle(dev, t);
}

/* On the clock, from now on; `waits`: the host does.  Under the mutex. */
static double upload_time(coli_bk_device *dev, const coli_bk_source *s, bool waits)
{
    return fake_model_upload_parts(&dev->model, s->n_bytes, dev->options.n_copy, waits);
}

coli_bk_status coli_backend_tensor_upload(coli_bk_device *dev, const coli_bk_source *source,
                                          coli_bk_tensor **out)
{
    const uint32_t entry = FAKE_tensor_upload;
    const fake_fault *fault;
    const coli_bk_status status = fake_enter(dev, entry, &fault);
    if (status != COLI_BK_OK) return status;
    const char *wrong = out ? source_fault(source) : "out is NULL";
    if (wrong) return fake_fail(dev, entry, COLI_BK_INVALID, "%s", wrong);
    if (!has_formats(dev, source))
        return fake_fail(dev, entry, COLI_BK_UNSUPPORTED,
                         "a format that this device does not have");
    if (fault) return fake_hang(dev, entry, UINT64_MAX);

    pthread_mutex_lock(&dev->mu);
    const uint64_t free_bytes = dev->options.vram_bytes - dev->used_bytes;
    coli_bk_tensor *t = reserve(dev, source);
    pthread_mutex_unlock(&dev->mu);
    if (!t)
        return fake_fail(dev, entry, COLI_BK_NOMEM, "needs %" PRIu64 " bytes, %" PRIu64 " are free",
                         footprint(dev, source->n_bytes), free_bytes);
    memcpy(t->data, source->data, (size_t)source->n_bytes);

    pthread_mutex_lock(&dev->mu);
    const bool in_time = fake_pass(dev, upload_time(dev, source, true));
    if (in_time) {
        t->content = FAKE_READY;
        dev->stats.upload_bytes += source->n_bytes;
    } else {
        release(dev, t);
    }
    pthread_mutex_unlock(&dev->mu);
    if (!in_time) return fake_fail(dev, entry, COLI_BK_LOST, "the device was lost, or is too slow");
    *out = t;
    return COLI_BK_OK;
}

/* Nothing may read or write a tensor when it is freed.  A host that keeps its promises never waits
 * here, except for work that a lost device had begun.  Under the mutex. */
static void wait_for_uses(coli_bk_device *dev, const coli_bk_tensor *t)
{
    while ((t->n_use > 0 && (dev->stage == FAKE_RUNNING || dev->n_product > 0)) ||
           (t->content == FAKE_COPYING && !dev->copier_hangs))
        pthread_cond_wait(&dev->changed, &dev->mu);
}

void coli_backend_tensor_free(coli_bk_device *dev, coli_bk_tensor *tensor)
{
    const fake_fault *fault;
    fake_enter(dev, FAKE_tensor_free, &fault); // also a lost device gives memory back
    if (!dev || !tensor) return;
    const char *wrong = NULL;
    pthread_mutex_lock(&dev->mu);
    if (tensor->dev != dev) {
        wrong = "the tensor is another device's";
    } else if (tensor->content == FAKE_FREED) {
        wrong = "the tensor was freed before";
    } else {
        if (!dev->is_lost && tensor->n_use > 0) {
            wrong = "the tensor is used by a group that was not taken";
            dev->promise_broken = true;
        } else if (!dev->is_lost && tensor->content == FAKE_COPYING) {
            wrong = "the tensor is being overwritten, and its fence is not done";
        }
        wait_for_uses(dev, tensor);
        release(dev, tensor);
    }
    pthread_mutex_unlock(&dev->mu);
    if (wrong) fake_log(dev, COLI_BK_LOG_WARNING, "tensor_free: %s", wrong);
}

/* ---- overwrites ----------------------------------------------------------------------------------- */

/* Claim a tensor for an overwrite: NULL, or what is wrong. */
static const char *begin_overwrite(coli_bk_device *dev, coli_bk_tensor *t, const coli_bk_source *s)
{
    const char *wrong = source_fault(s);
    if (wrong) return wrong;
    pthread_mutex_lock(&dev->mu);
    wrong = fake_tensor_fault(dev, t);
    if (!wrong && !same_shape(t, s)) wrong = "the source does not have the tensor's shape";
    if (!wrong && t->n_use > 0) wrong = "the tensor is used by a group that was not taken";
    if (!wrong) t->content = FAKE_COPYING;
    pthread_mutex_unlock(&dev->mu);
    return wrong;
}

/* The bytes, as far as the fault lets them; not under the mutex. */
static void copy_bytes(coli_bk_tensor *t, const coli_bk_source *s, const fake_fault *fault)
{
    const bool torn = fault && fault->n_bytes < s->n_bytes;
    memcpy(t->data, s->data, (size_t)(torn ? fault->n_bytes : s->n_bytes));
}

/* Under the mutex. */
static void end_overwrite(coli_bk_device *dev, coli_bk_tensor *t, const coli_bk_source *s,
                          bool done)
{
    memcpy(t->matrix, s->matrix, sizeof t->matrix);
    t->content = done ? FAKE_READY : FAKE_SPOILED;
    if (done) dev->stats.upload_bytes += s->n_bytes;
}

/* A call that fails on request fails half-way: what the tensor held is gone. */
static coli_bk_status spoil(coli_bk_device *dev, coli_bk_tensor *t, coli_bk_status status)
{
    if (status != COLI_BK_FAILED) return status;
    pthread_mutex_lock(&dev->mu);
    if (!fake_tensor_fault(dev, t)) t->content = FAKE_SPOILED;
    pthread_mutex_unlock(&dev->mu);
    return status;
}

coli_bk_status coli_backend_tensor_overwrite(coli_bk_device *dev, coli_bk_tensor *tensor,
                                             const coli_bk_source *source)
{
    const uint32_t entry = FAKE_tensor_overwrite;
    const fake_fault *fault;
    const coli_bk_status status = fake_enter(dev, entry, &fault);
    if (status != COLI_BK_OK) return spoil(dev, tensor, status);
    const char *wrong = begin_overwrite(dev, tensor, source);
    if (wrong) return fake_fail(dev, entry, COLI_BK_INVALID, "%s", wrong);

    const bool hangs = fault && fault->kind == FAKE_HANG, torn = fault && !hangs;
    if (!hangs) copy_bytes(tensor, source, fault);
    pthread_mutex_lock(&dev->mu);
    const bool in_time = hangs || fake_pass(dev, upload_time(dev, source, true));
    end_overwrite(dev, tensor, source, in_time && !fault);
    pthread_mutex_unlock(&dev->mu);
    if (hangs) return fake_hang(dev, entry, UINT64_MAX);
    if (!in_time) return fake_fail(dev, entry, COLI_BK_LOST, "the device was lost, or is too slow");
    if (torn)
        return fake_fail(dev, entry, COLI_BK_FAILED, "torn on request after %" PRIu64 " bytes",
                         fault->n_bytes);
    return COLI_BK_OK;
}

coli_bk_status coli_backend_tensor_overwrite_async(coli_bk_device *dev, coli_bk_tensor *tensor,
                                                   const coli_bk_source *source, coli_bk_fence *out)
{
    const uint32_t entry = FAKE_tensor_overwrite_async;
    const fake_fault *fault;
    const coli_bk_status status = fake_enter(dev, entry, &fault);
    if (status != COLI_BK_OK) return spoil(dev, tensor, status);
    if (!out) return fake_fail(dev, entry, COLI_BK_INVALID, "out is NULL");
    fake_job *job = calloc(1, sizeof *job);
    // INVALID, because nothing has happened to the tensor
    if (!job) return fake_fail(dev, entry, COLI_BK_INVALID, "no memory for a job");
    const char *wrong = begin_overwrite(dev, tensor, source);
    if (wrong) {
        free(job);
        return fake_fail(dev, entry, COLI_BK_INVALID, "%s", wrong);
    }
    job->tensor = tensor;
    memcpy(&job->source, source, sizeof job->source);
    job->fault = fault;

    pthread_mutex_lock(&dev->mu);
    job->fence = ++dev->last_fence;
    job->real_ns = upload_time(dev, source, false);
    if (dev->last_job)
        dev->last_job->next = job;
    else
        dev->first_job = job;
    dev->last_job = job;
    *out = job->fence;
    pthread_cond_broadcast(&dev->changed);
    pthread_mutex_unlock(&dev->mu);
    return COLI_BK_OK;
}

/* ---- the copier ------------------------------------------------------------------------------------- */

/* Do the first job of the queue.  Under the mutex, which it leaves meanwhile. */
static void run_job(coli_bk_device *dev, fake_job *job)
{
    bool done = false;
    dev->copy_since_ns = fake_now_ns(dev);
    if (!dev->is_lost) {
        dev->copier_copies = true;
        pthread_mutex_unlock(&dev->mu);
        copy_bytes(job->tensor, &job->source, job->fault);
        pthread_mutex_lock(&dev->mu);
        if (dev->options.is_real) {
            const uint64_t end = dev->copy_since_ns + (uint64_t)job->real_ns;
            while (!dev->stops && !dev->is_lost && fake_wait(dev, end)) {
            }
        }
        dev->copier_copies = false;
        done = !dev->is_lost && !job->fault && !job->fails;
    }
    end_overwrite(dev, job->tensor, &job->source, done);
    dev->last_done = job->fence;
    dev->first_job = job->next;
    if (!dev->first_job) dev->last_job = NULL;
    if (done) {
        free(job);
    } else {
        job->next = dev->failed_jobs;
        dev->failed_jobs = job;
    }
    pthread_cond_broadcast(&dev->changed);
}

void *fake_copier(void *device)
{
    coli_bk_device *dev = device;
    pthread_mutex_lock(&dev->mu);
    while (!dev->stops) {
        fake_job *job = dev->first_job;
        const bool hangs = job && !dev->is_lost && job->fault && job->fault->kind == FAKE_HANG;
        if (hangs && !dev->copier_hangs) {
            dev->copier_hangs = true;
            dev->copy_since_ns = fake_now_ns(dev);
            pthread_cond_broadcast(&dev->changed);
        }
        if (job && !dev->copier_hangs)
            run_job(dev, job);
        else
            pthread_cond_wait(&dev->changed, &dev->mu);
    }
    pthread_mutex_unlock(&dev->mu);
    return NULL;
}

/* Under the mutex. */
static fake_job *job_of(fake_job *first, coli_bk_fence fence)
{
    while (first && first->fence != fence) first = first->next;
    return first;
}

/* A poll that fails on request: the host takes the copy for failed, so it has to be. */
static void fail_job(coli_bk_device *dev, coli_bk_fence fence)
{
    pthread_mutex_lock(&dev->mu);
    fake_job *job = job_of(dev->first_job, fence);
    if (job) job->fails = true;
    while (job && dev->last_done < fence && !dev->copier_hangs)
        pthread_cond_wait(&dev->changed, &dev->mu);
    pthread_mutex_unlock(&dev->mu);
}

coli_bk_status coli_backend_fence_poll(coli_bk_device *dev, coli_bk_fence fence,
                                       uint64_t wait_limit_ns)
{
    const uint32_t entry = FAKE_fence_poll;
    const fake_fault *fault;
    coli_bk_status status = fake_enter(dev, entry, &fault);
    if (status == COLI_BK_FAILED) fail_job(dev, fence);
    if (status != COLI_BK_OK) return status;
    if (fault) return fake_hang(dev, entry, wait_limit_ns);

    pthread_mutex_lock(&dev->mu);
    if (fence == 0 || fence > dev->last_fence) {
        pthread_mutex_unlock(&dev->mu);
        return fake_fail(dev, entry, COLI_BK_INVALID, "there is no fence %" PRIu64, fence);
    }
    const uint64_t deadline = fake_deadline_ns(dev, wait_limit_ns);
    while (dev->last_done < fence && !dev->is_lost && fake_wait(dev, deadline)) {
    }
    const bool is_done = dev->last_done >= fence;
    if (!is_done && !dev->is_lost && dev->copier_hangs &&
        fake_now_ns(dev) - dev->copy_since_ns >= dev->host.wait_limit_ns)
        fake_lose(dev);
    if (dev->is_lost)
        status = COLI_BK_LOST;
    else if (!is_done)
        status = COLI_BK_BUSY;
    else if (job_of(dev->failed_jobs, fence))
        status = COLI_BK_FAILED;
    pthread_mutex_unlock(&dev->mu);
    if (status == COLI_BK_LOST)
        return fake_fail(dev, entry, status, "the device is lost, or hangs");
    if (status == COLI_BK_FAILED)
        return fake_fail(dev, entry, status, "the copy failed on request");
    return status;
}

/* ---- memory of the host ---------------------------------------------------------------------------- */

enum { PINNED_HEAD = 64 }; // keeps the alignment

void *coli_backend_host_alloc(coli_bk_device *dev, uint64_t n_bytes)
{
    const fake_fault *fault;
    if (fake_enter(dev, FAKE_host_alloc, &fault) != COLI_BK_OK || !dev->host.alloc) return NULL;
    fake_pinned *p = NULL;
    pthread_mutex_lock(&dev->mu);
    // bounded by `pinned`, so the sum below does not overflow
    const bool fits = n_bytes <= dev->options.pinned_bytes - dev->pinned_bytes;
    if (fits) dev->pinned_bytes += n_bytes;
    pthread_mutex_unlock(&dev->mu);
    if (fits) p = dev->host.alloc(dev->host.ctx, n_bytes + PINNED_HEAD, 64, 0);

    pthread_mutex_lock(&dev->mu);
    if (p) {
        *p = (fake_pinned){.next = dev->pinned, .n_bytes = n_bytes};
        if (p->next) p->next->previous = p;
        dev->pinned = p;
    } else if (fits) {
        dev->pinned_bytes -= n_bytes;
    }
    pthread_mutex_unlock(&dev->mu);
    return p ? (char *)p + PINNED_HEAD : NULL;
}

void coli_backend_host_free(coli_bk_device *dev, void *memory)
{
    const fake_fault *fault;
    fake_enter(dev, FAKE_host_free, &fault);
    if (!dev || !memory) return;
    fake_pinned *p = (fake_pinned *)(void *)((char *)memory - PINNED_HEAD);
    pthread_mutex_lock(&dev->mu);
    *(p->previous ? &p->previous->next : &dev->pinned) = p->next;
    if (p->next) p->next->previous = p->previous;
    dev->pinned_bytes -= p->n_bytes;
    pthread_mutex_unlock(&dev->mu);
    dev->host.free(dev->host.ctx, p);
}

/* ---- close ------------------------------------------------------------------------------------------ */

static void free_jobs(fake_job *job)
{
    while (job) {
        fake_job *next = job->next;
        free(job);
        job = next;
    }
}

void fake_copy_close(coli_bk_device *dev)
{
    free_jobs(dev->first_job);
    free_jobs(dev->failed_jobs);
    for (coli_bk_tensor *t = dev->tensors, *next; t; t = next) {
        next = t->next;
        free(t->data);
        free(t);
    }
    for (fake_pinned *p = dev->pinned, *next; p; p = next) {
        next = p->next;
        dev->host.free(dev->host.ctx, p);
    }
}
