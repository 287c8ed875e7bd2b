/* device.c - see device.h.
 *
 * A call is a job on a lane.  Its arguments and results lie in memory that nobody frees or writes while
 * the job may run: in the device for the copy lane, in the group or the products for the work lane.
 * A job that exceeds the limit makes the device lost, and what a lost device was given stays as it
 * is.
 *
 * Locks: `copy_mu` is held by the one who uses the copy lane, while he waits; `mu` only for moments. */
#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "../base/alloc.h"
#include "../base/lane.h"
#include "selftest.h"

enum { FAILURES_MAX = 3 }; // in a row

typedef enum counter {
#define COUNTER_ENUM(name) COUNT_##name,
    COLI__DEVICE_COUNTERS(COUNTER_ENUM)
#undef COUNTER_ENUM
        N_COUNTER
} counter;

/* A job of the copy lane. */
typedef struct copy_job {
    coli_bk_source source;
    coli_bk_tensor *tensor;
    bool in_place; // an overwrite kept the tensor
    coli_bk_mem_info memory;
    coli_bk_group_stats stats;
    uint64_t n_bytes;
    void *host_memory;
    coli_bk_status status;
} copy_job;

struct coli__device {
    /* immutable after open */
    coli__plugin *plugin;
    uint32_t ordinal;
    coli_bk_device_info info;
    coli__backend_api api;
    coli__host host;
    char *options;
    uint64_t wait_ns, guard_ns; // a plugin's own limit; ours for a whole job
    coli_bk_device *handle;
    coli__lane *work, *copy;

    /* any thread */
    atomic_bool lost, hangs;
    atomic_uint n_failed[2]; // jobs in a row, by lane
    atomic_uint absent;      // optional entries that said UNSUPPORTED: bits of `entry`
    _Atomic uint64_t counts[N_COUNTER];

    pthread_mutex_t copy_mu;
    copy_job job;              // guarded by copy_mu, and left alone once the device is lost
    coli_bk_group_stats stats; // the last that came; guarded by copy_mu

    pthread_mutex_t mu; // of the rest
    char why[640];
    coli_status error; // the last failure, whatever the call
    char error_text[600];
};

enum entry { OVERWRITE = 1, OVERWRITE_ASYNC = 2, BATCH = 4, MATMUL = 8 };

void (*coli__device_hook)(coli__backend_api *api);

/* -- failure ----------------------------------------------------------------------------------- */

static void count(coli__device *dev, counter c)
{
    atomic_fetch_add_explicit(&dev->counts[c], 1, memory_order_relaxed);
}

static void give_up(coli__device *dev, const char *reason)
{
    pthread_mutex_lock(&dev->mu);
    if (!dev->why[0]) snprintf(dev->why, sizeof dev->why, "device %u: %s", dev->ordinal, reason);
    atomic_store(&dev->lost, true);
    pthread_mutex_unlock(&dev->mu);
}

/* A call has exceeded the limit: it may still run, so nothing it touches can be freed. */
static void give_up_hanging(coli__device *dev, const char *entry)
{
    if (atomic_exchange(&dev->hangs, true)) return; // somebody else has found out
    char reason[128];
    snprintf(reason, sizeof reason, "backend %s: %s: no answer within %.1f s",
             dev->plugin->info.name, entry, (double)dev->guard_ns * 1e-9);
    count(dev, COUNT_n_call_late);
    give_up(dev, reason);
}

/* Keep the text of a call that failed, count it, and see whether the device is lost. */
static coli_bk_status judge(coli__device *dev, const char *entry, coli_bk_status status)
{
    if (status == COLI_BK_OK) return status;
    count(dev, COUNT_n_call_failed);
    const coli_status error = coli__backend_fail(dev->plugin, &dev->host, entry, status);
    pthread_mutex_lock(&dev->mu);
    dev->error = error;
    snprintf(dev->error_text, sizeof dev->error_text, "%s", coli_error_message());
    pthread_mutex_unlock(&dev->mu);
    if (status == COLI_BK_LOST) give_up(dev, coli_error_message());
    return status;
}

/* What the plugin should have said about a call that failed without a word. */
static void complain(coli__device *dev, const char *text)
{
    dev->host.table.fail(dev->host.table.ctx, text);
}

enum { WORK, COPY }; // lanes

