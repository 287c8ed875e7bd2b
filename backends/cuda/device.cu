/* device.cu - devices: what there is, opening, closing; errors and waiting.  See device.cuh. */
#include "device.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <chrono>
#include <new>
#include <thread>

const coli_bk_info coli_backend_info = {
    COLI_BK_MAGIC, sizeof(coli_bk_info),        COLI_BK_ABI_MAJOR, COLI_BK_ABI_MINOR, 0,
    CUDA_NAME,     COLI_VERSION ", " CUDA_BUILD};

enum { OLDEST_MAJOR = 7, OLDEST_MINOR = 5 }; // the oldest architecture that there is code for

/* ---- errors ---------------------------------------------------------------------------------- */

coli_bk_status coli__cuda_fail(const coli_bk_host *host, coli_bk_status status, const char *format,
                               ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    host->fail(host->ctx, text);
    return status;
}

/* Whether an error stays: then even a question about a stream that is in order fails. */
static bool stays(const coli_bk_device *dev)
{
    cudaGetLastError(); // a passing one is gone with this
    const cudaStream_t stream = dev->copies.stream ? dev->copies.stream : dev->work.stream;
    const cudaError_t again = stream ? cudaStreamQuery(stream) : cudaSuccess;
    return again != cudaSuccess && again != cudaErrorNotReady;
}

coli_bk_status coli__cuda_check(coli_bk_device *dev, cudaError_t error, const char *call)
{
    if (error == cudaSuccess) return COLI_BK_OK;
    coli_bk_status status = error == cudaErrorMemoryAllocation ? COLI_BK_NOMEM : COLI_BK_FAILED;
    if (stays(dev)) {
        status = COLI_BK_LOST;
        dev->is_lost = true;
    }
    return coli__cuda_fail(dev->host, status, CUDA_NAME ": device %d%s: %s: %s (%s)", dev->ordinal,
                           status == COLI_BK_LOST ? " is lost" : "", call,
                           cudaGetErrorString(error), cudaGetErrorName(error));
}

coli_bk_status coli__cuda_enter(coli_bk_device *dev)
{
    if (dev->is_lost)
        return coli__cuda_fail(dev->host, COLI_BK_LOST, CUDA_NAME ": device %d was lost before",
                               dev->ordinal);
    return COLI__CUDA_CALL(dev, cudaSetDevice, dev->ordinal);
}

/* ---- waiting --------------------------------------------------------------------------------- */

