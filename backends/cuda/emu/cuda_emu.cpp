/* cuda_emu.cpp - see cuda_emu.h.
 *
 * Fibers.  A block's threads are fibers that the stream's thread runs in turn.  One that has to wait
 * names a counter and the value that it saw, and hands over to the next one that can go on; whoever
 * comes last to a meeting raises its counter, and everybody can go on.
 *
 *     __syncthreads    one counter for the block
 *     warp functions   one for each warp, with room for 32 bytes from every lane.  The room is there
 *                      twice: a lane may already leave its part of the next meeting while others still
 *                      read this one, but not of the one after, because for that all must have come
 *
 * Switching is a few lines of assembler, which takes nanoseconds where swapcontext makes a system call:
 * a model's token switches hundreds of thousands of times.  Sanitizers are told of every switch.  For
 * ThreadSanitizer a fiber is a thread of its own, and only meetings order them: it reports a barrier
 * that is missing. */
#include "cuda_emu.h"

#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__
#endif
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define NOT_WATCHED __attribute__((no_sanitize_thread))
#else
#define NOT_WATCHED
#endif

[[noreturn]] static void die(const char *text, const char *detail)
{
    fprintf(stderr, "cuda_emu: %s%s\n", text, detail);
    abort();
}

/* ---- fibers ---------------------------------------------------------------------------------- */

/* Push the registers that a function must keep, leave the stack pointer in *from, and do the reverse with
 * the stack `to`. */
extern "C" void cuda_emu_switch(void ***from, void **to) __attribute__((visibility("hidden")));

#if defined(__x86_64__)
enum { SAVED_RETURN = 6, SAVED_WORDS = 8 }; // the last for the caller that fiber_main has not
__asm__(".text\n"
        ".hidden cuda_emu_switch\n"
        ".globl cuda_emu_switch\n"
        ".type cuda_emu_switch, @function\n"
        "cuda_emu_switch:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size cuda_emu_switch, .-cuda_emu_switch\n");
#elif defined(__aarch64__)
enum { SAVED_RETURN = 11, SAVED_WORDS = 20 };
__asm__(".text\n"
        ".hidden cuda_emu_switch\n"
        ".globl cuda_emu_switch\n"
        ".type cuda_emu_switch, %function\n"
        "cuda_emu_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size cuda_emu_switch, .-cuda_emu_switch\n");
#else
#error "cuda_emu: no switch of stacks for this processor"
#endif

cuda_emu_place cuda_emu_here; // guarded by grid_mu

enum { STACK_BYTES = 64 << 10, WARP = 32, LANE_BYTES = 32 };

struct fiber {
    void **sp; // of its stack, while it does not run
    bool is_done;
    const unsigned *waits_for; // NULL: it can go on; else once this differs from `seen`
    unsigned seen;
    uint3 thread;
    std::unique_ptr<char[]> stack;
#if defined(__SANITIZE_ADDRESS__)
    void *fake_stack;
    const void *bottom;
    size_t n_bytes;
#endif
#if defined(__SANITIZE_THREAD__)
    void *tsan;
#endif
};

struct warp {
    unsigned n_come, round;
    const char *what;
    alignas(16) uint8_t left[2][WARP][LANE_BYTES];
};

/* The block that runs, and all fibers. */
struct running {
    fiber outside; // the thread itself
#if defined(__SANITIZE_ADDRESS__)
    fiber *previous; // that ran before this one
#endif
    std::vector<std::unique_ptr<fiber>> owned;
    std::vector<fiber *> list;
    std::vector<warp> warp_list;
    fiber **fibers; // the same for those who must not call a vector
    warp *warps;
    unsigned n, current, n_done;
    unsigned n_come, round; // of the barrier
    const std::function<void()> *body;

    ~running()
    {
#if defined(__SANITIZE_THREAD__)
        for (auto &f : owned) __tsan_destroy_fiber(f->tsan);
#endif
    }
};
static running here; // guarded by grid_mu
static std::mutex grid_mu;

