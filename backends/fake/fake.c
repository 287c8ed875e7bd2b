/* fake.c - the plugin coli_fake: a simulated device that computes on the processor.
 *
 * Its numbers are real and right to the last bit; what it pretends is the device around them: how much
 * memory there is, what transfers and kernels would cost (fake_model.h), and everything that can go
 * wrong (fake_options.h).  So what a host does with a slow, small or failing device can be tried, and
 * measured, on any machine.  And where the contract says that the host never does something, this
 * device checks it: a host that breaks its promises gets COLI_BK_INVALID and a sentence.
 *
 * Here: devices, counting of calls, waiting.  Tensors are in fake_copy.c, groups and products in
 * fake_work.c, numbers in fake_compute.c. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coli/exact.h"
#include "fake_device.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

const coli_bk_info coli_backend_info = {
    .magic = COLI_BK_MAGIC,
    .struct_size = sizeof(coli_bk_info),
    .abi_major = COLI_BK_ABI_MAJOR,
    .abi_minor = COLI_BK_ABI_MINOR,
    .name = "fake",
    .build = COLI_VERSION ", " COMPILER,
};

/* ---- messages ---------------------------------------------------------------------------------- */

static coli_bk_status fail_text(const coli_bk_host *host, coli_bk_status status, const char *text)
{
    host->fail(host->ctx, text);
    return status;
}

coli_bk_status fake_fail(coli_bk_device *dev, uint32_t entry, coli_bk_status status,
                         const char *format, ...)
{
    char text[FAKE_MESSAGE];
    const int n = snprintf(text, sizeof text, "fake: device %" PRIu32 ": %s: ", dev->number,
                           fake_entry_name(entry));
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    va_end(args);
    return fail_text(&dev->host, status, text);
}

void fake_log(coli_bk_device *dev, int32_t level, const char *format, ...)
{
    if (!dev->host.log) return;
    char text[FAKE_MESSAGE];
    const int n = snprintf(text, sizeof text, "fake: device %" PRIu32 ": ", dev->number);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    va_end(args);
    dev->host.log(dev->host.ctx, level, text);
}

void fake_give(void *out, const void *from, uint32_t n_bytes)
{
    uint32_t theirs;
    memcpy(&theirs, out, sizeof theirs);
    const uint32_t n = theirs < n_bytes ? theirs : n_bytes;
    if (n > sizeof theirs)
        memcpy((char *)out + sizeof theirs, (const char *)from + sizeof theirs, n - sizeof theirs);
}

/* ---- calls -------------------------------------------------------------------------------------- */

/* Entries without a status, for which nobody reads host->fail. */
static bool is_silent(uint32_t entry)
{
    return entry == FAKE_tensor_free || entry == FAKE_host_alloc || entry == FAKE_host_free ||
           entry == FAKE_alloc_footprint;
}

void fake_lose(coli_bk_device *dev)
{
    dev->is_lost = true;
    pthread_cond_broadcast(&dev->changed);
    while (dev->copier_copies) pthread_cond_wait(&dev->changed, &dev->mu);
}

coli_bk_status fake_enter(coli_bk_device *dev, uint32_t entry, const fake_fault **fault)
{
    *fault = NULL;
    if (!dev) return COLI_BK_INVALID; // and no host to tell
    const fake_options *o = &dev->options;
    pthread_mutex_lock(&dev->mu);
    const uint64_t call = ++dev->calls[entry];
    if (++dev->n_call == o->lose_at) fake_lose(dev);
    const bool is_lost = dev->is_lost;
    pthread_mutex_unlock(&dev->mu);

    const fake_fault *f = fake_options_fault(o, entry, call);
    coli_bk_status status = COLI_BK_OK;
    const char *text = "";
    if (is_lost) {
        status = COLI_BK_LOST;
        text = "the device is lost";
    } else if (o->refused >> entry & 1) {
        status = COLI_BK_UNSUPPORTED;
        text = "refused on request";
    } else if (f && f->kind == FAKE_FAIL) {
        status = COLI_BK_FAILED;
        text = "fails on request";
    } else {
        *fault = f;
    }
    if (status == COLI_BK_OK || is_silent(entry)) return status;
    return fake_fail(dev, entry, status, "call %" PRIu64 ": %s", call, text);
}

/* ---- waiting -------------------------------------------------------------------------------------- */