uint64_t coli__cuda_clock_ns(const coli_bk_host *host)
{
    if (host->clock_ns) return host->clock_ns(host->ctx);
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

/* Between two looks at the device.  Most waits are for a fraction of a millisecond that matters; a
 * long one should not keep a core busy. */
static void pause_after(uint64_t waited_ns)
{
    if (waited_ns < 200000)
        std::this_thread::yield();
    else
        std::this_thread::sleep_for(std::chrono::microseconds(waited_ns < 10000000 ? 50 : 500));
}

/* Ask until the answer is another than NotReady, or until limit_ns are over.  The clock is read before
 * the question, so a thread that was stopped for long asks once more. */
template <class Ask> static cudaError_t poll(const coli_bk_device *dev, uint64_t limit_ns, Ask ask)
{
    const uint64_t begin = coli__cuda_clock_ns(dev->host);
    for (;;) {
        const uint64_t waited_ns = coli__cuda_clock_ns(dev->host) - begin;
        const cudaError_t answer = ask();
        if (answer != cudaErrorNotReady || waited_ns >= limit_ns) return answer;
        pause_after(waited_ns);
    }
}

coli_bk_status coli__cuda_wait(coli_bk_device *dev, cudaEvent_t event, uint64_t limit_ns)
{
    const cudaError_t error = poll(dev, limit_ns, [=] { return cudaEventQuery(event); });
    if (error == cudaErrorNotReady) return COLI_BK_BUSY;
    return coli__cuda_check(dev, error, "cudaEventQuery");
}

std::atomic<uint64_t> coli__cuda_hanging;

static void give_up(coli_bk_device *dev)
{
    dev->is_lost = true;
    coli__cuda_hanging |= UINT64_C(1) << dev->ordinal;
}

coli_bk_status coli__cuda_hangs(coli_bk_device *dev, uint64_t limit_ns)
{
    give_up(dev);
    return coli__cuda_fail(dev->host, COLI_BK_LOST,
                           CUDA_NAME ": device %d is lost: no answer within %.3f s", dev->ordinal,
                           static_cast<double>(limit_ns) * 1e-9);
}

coli_bk_status coli__cuda_settle(coli_bk_device *dev, cudaStream_t stream, coli_bk_status status)
{
    if (dev->is_lost) return COLI_BK_LOST;
    const auto ask = [=] { return cudaStreamQuery(stream); };
    cudaError_t error = poll(dev, dev->host->wait_limit_ns, ask);
    if (error != cudaSuccess && error != cudaErrorNotReady) // perhaps it was only this question
        error = poll(dev, dev->host->wait_limit_ns, ask);
    if (error == cudaSuccess) return status;
    give_up(dev);
    return COLI_BK_LOST;
}

coli_bk_status coli__cuda_event(coli_bk_device *dev, cudaEvent_t *out)
{
    return COLI__CUDA_CALL(dev, cudaEventCreateWithFlags, out, cudaEventDefault);
}

void coli__cuda_count_ns(std::atomic<uint64_t> *ns, cudaEvent_t begin, cudaEvent_t end)
{
    float ms;
    if (cudaEventElapsedTime(&ms, begin, end) == cudaSuccess)
        *ns += static_cast<uint64_t>(static_cast<double>(ms) * 1e6);
    else
        cudaGetLastError();
}

/* ---- memory of the host ---------------------------------------------------------------------- */

void *coli__cuda_host_alloc(const coli_bk_host *host, uint64_t n_bytes)
{
    void *memory = host->alloc(host->ctx, n_bytes, 64, 0);
    if (memory) memset(memory, 0, n_bytes);
    return memory;
}

void coli__cuda_take_struct(void *ours, uint32_t n_ours, const void *theirs, uint32_t n_theirs)
{
    memset(ours, 0, n_ours);
    memcpy(ours, theirs, n_theirs < n_ours ? n_theirs : n_ours);
}

void coli__cuda_give_struct(void *theirs, uint32_t n_theirs, const void *ours, uint32_t n_ours)
{
    memcpy(theirs, ours, n_theirs < n_ours ? n_theirs : n_ours);
    memcpy(theirs, &n_theirs, sizeof n_theirs); // struct_size is the first member of each
}

/* ---- what devices there are ------------------------------------------------------------------ */

/* How many.  None, with a reason in `why`, is no failure, whatever the error. */
static cudaError_t count_devices(uint32_t *out, char why[256])
{
    int n = 0, driver = 0, runtime = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    *out = error == cudaSuccess ? static_cast<uint32_t>(n) : 0;
    if (*out > 0) return error;
    cudaGetLastError();
    char told[64] = "there is no driver"; // it tells 0 then
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
        snprintf(told, sizeof told, "the driver is for CUDA %d.%d", driver / 1000,
                 driver % 1000 / 10);
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
    snprintf(why, 256, CUDA_NAME ": no device: %s (%s); %s, this plugin for %d.%d",
             cudaGetErrorString(error), cudaGetErrorName(error), told, runtime / 1000,
             runtime % 1000 / 10);
    return error;
}

coli_bk_status coli_backend_device_count(const coli_bk_host *host, uint32_t *n)
{
    if (!host || !host->fail) return COLI_BK_INVALID;
    if (!n) return coli__cuda_fail(host, COLI_BK_INVALID, CUDA_NAME ": device_count: n is NULL");
    cuda_options(host->options ? host->options : "");
    char why[256];
    count_devices(n, why);
    if (*n == 0) host->fail(host->ctx, why);
    return COLI_BK_OK;
}

static void print_uuid(char out[64], const cudaUUID_t *uuid)
{
    unsigned char b[16];
    memcpy(b, uuid->bytes, sizeof b);
    snprintf(out, 64, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

static coli_bk_status describe(const coli_bk_host *host, uint32_t device, coli_bk_device_info *info)
{
    char why[256];
    uint32_t n;
    const cudaError_t counted = count_devices(&n, why);
    if (counted != cudaSuccess && counted != cudaErrorNoDevice &&
        counted != cudaErrorInsufficientDriver)
        return coli__cuda_fail(host, COLI_BK_FAILED, "%s", why);
    if (device >= n)
        return coli__cuda_fail(host, COLI_BK_INVALID, CUDA_NAME ": device %u: there are %u", device,
                               n);
    const int ordinal = static_cast<int>(device);
    cudaDeviceProp p;
    int mode = 0, driver = 0, runtime = 0;
    cudaError_t error = cudaGetDeviceProperties(&p, ordinal);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, ordinal);
    if (error == cudaSuccess) error = cudaDriverGetVersion(&driver);
    if (error == cudaSuccess) error = cudaRuntimeGetVersion(&runtime);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return coli__cuda_fail(host, COLI_BK_FAILED, CUDA_NAME ": device %u: %s (%s)", device,
                               cudaGetErrorString(error), cudaGetErrorName(error));
    }
    memset(info, 0, sizeof *info);
    info->kind = !CUDA_IS_REAL  ? COLI_BK_SIMULATED
                 : p.integrated ? COLI_BK_INTEGRATED
                                : COLI_BK_DISCRETE;
    info->formats = (1u << COLI_BK_N_FORMAT) - 1;
    info->flags = COLI_BK_CAN_JOIN;
    info->mem_total = p.totalGlobalMem;
    snprintf(info->name, sizeof info->name, "%.127s", p.name);
    snprintf(info->driver, sizeof info->driver, "CUDA driver %d.%d, runtime %d.%d, sm_%d%d",
             driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, p.major,
             p.minor);
    print_uuid(info->uuid, &p.uuid);
    if (p.major < OLDEST_MAJOR || (p.major == OLDEST_MAJOR && p.minor < OLDEST_MINOR))
        snprintf(info->unusable, sizeof info->unusable,
                 "compute capability %d.%d, needs at least %d.%d", p.major, p.minor, OLDEST_MAJOR,
                 OLDEST_MINOR);
    else if (mode == cudaComputeModeProhibited)
        snprintf(info->unusable, sizeof info->unusable, "its compute mode is \"prohibited\"");
    else if (device >= COLI__CUDA_MAX_DEVICES)
        snprintf(info->unusable, sizeof info->unusable, "only the first %d devices are used",
                 COLI__CUDA_MAX_DEVICES);
    else if (coli__cuda_hanging >> device & 1)
        snprintf(info->unusable, sizeof info->unusable, "it stopped answering in this process");
    return COLI_BK_OK;
}

coli_bk_status coli_backend_device_info(const coli_bk_host *host, uint32_t device,
                                        coli_bk_device_info *info)
{
    if (!host || !host->fail) return COLI_BK_INVALID;
    if (!info || !COLI_BK_HAS(info, coli_bk_device_info, unusable))
        return coli__cuda_fail(host, COLI_BK_INVALID, CUDA_NAME ": device_info: info is %s",
                               info ? "too small" : "NULL");
    cuda_options(host->options ? host->options : "");
    coli_bk_device_info ours;
    COLI__CUDA_TRY(describe(host, device, &ours));
    coli__cuda_give_struct(info, info->struct_size, &ours, sizeof ours);
    return COLI_BK_OK;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* Queue the probe, with zeros there and the answer back through `staging`. */
static coli_bk_status queue_probe(coli_bk_device *dev, uint8_t *on_device, uint8_t *staging)
{
    const cudaStream_t stream = dev->work.stream;
    memset(staging, 0, COLI__CUDA_PROBE_BYTES);
    COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaMemcpyAsync, on_device, staging, COLI__CUDA_PROBE_BYTES,
                                   cudaMemcpyHostToDevice, stream));
    COLI__CUDA_TRY(
        coli__cuda_check(dev, coli__cuda_probe(on_device, stream), "starting the kernels"));
    COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaMemcpyAsync, staging, on_device, sizeof(uint32_t),
                                   cudaMemcpyDeviceToHost, stream));
    return COLI__CUDA_CALL(dev, cudaEventRecord, dev->work.product.end, stream);
}