NOT_WATCHED static void switch_fiber(fiber *from, fiber *to)
{
#if defined(__SANITIZE_ADDRESS__)
    here.previous = from;
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->n_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);
#endif
    cuda_emu_switch(&from->sp, to->sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->fake_stack, &here.previous->bottom,
                                    &here.previous->n_bytes);
#endif
}

NOT_WATCHED static void resume_next()
{
    fiber *const me = here.fibers[here.current];
    for (unsigned i = 0, at = here.current; i < here.n; i++) {
        at = at + 1 == here.n ? 0 : at + 1;
        fiber *const f = here.fibers[at];
        if (f->is_done || (f->waits_for && *f->waits_for == f->seen)) continue;
        here.current = at;
        cuda_emu_here.thread = f->thread;
        if (f != me) switch_fiber(me, f);
        return;
    }
    die("a barrier or warp function is not reached by all threads", "");
}

NOT_WATCHED static void wait_for(const unsigned *round, unsigned seen)
{
    fiber *const me = here.fibers[here.current];
    me->waits_for = round;
    me->seen = seen;
    resume_next();
    me->waits_for = nullptr;
}

static void sync_release(const void *at)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_release(const_cast<void *>(at));
#else
    (void)at;
#endif
}

static void sync_acquire(const void *at)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(const_cast<void *>(at));
#else
    (void)at;
#endif
}

NOT_WATCHED void __syncthreads()
{
    sync_release(&here.round);
    const unsigned round = here.round;
    if (++here.n_come == here.n) {
        here.n_come = 0;
        here.round++;
    } else {
        wait_for(&here.round, round);
    }
    sync_acquire(&here.round);
}

NOT_WATCHED unsigned cuda_emu_lane()
{
    return here.current % WARP;
}

NOT_WATCHED const uint8_t *cuda_emu_meet(unsigned mask, const void *mine, size_t n_bytes,
                                         const char *what)
{
    warp *const w = &here.warps[here.current / WARP];
    if (mask != 0xFFFFFFFFu || here.n % WARP != 0) die(what, ": only for whole warps");
    if (w->n_come == 0) w->what = what;
    if (w->what != what) die("the lanes of a warp meet in different functions: ", what);
    const unsigned round = w->round;
    uint8_t(*const left)[LANE_BYTES] = w->left[round % 2];
    for (size_t i = 0; i < n_bytes; i++)
        left[cuda_emu_lane()][i] = static_cast<const uint8_t *>(mine)[i];
    sync_release(&w->round);
    if (++w->n_come == WARP) {
        w->n_come = 0;
        w->round++;
    } else {
        wait_for(&w->round, round);
    }
    sync_acquire(&w->round);
    return left[0];
}

/* What a fiber does: the body once for each block. */
NOT_WATCHED static void fiber_main()
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &here.previous->bottom, &here.previous->n_bytes);
#endif
    for (;;) {
        fiber *const me = here.fibers[here.current];
        sync_acquire(&here.n);
        (*here.body)();
        sync_release(&here.n);
        me->is_done = true;
        if (++here.n_done < here.n)
            resume_next();
        else
            switch_fiber(me, &here.outside);
    }
}

static fiber *make_fiber()
{
    here.owned.push_back(std::make_unique<fiber>());
    fiber *const f = here.owned.back().get();
    f->stack.reset(new char[STACK_BYTES]);
    // As if it had called the switch at the beginning of fiber_main.
    const uintptr_t top =
        reinterpret_cast<uintptr_t>(f->stack.get() + STACK_BYTES) & ~uintptr_t(15);
    f->sp = reinterpret_cast<void **>(top) - SAVED_WORDS;
    memset(f->sp, 0, SAVED_WORDS * sizeof *f->sp);
    f->sp[SAVED_RETURN] = reinterpret_cast<void *>(fiber_main);
#if defined(__SANITIZE_ADDRESS__)
    f->bottom = f->stack.get();
    f->n_bytes = STACK_BYTES;
#endif
#if defined(__SANITIZE_THREAD__)
    f->tsan = __tsan_create_fiber(0);
#endif
    return f;
}