/* A job has ended.  Too many failures in a row are the end. */
static void job_ends(coli__device *dev, int lane, bool good)
{
    if (good)
        atomic_store(&dev->n_failed[lane], 0);
    else if (atomic_fetch_add(&dev->n_failed[lane], 1) + 1 >= FAILURES_MAX) {
        pthread_mutex_lock(&dev->mu);
        char text[sizeof dev->error_text];
        memcpy(text, dev->error_text, sizeof text);
        pthread_mutex_unlock(&dev->mu);
        give_up(dev, text);
    }
}

static bool is_absent(const coli__device *dev, unsigned entry)
{
    return atomic_load_explicit(&dev->absent, memory_order_relaxed) & entry;
}

/* An optional entry's status: UNSUPPORTED takes it away for good. */
static coli_bk_status judge_optional(coli__device *dev, unsigned entry, const char *name,
                                     coli_bk_status status)
{
    if (status != COLI_BK_UNSUPPORTED) return judge(dev, name, status);
    atomic_fetch_or(&dev->absent, entry);
    return status;
}

/* The failure of a call that was judged. */
static coli_status as_error(coli__device *dev, coli_bk_status status)
{
    if (status == COLI_BK_OK) return COLI_OK;
    pthread_mutex_lock(&dev->mu);
    const coli_status error =
        coli__fail(dev->error == COLI_OK ? COLI_E_IO : dev->error, "%s", dev->error_text);
    pthread_mutex_unlock(&dev->mu);
    return error;
}

/* -- the copy lane ----------------------------------------------------------------------------- */

/* Take the copy lane and its job; false, with a message, when the device is lost: a call that hangs
 * may still use what is in the job. */
static bool copy_begin(coli__device *dev)
{
    pthread_mutex_lock(&dev->copy_mu);
    if (!atomic_load(&dev->lost)) return true;
    pthread_mutex_unlock(&dev->copy_mu);
    coli__fail(COLI_E_IO, "%s", coli__device_why(dev));
    return false;
}

static void copy_end(coli__device *dev)
{
    pthread_mutex_unlock(&dev->copy_mu);
}

/* Run the job, between the two above. */
static coli_status on_copy_lane(coli__device *dev, const char *entry, void (*job)(void *))
{
    coli__lane_start(dev->copy, job, dev);
    if (coli__lane_wait(dev->copy, dev->guard_ns)) return COLI_OK;
    give_up_hanging(dev, entry);
    return coli__fail(COLI_E_IO, "%s", coli__device_why(dev));
}

static void job_open(void *ctx)
{
    coli__device *dev = ctx;
    dev->info.struct_size = sizeof dev->info;
    dev->job.status = dev->api.device_info(&dev->host.table, dev->ordinal, &dev->info);
    if (dev->job.status == COLI_BK_OK)
        dev->job.status = dev->api.open(&dev->host.table, dev->ordinal, &dev->handle);
    if (dev->job.status == COLI_BK_OK && !dev->handle) dev->job.status = COLI_BK_FAILED;
}

static void job_close(void *ctx)
{
    coli__device *dev = ctx;
    dev->api.close(dev->handle);
    dev->handle = NULL;
}

static void job_memory(void *ctx)
{
    coli__device *dev = ctx;
    dev->job.memory = (coli_bk_mem_info){.struct_size = sizeof dev->job.memory};
    dev->job.status = judge(dev, "mem_info", dev->api.mem_info(dev->handle, &dev->job.memory));
}

static void job_footprint(void *ctx)
{
    coli__device *dev = ctx;
    dev->job.n_bytes = dev->api.alloc_footprint(dev->handle, dev->job.n_bytes);
}

static void upload(coli__device *dev)
{
    copy_job *j = &dev->job;
    j->tensor = NULL;
    j->status =
        judge(dev, "tensor_upload", dev->api.tensor_upload(dev->handle, &j->source, &j->tensor));
    if (j->status == COLI_BK_OK && !j->tensor) {
        complain(dev, "no tensor came back");
        j->status = judge(dev, "tensor_upload", COLI_BK_FAILED);
    }
    if (j->status != COLI_BK_OK) j->tensor = NULL;
    count(dev, j->status == COLI_BK_OK ? COUNT_n_upload : COUNT_n_upload_failed);
    if (j->status != COLI_BK_NOMEM) job_ends(dev, COPY, j->status == COLI_BK_OK);
}

static void job_upload(void *ctx)
{
    upload(ctx);
}