/* Loads our code onto the device, and refuses one that does not round as it has to. */
static coli_bk_status probe(coli_bk_device *dev)
{
    uint8_t *const staging = dev->copies.stages;
    coli__cuda_extent *extent;
    COLI__CUDA_TRY(coli__cuda_arena_take(dev, COLI__CUDA_PROBE_BYTES, &extent));
    coli_bk_status status = queue_probe(dev, extent->at, staging);
    if (status == COLI_BK_OK)
        status = coli__cuda_wait(dev, dev->work.product.end, dev->host->wait_limit_ns);
    if (status == COLI_BK_BUSY) status = coli__cuda_hangs(dev, dev->host->wait_limit_ns);
    if (status != COLI_BK_OK) status = coli__cuda_settle(dev, dev->work.stream, status);
    coli__cuda_arena_give(dev, extent);
    uint32_t answer;
    memcpy(&answer, staging, sizeof answer);
    if (status == COLI_BK_OK && answer != 1)
        status = coli__cuda_fail(dev->host, COLI_BK_FAILED,
                                 CUDA_NAME ": device %d does not round each operation once",
                                 dev->ordinal);
    return status;
}

/* How much of the device's memory is taken at once: a power of two, 2 to 64 MiB. */
static uint64_t chunk_bytes(uint64_t mem_total)
{
    uint64_t chunk = 2 << 20;
    while (chunk < 64 << 20 && chunk * 64 < mem_total) chunk *= 2;
    return chunk;
}