/* Run every block of a grid. */
static void run_grid(dim3 grid, dim3 block, const std::function<void()> &body)
{
    const unsigned n = block.x * block.y * block.z;
    const std::lock_guard<std::mutex> lock(grid_mu);
    while (here.owned.size() < n) make_fiber();
    here.list.clear();
    for (unsigned i = 0; i < n; i++) {
        here.list.push_back(here.owned[i].get());
        here.list[i]->thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    }
    here.warp_list.assign((n + WARP - 1) / WARP, warp());
    here.fibers = here.list.data();
    here.warps = here.warp_list.data();
    here.n = n;
    here.n_come = 0;
    here.body = &body;
#if defined(__SANITIZE_THREAD__)
    here.outside.tsan = __tsan_get_current_fiber();
#endif
    for (uint64_t i = 0; i < static_cast<uint64_t>(grid.x) * grid.y * grid.z; i++) {
        cuda_emu_here.block = {static_cast<unsigned>(i % grid.x),
                               static_cast<unsigned>(i / grid.x % grid.y),
                               static_cast<unsigned>(i / grid.x / grid.y)};
        for (unsigned t = 0; t < n; t++) {
            here.fibers[t]->is_done = false;
            here.fibers[t]->waits_for = nullptr;
        }
        here.n_done = 0;
        here.current = 0;
        cuda_emu_here.thread = here.fibers[0]->thread;
        sync_release(&here.n);
        switch_fiber(&here.outside, here.fibers[0]);
        sync_acquire(&here.n);
    }
}

/* ---- the machine ----------------------------------------------------------------------------- */

struct cuda_emu_event {
    int device;
    std::mutex mu;
    uint64_t n_recorded = 0, n_done = 0;
    std::chrono::steady_clock::time_point when;
};

struct cuda_emu_stream {
    int device;
    std::mutex mu;
    std::condition_variable changed;
    std::deque<std::function<void()>> queue;
    bool is_busy = false, is_closing = false, is_hung = false, is_cleared = false;
    std::thread worker;
};

struct allocation {
    size_t n_bytes, n_granted;
    int device;
};

struct settings {
    unsigned n_device = 1, major = 9, minor = 0, jitter_us = 0;
    bool has_driver = true;
    uint64_t vram_bytes = 256u << 20, fail = 0, lose = 0, hang = 0;
};

static struct machine {
    std::mutex mu;
    std::string text = "not configured";
    settings set;
    uint64_t n_call = 0, n_operation = 0;
    std::map<int, size_t> used; // bytes of each device
    std::map<const uint8_t *, allocation> memory, pinned;
    std::set<cudaStream_t> streams;
    std::set<cudaEvent_t> events;
} machine;

static thread_local int current_device;
static thread_local cudaError_t last_error;

enum { STEP = 2 << 20 }; // what device memory is granted in

typedef std::lock_guard<std::mutex> locked;