static void job_free(void *ctx)
{
    coli__device *dev = ctx;
    dev->api.tensor_free(dev->handle, dev->job.tensor);
}

/* In the background, and wait for it.  Once the plugin has accepted, only a free may follow a failure. */
static coli_bk_status overwrite_async(coli__device *dev, bool *accepted)
{
    copy_job *j = &dev->job;
    coli_bk_fence fence = 0;
    const coli_bk_status status =
        judge_optional(dev, OVERWRITE_ASYNC, "tensor_overwrite_async",
                       dev->api.tensor_overwrite_async(dev->handle, j->tensor, &j->source, &fence));
    if (status != COLI_BK_OK) return status;
    *accepted = true;
    const coli_bk_status done = dev->api.fence_poll(dev->handle, fence, dev->wait_ns);
    if (done == COLI_BK_UNSUPPORTED) atomic_fetch_or(&dev->absent, OVERWRITE_ASYNC);
    return judge(dev, "fence_poll", done == COLI_BK_BUSY ? COLI_BK_LOST : done);
}

static void job_overwrite(void *ctx)
{
    coli__device *dev = ctx;
    copy_job *j = &dev->job;
    j->status = COLI_BK_UNSUPPORTED;
    bool accepted = false;
    if (dev->api.tensor_overwrite_async && !is_absent(dev, OVERWRITE_ASYNC))
        j->status = overwrite_async(dev, &accepted);
    const bool failed = !accepted && j->status != COLI_BK_OK && j->status != COLI_BK_UNSUPPORTED;
    if (!accepted && !failed) {
        count(dev, COUNT_n_copy_sync);
        if (dev->api.tensor_overwrite && !is_absent(dev, OVERWRITE))
            j->status =
                judge_optional(dev, OVERWRITE, "tensor_overwrite",
                               dev->api.tensor_overwrite(dev->handle, j->tensor, &j->source));
    }
    j->in_place = j->status == COLI_BK_OK;
    if (j->in_place) {
        count(dev, accepted ? COUNT_n_overwrite_async : COUNT_n_overwrite);
        job_ends(dev, COPY, true);
        return;
    }
    if (atomic_load(&dev->lost)) return;
    count(dev, COUNT_n_overwrite_fallback);
    dev->api.tensor_free(dev->handle, j->tensor);
    upload(dev);
}

static void job_host_alloc(void *ctx)
{
    coli__device *dev = ctx;
    dev->job.host_memory = dev->api.host_alloc(dev->handle, dev->job.n_bytes);
}

static void job_host_free(void *ctx)
{
    coli__device *dev = ctx;
    dev->api.host_free(dev->handle, dev->job.host_memory);
}

/* -- open and close ---------------------------------------------------------------------------- */

static void set_guard(coli__device *dev, uint64_t wait_limit_ns)
{
    // a job makes a few calls, each with its own limit, and works in between
    dev->wait_ns = wait_limit_ns;
    dev->guard_ns =
        wait_limit_ns > UINT64_MAX / 8 ? UINT64_MAX / 2 : 4 * wait_limit_ns + 1000000000u;
}

static coli_status open_device(coli__device *dev, uint32_t self_test_formats)
{
    COLI_TRY(coli__lane_create("coli-copy", &dev->copy));
    COLI_TRY(coli__lane_create("coli-device", &dev->work));
    if (coli__device_hook) coli__device_hook(&dev->api);
    coli__plugin_keep(dev->plugin); // before a call that may hang in it
    if (!copy_begin(dev)) return COLI_E_IO;
    coli_status status = on_copy_lane(dev, "open", job_open);
    if (status == COLI_OK)
        status = coli__backend_fail(dev->plugin, &dev->host, "open", dev->job.status);
    copy_end(dev);
    COLI_TRY(status);
    coli__plugin_text(dev->info.name, sizeof dev->info.name);
    coli__plugin_text(dev->info.driver, sizeof dev->info.driver);
    coli__plugin_text(dev->info.uuid, sizeof dev->info.uuid);
    status = coli__device_self_test(dev, self_test_formats & dev->info.formats);
    if (status == COLI_E_IO && coli__device_alive(dev)) // a call failed: perhaps not again
        status = coli__device_self_test(dev, self_test_formats & dev->info.formats);
    COLI_TRY(status);
    for (int i = 0; i < N_COUNTER; i++) atomic_store(&dev->counts[i], 0);
    return COLI_OK;
}