static coli_bk_status check_host(const coli_bk_host *host)
{
    if (!host || !COLI_BK_HAS(host, coli_bk_host, options) || !host->fail) return COLI_BK_INVALID;
    if (!host->alloc || !host->free)
        return coli__cuda_fail(host, COLI_BK_INVALID,
                               CUDA_NAME ": open: the host has no alloc or free");
    const char *const options = host->options ? host->options : "";
    if (!cuda_options(options))
        return coli__cuda_fail(host, COLI_BK_INVALID,
                               CUDA_NAME ": open: option \"%s\" is not known", options);
    return COLI_BK_OK;
}

coli_bk_status coli_backend_open(const coli_bk_host *host, uint32_t device, coli_bk_device **out)
{
    COLI__CUDA_TRY(check_host(host));
    if (!out) return coli__cuda_fail(host, COLI_BK_INVALID, CUDA_NAME ": open: out is NULL");
    coli_bk_device_info info;
    COLI__CUDA_TRY(describe(host, device, &info));
    if (*info.unusable)
        return coli__cuda_fail(host, COLI_BK_FAILED, CUDA_NAME ": device %u cannot be used: %s",
                               device, info.unusable);
    void *const memory = coli__cuda_host_alloc(host, sizeof(coli_bk_device));
    if (!memory)
        return coli__cuda_fail(host, COLI_BK_NOMEM, CUDA_NAME ": open: no memory on the host");
    coli_bk_device *const dev = new (memory) coli_bk_device();
    dev->host = host;
    dev->ordinal = static_cast<int>(device);
    dev->arena.chunk_bytes = chunk_bytes(info.mem_total);
    coli_bk_status status = coli__cuda_enter(dev);
    if (status == COLI_BK_OK) status = coli__cuda_copies_init(dev);
    if (status == COLI_BK_OK) status = coli__cuda_work_init(dev);
    if (status == COLI_BK_OK) status = probe(dev);
    if (status != COLI_BK_OK) {
        coli_backend_close(dev);
        return status;
    }
    *out = dev;
    return COLI_BK_OK;
}

void coli_backend_close(coli_bk_device *dev)
{
    if (!dev) return;
    const coli_bk_host *const host = dev->host;
    if (!dev->is_lost) {
        cudaSetDevice(dev->ordinal);
        if (dev->copies.stream) coli__cuda_settle(dev, dev->copies.stream, COLI_BK_OK);
        if (dev->work.stream) coli__cuda_settle(dev, dev->work.stream, COLI_BK_OK);
    }
    coli__cuda_work_finish(dev);
    coli__cuda_copies_finish(dev);
    coli__cuda_arena_finish(dev);
    dev->~coli_bk_device();
    host->free(host->ctx, dev);
}

/* ---- figures --------------------------------------------------------------------------------- */

coli_bk_status coli_backend_mem_info(coli_bk_device *dev, coli_bk_mem_info *out)
{
    if (!dev) return COLI_BK_INVALID;
    if (!out || !COLI_BK_HAS(out, coli_bk_mem_info, total_bytes))
        return coli__cuda_fail(dev->host, COLI_BK_INVALID, CUDA_NAME ": mem_info: out is %s",
                               out ? "too small" : "NULL");
    COLI__CUDA_TRY(coli__cuda_enter(dev));
    size_t free_bytes, total_bytes;
    COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaMemGetInfo, &free_bytes, &total_bytes));
    coli_bk_mem_info ours = {};
    ours.total_bytes = total_bytes;
    ours.free_bytes = free_bytes + dev->arena.free_bytes;
    if (ours.free_bytes > total_bytes) ours.free_bytes = total_bytes; // two looks, not one
    coli__cuda_give_struct(out, out->struct_size, &ours, sizeof ours);
    return COLI_BK_OK;
}

static double to_ms(const std::atomic<uint64_t> &ns)
{
    return static_cast<double>(ns.load()) * 1e-6;
}

coli_bk_status coli_backend_group_stats(coli_bk_device *dev, coli_bk_group_stats *out)
{
    if (!dev) return COLI_BK_INVALID;
    if (!out || !COLI_BK_HAS(out, coli_bk_group_stats, upload_ms))
        return coli__cuda_fail(dev->host, COLI_BK_INVALID, CUDA_NAME ": group_stats: out is %s",
                               out ? "too small" : "NULL");
    const coli__cuda_counts *const c = &dev->counts;
    coli_bk_group_stats ours = {};
    ours.n_group = c->n_group;
    ours.n_expert = c->n_expert;
    ours.n_row = c->n_row;
    ours.n_matmul = c->n_matmul;
    ours.upload_bytes = c->upload_bytes;
    ours.to_device_ms = to_ms(c->to_device_ns);
    ours.kernel_ms = to_ms(c->kernel_ns);
    ours.to_host_ms = to_ms(c->to_host_ns);
    ours.upload_ms = to_ms(c->upload_ns);
    coli__cuda_give_struct(out, out->struct_size, &ours, sizeof ours);
    return COLI_BK_OK;
}
