/* cpu.c - how many processors there are for us, what time it is, and the float control register. */
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
    long n = 1;
#ifdef _WIN32
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    n = (long)info.dwNumberOfProcessors;
#else
    n = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
    n = cgroup_limit(n > 0 ? (uint32_t)n : 1);
#endif
#endif
    return n > 0 ? (uint32_t)n : 1;
}

uint64_t coli__clock_ns(void)
{
#ifdef _WIN32
    LARGE_INTEGER now, per_s;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&per_s);
    return (uint64_t)((double)now.QuadPart * 1e9 / (double)per_s.QuadPart);
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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