coli_status coli__device_open(coli__plugin *plugin, uint32_t ordinal, const char *options,
                              uint64_t wait_limit_ns, uint32_t self_test_formats,
                              coli__device **out, bool *hangs)
{
    *out = NULL;
    *hangs = false;
    coli__device *dev = coli__calloc(1, sizeof *dev);
    if (!dev) return COLI_E_NOMEM;
    dev->plugin = plugin;
    dev->api = plugin->api;
    dev->ordinal = ordinal;
    set_guard(dev, wait_limit_ns);
    pthread_mutex_init(&dev->copy_mu, NULL);
    pthread_mutex_init(&dev->mu, NULL);
    options = options ? options : "";
    dev->options = coli__strndup(options, strlen(options));
    coli_status status =
        dev->options ? coli__host_init(&dev->host, dev->options, wait_limit_ns) : COLI_E_NOMEM;
    if (status == COLI_OK) status = open_device(dev, self_test_formats);
    if (status != COLI_OK) {
        *hangs = !coli__device_close(dev);
        return status;
    }
    *out = dev;
    return COLI_OK;
}

static bool is_idle(coli__lane *lane)
{
    return !lane || coli__lane_wait(lane, 0);
}

bool coli__device_close(coli__device *dev)
{
    if (!dev) return true;
    // also of a device that hung and has come back: its threads must end before anything is freed
    if (!is_idle(dev->work) || !is_idle(dev->copy)) return false;
    if (dev->handle) {
        coli__lane_start(dev->copy, job_close, dev);
        if (!coli__lane_wait(dev->copy, dev->guard_ns)) return false;
    }
    coli__lane_destroy(dev->work);
    coli__lane_destroy(dev->copy);
    coli__host_finish(&dev->host);
    coli__free(dev->options);
    pthread_mutex_destroy(&dev->copy_mu);
    pthread_mutex_destroy(&dev->mu);
    coli__free(dev);
    return true;
}

bool coli__device_alive(const coli__device *dev)
{
    return !atomic_load_explicit(&dev->lost, memory_order_acquire);
}

const char *coli__device_why(const coli__device *dev)
{
    return coli__device_alive(dev) ? "" : dev->why; // written once, before `lost`
}

const coli_bk_device_info *coli__device_info(const coli__device *dev)
{
    return &dev->info;
}

const coli__plugin *coli__device_plugin(const coli__device *dev)
{
    return dev->plugin;
}

uint32_t coli__device_ordinal(const coli__device *dev)
{
    return dev->ordinal;
}

void coli__device_counts_get(const coli__device *dev, coli__device_counts *out)
{
#define COUNT_GET(name) out->name = atomic_load(&dev->counts[COUNT_##name]);
    COLI__DEVICE_COUNTERS(COUNT_GET)
#undef COUNT_GET
}

bool coli__device_hangs(const coli__device *dev)
{
    return atomic_load(&dev->hangs);
}

static void job_group_stats(void *ctx)
{
    coli__device *dev = ctx;
    dev->job.stats = (coli_bk_group_stats){.struct_size = sizeof dev->job.stats};
    dev->job.status = dev->api.group_stats(dev->handle, &dev->job.stats);
    if (dev->job.status == COLI_BK_LOST) judge(dev, "group_stats", dev->job.status);
}

void coli__device_group_stats(coli__device *dev, coli_bk_group_stats *out)
{
    *out = (coli_bk_group_stats){.struct_size = sizeof *out};
    if (!dev->api.group_stats || !coli__device_alive(dev)) return;
    if (pthread_mutex_trylock(&dev->copy_mu) != 0) return; // a copy runs: nobody waits for it here
    if (coli__device_alive(dev) && on_copy_lane(dev, "group_stats", job_group_stats) == COLI_OK &&
        dev->job.status == COLI_BK_OK)
        dev->stats = dev->job.stats;
    *out = dev->stats;
    copy_end(dev);
}

/* -- tensors ----------------------------------------------------------------------------------- */

coli_status coli__device_memory(coli__device *dev, coli_bk_mem_info *out)
{
    *out = (coli_bk_mem_info){.struct_size = sizeof *out};
    if (!copy_begin(dev)) return COLI_E_IO;
    coli_status status = on_copy_lane(dev, "mem_info", job_memory);
    if (status == COLI_OK) status = as_error(dev, dev->job.status);
    if (status == COLI_OK) *out = dev->job.memory;
    copy_end(dev);
    if (out->free_bytes > out->total_bytes) out->free_bytes = out->total_bytes; // absurd
    return status;
}

