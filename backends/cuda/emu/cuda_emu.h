/* cuda_emu.h - as much of CUDA as the plugin uses, on the processor.
 *
 * The plugin's sources compile with a plain C++ compiler when this header stands in for
 * cuda_runtime.h: host code and kernels, unchanged.  So their logic runs in tests, under sanitizers
 * and without a GPU.  What is real here and what is not:
 *
 *   threads    each thread of a block is a fiber.  Barriers and warp functions switch fibers.  A
 *              barrier that some threads do not reach, or lanes that meet in different warp
 *              functions, end the process with a message.
 *   blocks     one after another, and one grid at a time in the whole process.
 *   streams    each is an operating-system thread with a queue, so a host that touches memory too
 *              early, or forgets an event, races as it would with a GPU; ThreadSanitizer sees it.
 *   memory     device memory is host memory of exactly the size asked for (AddressSanitizer sees
 *              what lies beyond), filled with 0xFF, granted in steps of 2 MiB up to a limit;
 *              page-locked memory likewise, without a limit.
 *   rules      asynchronous copies want page-locked host memory, work wants the current device to be
 *              the stream's, grids and blocks have CUDA's limits; else the call fails.
 *
 * cuda_emu_configure takes the plugin's options and injects failures; it describes them. */
#ifndef COLI_CUDA_EMU_H
#define COLI_CUDA_EMU_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <functional>

/* ---- the language ---------------------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __shared__ static // one block runs at a time
#define __launch_bounds__(n)
#define __restrict__ __restrict

struct uint2 {
    unsigned x, y;
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* Where the running fiber stands. */
struct cuda_emu_place {
    uint3 thread, block;
};
extern cuda_emu_place cuda_emu_here;

#define threadIdx (cuda_emu_here.thread)
#define blockIdx  (cuda_emu_here.block)

void __syncthreads();

/* The meeting of a warp: every lane leaves n_bytes (at most 32), and when all have come each may
 * read what lane i left, 32 * i bytes into the result, until it comes to the next meeting.
 * `what` is the same text for all of them. */
const uint8_t *cuda_emu_meet(unsigned mask, const void *mine, size_t n_bytes, const char *what);
unsigned cuda_emu_lane();

template <class T> T __shfl_xor_sync(unsigned mask, T mine, int lane_mask)
{
    T theirs;
    const uint8_t *all = cuda_emu_meet(mask, &mine, sizeof mine, "__shfl_xor_sync");
    memcpy(&theirs, all + 32 * (cuda_emu_lane() ^ static_cast<unsigned>(lane_mask)), sizeof theirs);
    return theirs;
}

inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __int_as_float(int i)
{
    float f;
    memcpy(&f, &i, sizeof f);
    return f;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
template <class T> T __ldcs(const T *p)
{
    return *p;
}

inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
    return c;
}

/* ---- the runtime ----------------------------------------------------------------------------- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchOutOfResources = 701,
};

struct cuda_emu_stream;
struct cuda_emu_event;
typedef cuda_emu_stream *cudaStream_t;
typedef cuda_emu_event *cudaEvent_t;

enum { cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0 };
enum { cudaHostAllocPortable = 1 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaDeviceAttr { cudaDevAttrComputeMode };
enum { cudaComputeModeProhibited = 2 };

struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    int major, minor, integrated;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
};

cudaError_t cudaGetLastError();
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMalloc(void **out, size_t n_bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaHostAlloc(void **out, size_t n_bytes, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cuda_emu_launch(const cudaLaunchConfig_t *config, std::function<void()> thread);

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&...args)
{
    return cuda_emu_launch(config, [=] { kernel(static_cast<P>(args)...); });
}

/* ---- settings, failures, counts -------------------------------------------------------------- */

/* Settings, separated by blanks; those not named have their defaults.  False when one is not
 * understood.  A text that differs from the one in force resets the counters of calls.
 *
 *     devices=1        how many; 0: there is no device, none: there is no driver
 *     vram=256MiB      of each, in MiB
 *     cc=9.0           compute capability
 *     jitter=0         before each operation of a stream wait up to so many microseconds
 *     fail=N           the N-th call of the runtime fails; the next works
 *     lose=N           the N-th call and all that follow fail: the device is gone
 *     hang=N           the N-th operation that is put into a stream never ends
 *
 * Releasing calls that are made to fail do release. */
bool cuda_emu_configure(const char *text);

/* For tests, found in the plugin by name. */
struct cuda_emu_counts {
    uint64_t n_alive;     // allocations, streams, events
    uint64_t n_call;      // of the runtime, since the settings changed
    uint64_t n_operation; // put into streams since then
    uint64_t n_pending;   // of them not done yet
};
extern "C" __attribute__((visibility("default"))) void cuda_emu_count(cuda_emu_counts *out);
/* Ends hung streams and frees whatever a plugin had to leave on a lost device. */
extern "C" __attribute__((visibility("default"))) void cuda_emu_clear(void);

#endif