uint64_t fake_now_ns(const coli_bk_device *dev)
{
    struct timespec t;
    clock_gettime(dev->clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t fake_deadline_ns(const coli_bk_device *dev, uint64_t limit_ns)
{
    const uint64_t century_ns = UINT64_C(3155760000000000000);
    if (limit_ns > dev->host.wait_limit_ns) limit_ns = dev->host.wait_limit_ns;
    return fake_now_ns(dev) + (limit_ns < century_ns ? limit_ns : century_ns);
}

bool fake_wait(coli_bk_device *dev, uint64_t deadline_ns)
{
    const struct timespec t = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                               .tv_nsec = (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(&dev->changed, &dev->mu, &t) != ETIMEDOUT;
}

coli_bk_status fake_hang(coli_bk_device *dev, uint32_t entry, uint64_t limit_ns)
{
    pthread_mutex_lock(&dev->mu);
    const uint64_t deadline = fake_deadline_ns(dev, limit_ns);
    while (!dev->is_lost && fake_wait(dev, deadline)) {
    }
    fake_lose(dev);
    pthread_mutex_unlock(&dev->mu);
    return fake_fail(dev, entry, COLI_BK_LOST,
                     "the device hangs on request, and the limit is over");
}

bool fake_pass(coli_bk_device *dev, double ns)
{
    if (!dev->options.is_real) return true;
    const bool in_time = ns <= (double)dev->host.wait_limit_ns;
    const uint64_t deadline = fake_deadline_ns(dev, in_time ? (uint64_t)ns : UINT64_MAX);
    while (!dev->is_lost && fake_wait(dev, deadline)) {
    }
    if (!in_time) fake_lose(dev);
    return !dev->is_lost;
}

/* ---- devices ------------------------------------------------------------------------------------- */

/* Calls of the three entries without a device, since the plugin was loaded. */
static atomic_uint_least64_t calls[FAKE_N_ENTRY];

/* As fake_enter, and read the options. */
static coli_bk_status enter_without_device(const coli_bk_host *host, uint32_t entry,
                                           uint32_t device, fake_options *o)
{
    if (!host || !COLI_BK_HAS(host, coli_bk_host, options) || !host->fail) return COLI_BK_INVALID;
    char message[FAKE_MESSAGE];
    if (!fake_options_read(host->options ? host->options : "", device, o, message))
        return fail_text(host, COLI_BK_INVALID, message);
    const uint64_t call = atomic_fetch_add(&calls[entry], 1) + 1;
    if (!fake_options_fault(o, entry, call)) return COLI_BK_OK;
    snprintf(message, sizeof message, "fake: %s: call %" PRIu64 ": fails on request",
             fake_entry_name(entry), call);
    return fail_text(host, COLI_BK_FAILED, message);
}

static coli_bk_status no_such_device(const coli_bk_host *host, uint32_t entry, uint32_t device,
                                     uint32_t n)
{
    char message[FAKE_MESSAGE];
    snprintf(message, sizeof message,
             "fake: %s: there is no device %" PRIu32 " (devices=%" PRIu32 ")",
             fake_entry_name(entry), device, n);
    return fail_text(host, COLI_BK_INVALID, message);
}

coli_bk_status coli_backend_device_count(const coli_bk_host *host, uint32_t *n)
{
    fake_options o;
    const coli_bk_status status = enter_without_device(host, FAKE_device_count, 0, &o);
    if (status != COLI_BK_OK) return status;
    if (!n) return fail_text(host, COLI_BK_INVALID, "fake: device_count: n is NULL");
    *n = o.n_device;
    return COLI_BK_OK;
}

coli_bk_status coli_backend_device_info(const coli_bk_host *host, uint32_t device,
                                        coli_bk_device_info *info)
{
    fake_options o;
    const coli_bk_status status = enter_without_device(host, FAKE_device_info, device, &o);
    if (status != COLI_BK_OK) return status;
    if (!info) return fail_text(host, COLI_BK_INVALID, "fake: device_info: info is NULL");
    if (device >= o.n_device) return no_such_device(host, FAKE_device_info, device, o.n_device);
    coli_bk_device_info i = {.kind = COLI_BK_SIMULATED,
                             .formats = o.formats,
                             .flags = o.can_join ? COLI_BK_CAN_JOIN : 0,
                             .mem_total = o.vram_bytes,
                             .driver = "coli " COLI_VERSION};
    snprintf(i.name, sizeof i.name, "simulated device %" PRIu32, device);
    snprintf(i.uuid, sizeof i.uuid, "fake-%" PRIu32, device);
    fake_give(info, &i, sizeof i);
    return COLI_BK_OK;
}

/* The condition waits on the clock that nobody sets, where the system can. */
static bool init_condition(coli_bk_device *dev)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) return false;
    dev->clock = CLOCK_MONOTONIC;
    if (pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) != 0) dev->clock = CLOCK_REALTIME;
    const bool ok = pthread_cond_init(&dev->changed, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return ok;
}

static void stop(coli_bk_device *dev, pthread_t thread)
{
    pthread_mutex_lock(&dev->mu);
    dev->stops = true;
    pthread_cond_broadcast(&dev->changed);
    pthread_mutex_unlock(&dev->mu);
    pthread_join(thread, NULL);
}

static bool start(coli_bk_device *dev)
{
    if (pthread_mutex_init(&dev->mu, NULL) != 0) return false;
    if (init_condition(dev)) {
        if (pthread_create(&dev->worker, NULL, fake_worker, dev) == 0) {
            if (pthread_create(&dev->copier, NULL, fake_copier, dev) == 0) return true;
            stop(dev, dev->worker);
        }
        pthread_cond_destroy(&dev->changed);
    }
    pthread_mutex_destroy(&dev->mu);
    return false;
}

coli_bk_status coli_backend_open(const coli_bk_host *host, uint32_t device, coli_bk_device **out)
{
    fake_options o;
    const coli_bk_status status = enter_without_device(host, FAKE_open, device, &o);
    if (status != COLI_BK_OK) return status;
    if (!out) return fail_text(host, COLI_BK_INVALID, "fake: open: out is NULL");
    if (device >= o.n_device) return no_such_device(host, FAKE_open, device, o.n_device);
    if (!coli_exact_check())
        return fail_text(
            host, COLI_BK_FAILED,
            "fake: open: the plugin was compiled so that a*b+c is rounded once, or this "
            "thread rounds otherwise than to nearest or flushes denormals");
    coli_bk_device *dev = calloc(1, sizeof *dev);
    if (!dev) return fail_text(host, COLI_BK_NOMEM, "fake: open: no memory");
    const size_t known =
        host->struct_size < sizeof dev->host ? host->struct_size : sizeof dev->host;
    memcpy(&dev->host, host, known);
    dev->number = device;
    dev->options = o;
    fake_model_init(&dev->model, o.speed);
    if (!start(dev)) {
        free(dev);
        return fail_text(host, COLI_BK_FAILED, "fake: open: cannot start a thread");
    }
    *out = dev;
    return COLI_BK_OK;
}

void coli_backend_close(coli_bk_device *dev)
{
    if (!dev) return;
    stop(dev, dev->worker);
    stop(dev, dev->copier);
    if (dev->n_tensor > 0)
        fake_log(dev, COLI_BK_LOG_WARNING, "closed with %" PRIu32 " tensors that were not freed",
                 dev->n_tensor);
    if (dev->pinned)
        fake_log(dev, COLI_BK_LOG_WARNING,
                 "closed with %" PRIu64 " bytes of host_alloc that were not freed",
                 dev->pinned_bytes);
    const fake_model *m = &dev->model;
    fake_log(dev, COLI_BK_LOG_INFO,
             "%" PRIu64 " calls; simulated clock %.3f ms (uploads %.3f, activations %.3f, kernels "
             "%.3f, results %.3f)",
             dev->n_call, m->now_ns * 1e-6, m->upload_ns * 1e-6, m->to_device_ns * 1e-6,
             m->kernel_ns * 1e-6, m->to_host_ns * 1e-6);
    fake_work_close(dev);
    fake_copy_close(dev);
    pthread_cond_destroy(&dev->changed);
    pthread_mutex_destroy(&dev->mu);
    free(dev);
}

/* ---- what it says about itself ------------------------------------------------------------------- */

coli_bk_status coli_backend_mem_info(coli_bk_device *dev, coli_bk_mem_info *out)
{
    const fake_fault *fault;
    const coli_bk_status status = fake_enter(dev, FAKE_mem_info, &fault);
    if (status != COLI_BK_OK) return status;
    if (!out) return fake_fail(dev, FAKE_mem_info, COLI_BK_INVALID, "out is NULL");
    pthread_mutex_lock(&dev->mu);
    const coli_bk_mem_info m = {.free_bytes = dev->options.vram_bytes - dev->used_bytes,
                                .total_bytes = dev->options.vram_bytes};
    pthread_mutex_unlock(&dev->mu);
    fake_give(out, &m, sizeof m);
    return COLI_BK_OK;
}

coli_bk_status coli_backend_group_stats(coli_bk_device *dev, coli_bk_group_stats *out)
{
    const fake_fault *fault;
    const coli_bk_status status = fake_enter(dev, FAKE_group_stats, &fault);
    if (status != COLI_BK_OK) return status;
    if (!out) return fake_fail(dev, FAKE_group_stats, COLI_BK_INVALID, "out is NULL");
    pthread_mutex_lock(&dev->mu);
    coli_bk_group_stats s = dev->stats;
    s.to_device_ms = dev->model.to_device_ns * 1e-6;
    s.kernel_ms = dev->model.kernel_ns * 1e-6;
    s.to_host_ms = dev->model.to_host_ns * 1e-6;
    s.upload_ms = dev->model.upload_ns * 1e-6;
    s.clock_ms = dev->model.now_ns * 1e-6;
    pthread_mutex_unlock(&dev->mu);
    fake_give(out, &s, sizeof s);
    return COLI_BK_OK;
}