uint64_t coli__device_footprint(coli__device *dev, uint64_t n_bytes)
{
    uint64_t footprint = 0;
    if (dev->api.alloc_footprint && copy_begin(dev)) {
        dev->job.n_bytes = n_bytes;
        if (on_copy_lane(dev, "alloc_footprint", job_footprint) == COLI_OK)
            footprint = dev->job.n_bytes;
        copy_end(dev);
    }
    if (footprint >= n_bytes) return footprint;
    count(dev, COUNT_n_footprint_fallback);
    return n_bytes;
}

coli_status coli__device_upload(coli__device *dev, const coli_bk_source *source,
                                coli_bk_tensor **out)
{
    *out = NULL;
    if (!copy_begin(dev)) return COLI_E_IO;
    dev->job.source = *source;
    coli_status status = on_copy_lane(dev, "tensor_upload", job_upload);
    if (status == COLI_OK) status = as_error(dev, dev->job.status);
    if (status == COLI_OK) *out = dev->job.tensor;
    copy_end(dev);
    return status;
}

void coli__device_free(coli__device *dev, coli_bk_tensor *tensor)
{
    if (!tensor || !copy_begin(dev)) return; // a lost device's tensors go with it
    dev->job.tensor = tensor;
    on_copy_lane(dev, "tensor_free", job_free);
    copy_end(dev);
}

coli_status coli__device_overwrite(coli__device *dev, coli_bk_tensor **tensor,
                                   const coli_bk_source *source, bool *in_place)
{
    coli_bk_tensor *const old = *tensor;
    *tensor = NULL;
    *in_place = false;
    if (!copy_begin(dev)) return COLI_E_IO;
    dev->job.source = *source;
    dev->job.tensor = old;
    coli_status status = on_copy_lane(dev, "tensor_overwrite", job_overwrite);
    if (status == COLI_OK) status = as_error(dev, dev->job.status);
    if (status == COLI_OK) {
        *tensor = dev->job.tensor;
        *in_place = dev->job.in_place;
    }
    copy_end(dev);
    if (status != COLI_OK) count(dev, COUNT_n_slot_lost);
    return status;
}

/* -- host memory that a device reads ----------------------------------------------------------- */

typedef struct buffer {
    void *data;
    bool is_pinned; // the plugin's
} buffer;

static void buffer_give(coli__device *dev, buffer *b)
{
    if (!b->data) return;
    if (!b->is_pinned) {
        coli__free_aligned(b->data);
    } else if (copy_begin(dev)) { // of a lost device it goes with close
        dev->job.host_memory = b->data;
        on_copy_lane(dev, "host_free", job_host_free);
        copy_end(dev);
    }
    *b = (buffer){0};
}

static coli_status buffer_take(coli__device *dev, uint64_t n_bytes, buffer *out)
{
    *out = (buffer){0};
    if (dev->api.host_alloc && dev->api.host_free && copy_begin(dev)) {
        dev->job.n_bytes = n_bytes;
        if (on_copy_lane(dev, "host_alloc", job_host_alloc) == COLI_OK)
            *out = (buffer){dev->job.host_memory, true};
        copy_end(dev);
        if (out->data && ((uintptr_t)out->data & 63) == 0) {
            memset(out->data, 0, n_bytes);
            return COLI_OK;
        }
        buffer_give(dev, out); // not aligned as promised
    }
    count(dev, COUNT_n_pageable);
    *out = (buffer){coli__alloc64((size_t)n_bytes), false};
    return out->data ? COLI_OK : COLI_E_NOMEM;
}

/* Rows of activations that a device reads. */
typedef struct rows {
    buffer q, d;
    uint32_t group, n_group;
} rows;

static coli_status rows_take(coli__device *dev, uint32_t max_row, size_t max_row_bytes, rows *r)
{
    COLI_TRY(buffer_take(dev, (uint64_t)max_row * max_row_bytes, &r->q));
    return buffer_take(dev, max_row * (max_row_bytes / 32) * sizeof(float), &r->d);
}

static void rows_give(coli__device *dev, rows *r)
{
    buffer_give(dev, &r->q);
    buffer_give(dev, &r->d);
}