static cudaError_t failed(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

/* Count a call, and say whether it is to fail: with `error`, or because the device is gone. */
static cudaError_t called(cudaError_t error = cudaErrorLaunchOutOfResources)
{
    const locked lock(machine.mu);
    machine.n_call++;
    if (machine.set.lose && machine.n_call >= machine.set.lose)
        return failed(cudaErrorIllegalAddress);
    return failed(machine.n_call == machine.set.fail ? error : cudaSuccess);
}

#define CALLED(...)                                                                                \
    do {                                                                                           \
        const cudaError_t injected_ = called(__VA_ARGS__);                                         \
        if (injected_ != cudaSuccess) return injected_;                                            \
    } while (0)

/* Whether n_bytes from p on lie in one of these. */
static bool is_inside(const std::map<const uint8_t *, allocation> &all, const void *p, size_t n)
{
    const uint8_t *const at = static_cast<const uint8_t *>(p);
    const locked lock(machine.mu);
    auto next = all.upper_bound(at);
    if (next == all.begin()) return false;
    --next;
    const size_t offset = static_cast<size_t>(at - next->first);
    return offset <= next->second.n_bytes && n <= next->second.n_bytes - offset;
}

bool cuda_emu_configure(const char *text)
{
    settings s;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        char rest[16] = "";
        unsigned long long n = 0;
        if (sscanf(word.c_str(), "cc=%u.%u%1s", &s.major, &s.minor, rest) == 2) continue;
        if (word == "devices=none") {
            s.has_driver = false;
            continue;
        }
        const size_t equals = word.find('=');
        if (equals == std::string::npos ||
            sscanf(word.c_str() + equals + 1, "%llu%15s", &n, rest) < 1)
            return false;
        const std::string name = word.substr(0, equals);
        if (name == "vram" && !strcmp(rest, "MiB"))
            s.vram_bytes = n << 20;
        else if (*rest)
            return false;
        else if (name == "devices")
            s.n_device = static_cast<unsigned>(n);
        else if (name == "jitter")
            s.jitter_us = static_cast<unsigned>(n);
        else if (name == "fail")
            s.fail = n;
        else if (name == "lose")
            s.lose = n;
        else if (name == "hang")
            s.hang = n;
        else
            return false;
    }
    const locked lock(machine.mu);
    if (machine.text == text) return true;
    machine.text = text;
    machine.set = s;
    machine.n_call = machine.n_operation = 0;
    return true;
}

void cuda_emu_count(cuda_emu_counts *out)
{
    const locked lock(machine.mu);
    out->n_alive = machine.memory.size() + machine.pinned.size() + machine.streams.size() +
                   machine.events.size();
    out->n_call = machine.n_call;
    out->n_operation = machine.n_operation;
    out->n_pending = 0;
    for (cudaStream_t s : machine.streams) {
        const locked stream(s->mu);
        out->n_pending += s->queue.size() + s->is_busy;
    }
}

/* ---- errors and devices ---------------------------------------------------------------------- */

cudaError_t cudaGetLastError()
{
    const locked lock(machine.mu);
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
        return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
        return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
        return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    case cudaErrorLaunchOutOfResources:
        return "cudaErrorLaunchOutOfResources";
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorInsufficientDriver ? "CUDA driver version is insufficient"
           : error == cudaErrorNoDevice         ? "no CUDA-capable device is detected"
                                                : "an emulated failure";
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return called();
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return called();
}

cudaError_t cudaGetDeviceCount(int *n)
{
    CALLED();
    *n = static_cast<int>(machine.set.n_device);
    return failed(!machine.set.has_driver     ? cudaErrorInsufficientDriver
                  : machine.set.n_device == 0 ? cudaErrorNoDevice
                                              : cudaSuccess);
}

