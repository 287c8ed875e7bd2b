/* cpu.c - how many processors there are for us, what they may do, what time it is, and the float control
 * register. */
#include "threads.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#include <windows.h>
#else
#include <sched.h>
#include <unistd.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#endif

/* -- processors -------------------------------------------------------------------------------- */

#ifdef __linux__
/* A container's share: cgroup v2 says "quota period" or "max period" in microseconds. */
static uint32_t cgroup_limit(uint32_t n)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f) return n;
    unsigned long long quota, period;
    const bool limited = fscanf(f, "%llu %llu", &quota, &period) == 2 && period > 0;
    fclose(f);
    if (!limited) return n;
    const unsigned long long whole = (quota + period - 1) / period;
    return whole < n ? (uint32_t)whole : n;
}
#endif

uint32_t coli__n_processor(void)
{
#ifdef _WIN32
    /* Windows counts processors in groups of at most 64.  A process that was bound to some is bound
     * within one group; one that was not may use all groups. */
    DWORD_PTR ours = 0, all = 0;
    GetProcessAffinityMask(GetCurrentProcess(), &ours, &all);
    uint32_t n = (uint32_t)__builtin_popcountll(ours);
    if (ours == all) n = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
#else
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = online > 0 ? (uint32_t)online : 1;
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = (uint32_t)CPU_COUNT(&set);
    n = cgroup_limit(n);
#endif
#endif
    return n > 0 ? n : 1;
}

/* Linux saves tiles (8 KiB) only for processes that want them.  Its numbers, from asm/prctl.h and
 * asm/fpu/types.h, are newer than some systems' headers. */
bool coli__tiles_permit(void)
{
#if defined(__linux__) && defined(__x86_64__)
    enum { REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
#else
    return false;
#endif
}

uint64_t coli__clock_ns(void)
{
    enum { NS_PER_S = 1000000000 };
#ifdef _WIN32
    LARGE_INTEGER now, per_s;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&per_s);
    const uint64_t t = (uint64_t)now.QuadPart, f = (uint64_t)per_s.QuadPart;
    return t / f * NS_PER_S + t % f * NS_PER_S / f; // in two parts: t * NS_PER_S would overflow
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
#endif
}

/* -- float control ----------------------------------------------------------------------------- */

#if defined(__x86_64__) || defined(_M_X64)

enum { MXCSR_DEFAULT = 0x1F80 }; // round to nearest, denormals kept, exceptions masked

coli__fp coli__fp_enter(void)
{
    const coli__fp fp = {_mm_getcsr()};
    _mm_setcsr(MXCSR_DEFAULT);
    return fp;
}

void coli__fp_leave(coli__fp fp)
{
    _mm_setcsr((unsigned)fp.saved);
}

#elif defined(__aarch64__)

coli__fp coli__fp_enter(void)
{
    coli__fp fp;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fp.saved));
    __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0));
    return fp;
}

void coli__fp_leave(coli__fp fp)
{
    __asm__ volatile("msr fpcr, %0" ::"r"(fp.saved));
}

#else
#error "set and restore the float control register of this processor here"
#endif