static void rows_copy(rows *r, const coli__qrows *x, uint32_t first, uint32_t n)
{
    const size_t width = x->n_group;
    r->group = x->group;
    r->n_group = x->n_group;
    memcpy(r->q.data, x->q + first * width * x->group, n * width * x->group);
    memcpy(r->d.data, x->d + first * width, n * width * sizeof(float));
}

static void rows_gather(rows *r, const coli__qrows *x, const uint32_t *index, uint32_t n)
{
    const size_t width = x->n_group, n_byte = width * x->group;
    r->group = x->group;
    r->n_group = x->n_group;
    int8_t *q = r->q.data;
    float *d = r->d.data;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(q + i * n_byte, x->q + index[i] * n_byte, n_byte);
        memcpy(d + i * width, x->d + index[i] * width, width * sizeof(float));
    }
}

/* -- groups ------------------------------------------------------------------------------------ */

enum { PENDING, DONE, FAILED };
enum { MAX_LD = 1 << 24 }; // floats between rows of a result: no model is that wide

struct coli__group {
    coli__device *dev;
    coli__group_limits limits;
    rows x;
    coli_bk_tensor **experts; // (max_expert)
    uint32_t *n_row;          // (max_expert)
    uint32_t *row;            // (max_pair)
    coli_bk_join *joins;      // (max_x)
    uint32_t *term_pair;      // (max_x * n_used)
    float *term_weight;       // (max_x * n_used)
    uint32_t n_pair;
    coli_bk_group args;
    coli_bk_result result; // readable once outcome is DONE
    atomic_int outcome;
    coli__group *then;  // started in the same job
    float *kept_y;      // (max_pair, d_model), of a group that keeps its result
    uint8_t *kept_flag; // (max_pair)
};

coli_status coli__group_create(coli__device *dev, const coli__group_limits *limits,
                               coli__group **out)
{
    *out = NULL;
    coli__group *g = coli__calloc(1, sizeof *g);
    if (!g) return COLI_E_NOMEM;
    g->dev = dev;
    g->limits = *limits;
    const size_t n_term = (size_t)limits->max_x * limits->n_used;
    g->experts = coli__calloc(limits->max_expert, sizeof *g->experts);
    g->n_row = coli__calloc(limits->max_expert, sizeof *g->n_row);
    g->row = coli__calloc(limits->max_pair, sizeof *g->row);
    g->joins = coli__calloc(limits->max_x, sizeof *g->joins);
    g->term_pair = coli__calloc(n_term, sizeof *g->term_pair);
    g->term_weight = coli__calloc(n_term, sizeof *g->term_weight);
    if (limits->keeps) {
        g->kept_y = coli__alloc64((size_t)limits->max_pair * limits->d_model * sizeof(float));
        g->kept_flag = coli__calloc(limits->max_pair, 1);
    }
    coli_status status = g->experts && g->n_row && g->row && g->joins && g->term_pair &&
                                 g->term_weight && (!limits->keeps || (g->kept_y && g->kept_flag))
                             ? COLI_OK
                             : COLI_E_NOMEM;
    if (status == COLI_OK) status = rows_take(dev, limits->max_x, limits->max_row_bytes, &g->x);
    if (status != COLI_OK) {
        coli__group_destroy(g);
        return status;
    }
    *out = g;
    return COLI_OK;
}

void coli__group_destroy(coli__group *g)
{
    if (!g || atomic_load(&g->dev->hangs)) return; // a call may still read it
    rows_give(g->dev, &g->x);
    coli__free(g->experts);
    coli__free(g->n_row);
    coli__free(g->row);
    coli__free(g->joins);
    coli__free(g->term_pair);
    coli__free(g->term_weight);
    coli__free_aligned(g->kept_y);
    coli__free(g->kept_flag);
    coli__free(g);
}

static void begin(coli__group *g, uint32_t n_x)
{
    g->n_pair = 0;
    g->args = (coli_bk_group){.struct_size = sizeof g->args,
                              .experts = g->experts,
                              .n_row = g->n_row,
                              .row = g->row,
                              .n_x = n_x,
                              .group = g->x.group,
                              .n_group = g->x.n_group,
                              .q = g->x.q.data,
                              .d = g->x.d.data,
                              .joins = g->joins,
                              .term_pair = g->term_pair,
                              .term_weight = g->term_weight};
}

void coli__group_begin(coli__group *g, const coli__qrows *x, uint32_t n_x)
{
    rows_copy(&g->x, x, 0, n_x);
    begin(g, n_x);
}