static bool is_device(int device)
{
    return device >= 0 && static_cast<unsigned>(device) < machine.set.n_device;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    CALLED();
    if (!is_device(device)) return failed(cudaErrorInvalidDevice);
    *p = cudaDeviceProp();
    snprintf(p->name, sizeof p->name, "CUDA on the processor");
    memset(p->uuid.bytes, 0xE0 + device, sizeof p->uuid.bytes);
    p->totalGlobalMem = machine.set.vram_bytes;
    p->major = static_cast<int>(machine.set.major);
    p->minor = static_cast<int>(machine.set.minor);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int device)
{
    CALLED();
    *value = 0;
    return failed(is_device(device) ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaSetDevice(int device)
{
    CALLED();
    if (!is_device(device)) return failed(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

/* ---- memory ---------------------------------------------------------------------------------- */

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    CALLED();
    const locked lock(machine.mu);
    *total_bytes = machine.set.vram_bytes;
    *free_bytes = *total_bytes - machine.used[current_device];
    return cudaSuccess;
}

static void *take(size_t n_bytes)
{
    return ::operator new(n_bytes, std::align_val_t(256), std::nothrow);
}

static void give(const uint8_t *memory)
{
    ::operator delete(const_cast<uint8_t *>(memory), std::align_val_t(256));
}

cudaError_t cudaMalloc(void **out, size_t n_bytes)
{
    CALLED(cudaErrorMemoryAllocation);
    const locked lock(machine.mu);
    const size_t n_granted = (n_bytes + STEP - 1) / STEP * STEP;
    size_t &used = machine.used[current_device];
    if (n_granted < n_bytes || n_granted > machine.set.vram_bytes - used || !(*out = take(n_bytes)))
        return failed(cudaErrorMemoryAllocation);
    memset(*out, 0xFF, n_bytes);
    used += n_granted;
    machine.memory[static_cast<uint8_t *>(*out)] = {n_bytes, n_granted, current_device};
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t n_bytes, unsigned)
{
    CALLED(cudaErrorMemoryAllocation);
    const locked lock(machine.mu);
    if (!(*out = take(n_bytes))) return failed(cudaErrorMemoryAllocation);
    memset(*out, 0xFF, n_bytes);
    machine.pinned[static_cast<uint8_t *>(*out)] = {n_bytes, 0, current_device};
    return cudaSuccess;
}

/* Releasing memory waits for the whole device. */
static void wait_for_device(int device)
{
    std::vector<cudaStream_t> streams;
    {
        const locked lock(machine.mu);
        for (cudaStream_t s : machine.streams)
            if (s->device == device) streams.push_back(s);
    }
    for (cudaStream_t s : streams) {
        std::unique_lock<std::mutex> lock(s->mu);
        s->changed.wait(lock, [s] { return s->is_hung || (s->queue.empty() && !s->is_busy); });
        if (s->is_hung)
            die("memory is released on a device that hangs:", " the call never returns");
    }
}

static cudaError_t release(std::map<const uint8_t *, allocation> &all, void *memory)
{
    const cudaError_t error = called();
    if (!memory || error == cudaErrorIllegalAddress) return error;
    wait_for_device(current_device);
    const locked lock(machine.mu);
    const auto found = all.find(static_cast<uint8_t *>(memory));
    if (found == all.end()) return failed(cudaErrorInvalidValue);
    machine.used[found->second.device] -= found->second.n_granted;
    give(found->first);
    all.erase(found);
    return error;
}

cudaError_t cudaFree(void *memory)
{
    return release(machine.memory, memory);
}

cudaError_t cudaFreeHost(void *memory)
{
    return release(machine.pinned, memory);
}

/* ---- streams and events ---------------------------------------------------------------------- */

static void stream_main(cudaStream_t s, unsigned jitter_us)
{
    uint32_t random = 1;
    std::unique_lock<std::mutex> lock(s->mu);
    for (;;) {
        s->changed.wait(lock, [s] { return s->is_closing || !s->queue.empty(); });
        if (s->queue.empty()) return;
        const std::function<void()> operation = std::move(s->queue.front());
        s->queue.pop_front();
        s->is_busy = true;
        lock.unlock();
        random = random * 1664525u + 1013904223u;
        if (jitter_us)
            std::this_thread::sleep_for(std::chrono::microseconds((random >> 8) % jitter_us));
        operation();
        lock.lock();
        s->is_busy = false;
        s->changed.notify_all();
    }
}

/* Into the queue, unless the stream is another device's. */
static cudaError_t put(cudaStream_t s, std::function<void()> operation)
{
    bool hangs;
    {
        const locked lock(machine.mu);
        if (!machine.streams.count(s) || s->device != current_device)
            return failed(cudaErrorInvalidResourceHandle);
        hangs = ++machine.n_operation == machine.set.hang;
    }
    const locked lock(s->mu);
    if (hangs) {
        s->is_hung = true;
        s->queue.push_back([s] {
            std::unique_lock<std::mutex> hung(s->mu);
            s->changed.wait(hung, [s] { return s->is_cleared; });
        });
    }
    s->queue.push_back(std::move(operation));
    s->changed.notify_all();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned)
{
    CALLED();
    cudaStream_t s = new cuda_emu_stream;
    s->device = current_device;
    const locked lock(machine.mu);
    s->worker = std::thread(stream_main, s, machine.set.jitter_us);
    machine.streams.insert(s);
    *out = s;
    return cudaSuccess;
}

static void end_stream(cudaStream_t s)
{
    {
        const locked lock(s->mu);
        s->is_closing = true;
        s->changed.notify_all();
    }
    s->worker.join();
    {
        const locked lock(machine.mu);
        machine.streams.erase(s);
    }
    delete s;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    const cudaError_t error = called();
    if (error != cudaErrorIllegalAddress) end_stream(s);
    return error;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    CALLED();
    const locked lock(s->mu);
    return s->queue.empty() && !s->is_busy ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    CALLED();
    *out = new cuda_emu_event;
    (*out)->device = current_device;
    const locked lock(machine.mu);
    machine.events.insert(*out);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    const cudaError_t error = called();
    if (error == cudaErrorIllegalAddress) return error;
    const locked lock(machine.mu);
    machine.events.erase(event);
    delete event;
    return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CALLED();
    {
        const locked lock(event->mu);
        event->n_recorded++;
    }
    return put(stream, [event] {
        const locked lock(event->mu);
        event->n_done++;
        event->when = std::chrono::steady_clock::now();
    });
}

static bool is_done(cudaEvent_t event)
{
    const locked lock(event->mu);
    return event->n_done == event->n_recorded;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    CALLED();
    return is_done(event) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    CALLED();
    if (!is_done(begin) || !is_done(end)) return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(end->when - begin->when).count();
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    CALLED();
    const bool is_up = kind == cudaMemcpyHostToDevice;
    if (!is_inside(is_up ? machine.memory : machine.pinned, to, n_bytes) ||
        !is_inside(is_up ? machine.pinned : machine.memory, from, n_bytes))
        return failed(cudaErrorInvalidValue);
    return put(stream, [=] { memcpy(to, from, n_bytes); });
}

cudaError_t cuda_emu_launch(const cudaLaunchConfig_t *config, std::function<void()> thread)
{
    CALLED();
    const dim3 grid = config->gridDim, block = config->blockDim;
    if (grid.x - 1 >= 0x7FFFFFFFu || grid.y - 1 >= 65535 || grid.z - 1 >= 65535 || block.x == 0 ||
        block.y == 0 || block.z == 0 || block.x * block.y * block.z > 1024 ||
        config->dynamicSmemBytes > 48 << 10)
        return failed(cudaErrorInvalidConfiguration);
    return put(config->stream, [=] { run_grid(grid, block, thread); });
}

extern std::atomic<uint64_t> coli__cuda_hanging; // the plugin's; see device.cuh

void cuda_emu_clear(void)
{
    coli__cuda_hanging = 0;
    const std::set<cudaStream_t> streams = machine.streams; // copies: what follows takes them out
    for (cudaStream_t s : streams) {
        {
            const locked lock(s->mu);
            s->is_cleared = true;
            s->queue.clear();
            s->changed.notify_all();
        }
        end_stream(s);
    }
    const locked lock(machine.mu);
    for (cudaEvent_t e : machine.events) delete e;
    for (const auto &m : machine.memory) give(m.first);
    for (const auto &m : machine.pinned) give(m.first);
    machine.events.clear();
    machine.memory.clear();
    machine.pinned.clear();
    machine.used.clear();
    machine.text = "not configured";
    machine.set = settings();
    machine.n_call = machine.n_operation = 0;
}
