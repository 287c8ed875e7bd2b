/* memory_used.c - how much memory this process holds, for tests that look for leaks. */
#include "memory.h"

#include <stdio.h>
#if defined(__GLIBC__)
#include <malloc.h>
#include <unistd.h>
#endif

/* The sanitizers replace malloc: they know what was allocated, and keep what was freed for a while, so
 * that what is resident says nothing.  Absent otherwise. */
#if defined(__GNUC__) && !defined(_WIN32)
__attribute__((weak)) size_t __sanitizer_get_current_allocated_bytes(void);
static bool is_sanitized(void)
{
    return __sanitizer_get_current_allocated_bytes != NULL;
}
static uint64_t sanitizer_bytes(void)
{
    return __sanitizer_get_current_allocated_bytes();
}
#else
static bool is_sanitized(void)
{
    return false;
}
static uint64_t sanitizer_bytes(void)
{
    return 0;
}
#endif

uint64_t coli__memory_allocated(void)
{
    if (is_sanitized()) return sanitizer_bytes();
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
#else
    return 0;
#endif
}

uint64_t coli__memory_resident(void)
{
    if (is_sanitized()) return 0;
#if defined(__GLIBC__)
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    unsigned long long total, resident = 0;
    if (fscanf(file, "%llu %llu", &total, &resident) != 2) resident = 0;
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
#else
    return 0;
#endif
}