void coli__group_begin_some(coli__group *g, const coli__qrows *x, const uint32_t *index, uint32_t n)
{
    rows_gather(&g->x, x, index, n);
    begin(g, n);
}

void coli__group_add(coli__group *g, coli_bk_tensor *expert, uint32_t n_row, const uint32_t *row)
{
    g->experts[g->args.n_expert] = expert;
    g->n_row[g->args.n_expert++] = n_row;
    memcpy(g->row + g->n_pair, row, n_row * sizeof *row);
    g->n_pair += n_row;
}

bool coli__group_can_join(const coli__group *g)
{
    return g->dev->info.flags & COLI_BK_CAN_JOIN && g->dev->plugin->info.abi_minor >= 1;
}

void coli__group_join(coli__group *g, const uint32_t *pairs, const float *weights)
{
    const uint32_t n = g->limits.n_used;
    g->joins[g->args.n_join++] = (coli_bk_join){g->args.n_term, n};
    memcpy(g->term_pair + g->args.n_term, pairs, n * sizeof *pairs);
    memcpy(g->term_weight + g->args.n_term, weights, n * sizeof *weights);
    g->args.n_term += n;
}

/* The rows, out of the device's memory. */
static void keep_result(coli__group *g)
{
    const size_t d = g->limits.d_model;
    for (uint32_t i = 0; i < g->result.n_row; i++)
        memcpy(g->kept_y + i * d, g->result.y + i * g->result.ld, d * sizeof(float));
    memcpy(g->kept_flag, g->result.flag, g->result.n_row);
    g->result.y = g->kept_y;
    g->result.flag = g->kept_flag;
    g->result.ld = d;
}

static bool run_group(coli__group *g)
{
    coli__device *dev = g->dev;
    coli_bk_status status = judge(dev, "group_issue", dev->api.group_issue(dev->handle, &g->args));
    if (status == COLI_BK_OK) {
        g->result = (coli_bk_result){.struct_size = sizeof g->result};
        status = dev->api.group_take(dev->handle, dev->wait_ns, &g->result);
        const uint32_t n_row = g->n_pair - g->args.n_term + g->args.n_join;
        if (status == COLI_BK_OK && (g->result.n_row != n_row || !g->result.y || !g->result.flag ||
                                     g->result.ld < g->limits.d_model || g->result.ld > MAX_LD)) {
            complain(dev, "the result has other rows than were asked for");
            status = COLI_BK_FAILED;
        }
        status = judge(dev, "group_take", status);
    }
    if (status == COLI_BK_OK) count(dev, COUNT_n_group);
    job_ends(dev, WORK, status == COLI_BK_OK);
    return status == COLI_BK_OK;
}

static void job_group(void *ctx)
{
    for (coli__group *g = ctx; g; g = g->then) {
        const bool good = coli__device_alive(g->dev) && run_group(g);
        if (good && g->limits.keeps) keep_result(g);
        int pending = PENDING;
        atomic_compare_exchange_strong(&g->outcome, &pending, good ? DONE : FAILED);
    }
}

void coli__group_start(coli__group *g, coli__group *then)
{
    const bool alive = coli__device_alive(g->dev);
    g->then = then;
    atomic_store(&g->outcome, alive ? PENDING : FAILED);
    if (then) {
        then->then = NULL;
        atomic_store(&then->outcome, alive ? PENDING : FAILED);
    }
    if (alive) coli__lane_start(g->dev->work, job_group, g);
}

/* The lane is idle afterwards, too: its next job may begin at once. */
const coli_bk_result *coli__group_wait(coli__group *g)
{
    if (atomic_load(&g->dev->hangs) || !coli__lane_wait(g->dev->work, g->dev->guard_ns)) {
        int pending = PENDING;
        if (atomic_compare_exchange_strong(&g->outcome, &pending, FAILED))
            give_up_hanging(g->dev, "group_take");
    }
    return atomic_load(&g->outcome) == DONE ? &g->result : NULL;
}

/* -- products ---------------------------------------------------------------------------------- */

struct coli__products {
    coli__device *dev;
    uint32_t max_row;
    size_t max_y;
    rows x;
    buffer y;
    coli_bk_matmul args[COLI__MAX_PRODUCT];
    uint32_t n;
    coli_bk_status status;
};

coli_status coli__products_create(coli__device *dev, uint32_t max_row, size_t max_row_bytes,
                                  size_t max_y, coli__products **out)
{
    *out = NULL;
    coli__products *p = coli__calloc(1, sizeof *p);
    if (!p) return COLI_E_NOMEM;
    p->dev = dev;
    p->max_row = max_row;
    p->max_y = max_y;
    coli_status status = rows_take(dev, max_row, max_row_bytes, &p->x);
    if (status == COLI_OK) status = buffer_take(dev, max_y * sizeof(float), &p->y);
    if (status != COLI_OK) {
        coli__products_destroy(p);
        return status;
    }
    *out = p;
    return COLI_OK;
}

void coli__products_destroy(coli__products *p)
{
    if (!p || atomic_load(&p->dev->hangs)) return; // a call may still write it
    rows_give(p->dev, &p->x);
    buffer_give(p->dev, &p->y);
    coli__free(p);
}

bool coli__device_multiplies(const coli__device *dev)
{
    return coli__device_alive(dev) && dev->api.matmul && !is_absent(dev, MATMUL);
}

static void job_products(void *ctx)
{
    coli__products *p = ctx;
    coli__device *dev = p->dev;
    p->status = COLI_BK_UNSUPPORTED;
    if (p->n > 1 && dev->api.matmul_batch && !is_absent(dev, BATCH)) {
        const coli_bk_matmul *args[COLI__MAX_PRODUCT];
        for (uint32_t i = 0; i < p->n; i++) args[i] = &p->args[i];
        p->status = judge_optional(dev, BATCH, "matmul_batch",
                                   dev->api.matmul_batch(dev->handle, args, p->n));
    }
    if (p->status == COLI_BK_UNSUPPORTED) {
        if (p->n > 1) count(dev, COUNT_n_batch_fallback);
        p->status = COLI_BK_OK;
        for (uint32_t i = 0; i < p->n && p->status == COLI_BK_OK; i++)
            p->status =
                judge_optional(dev, MATMUL, "matmul", dev->api.matmul(dev->handle, &p->args[i]));
    }
    if (p->status != COLI_BK_UNSUPPORTED) job_ends(dev, WORK, p->status == COLI_BK_OK);
    if (p->status == COLI_BK_OK) atomic_fetch_add(&dev->counts[COUNT_n_matmul], p->n);
}

/* One block of rows. */
static bool products_block(coli__products *p, const coli__qrows *x, uint32_t first, uint32_t n_row,
                           const coli__product *product, uint32_t n)
{
    rows_copy(&p->x, x, first, n_row);
    float *y = p->y.data;
    for (uint32_t i = 0; i < n; y += (size_t)n_row * product[i].n_out, i++)
        p->args[i] = (coli_bk_matmul){.struct_size = sizeof p->args[i],
                                      .n_row = n_row,
                                      .w = product[i].w,
                                      .group = p->x.group,
                                      .n_group = p->x.n_group,
                                      .q = p->x.q.data,
                                      .d = p->x.d.data,
                                      .y = y,
                                      .ld = product[i].n_out};
    p->n = n;
    p->status = COLI_BK_FAILED;
    coli__lane_start(p->dev->work, job_products, p);
    if (!coli__lane_wait(p->dev->work, p->dev->guard_ns)) {
        give_up_hanging(p->dev, "matmul");
        return false;
    }
    if (p->status != COLI_BK_OK) return false;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < n_row; t++)
            memcpy(product[i].y + t * product[i].ld, p->args[i].y + (size_t)t * product[i].n_out,
                   product[i].n_out * sizeof(float));
    return true;
}

bool coli__products_run(coli__products *p, const coli__qrows *x, uint32_t first, uint32_t n_row,
                        const coli__product *product, uint32_t n)
{
    size_t row_y = 0;
    for (uint32_t i = 0; i < n; i++) row_y += product[i].n_out;
    uint32_t step = p->max_y / row_y < p->max_row ? (uint32_t)(p->max_y / row_y) : p->max_row;
    coli__product at[COLI__MAX_PRODUCT];
    memcpy(at, product, n * sizeof *at);
    for (uint32_t done = 0, m; done < n_row; done += m) {
        m = n_row - done < step ? n_row - done : step;
        if (!coli__device_multiplies(p->dev) || !products_block(p, x, first + done, m, at, n))
            return false;
        for (uint32_t i = 0; i < n; i++) at[i].y += m * at[i].ld;
    }
    return true;
}
