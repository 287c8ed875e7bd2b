/* memory_posix.c - see memory.h.
 *
 * Linux: MemAvailable of /proc/meminfo counts what the kernel could free without swapping.  A
 * container may be allowed less: what its control group has left, from the two files of version 2,
 * then counts.
 *
 * Caches: sysconf may add up those of a whole socket, so the files of the first processor are read.
 */
#include "memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "file.h"

enum { MAX_TEXT = 1 << 16 };

/* The number behind `key` in a small file; false when there is none. */
static bool number_in(const char *path, const char *key, uint64_t *out)
{
    coli__buf text = {0};
    bool found = false;
    if (coli__file_read(path, MAX_TEXT, &text) == COLI_OK && text.data) {
        const char *at = strstr(text.data, key);
        char *end = NULL;
        if (at) {
            at += strlen(key);
            *out = strtoull(at, &end, 10);
        }
        found = end && end != at;
    }
    coli__buf_finish(&text);
    return found;
}

uint64_t coli__memory_available(void)
{
    uint64_t kib, limit, used;
    if (!number_in("/proc/meminfo", "MemAvailable:", &kib)) return 0;
    uint64_t available = kib * 1024;
    if (number_in("/sys/fs/cgroup/memory.max", "", &limit) &&
        number_in("/sys/fs/cgroup/memory.current", "", &used)) {
        const uint64_t left = limit > used ? limit - used : 0;
        if (left < available) available = left;
    }
    return available;
}

uint64_t coli__cache_bytes(void)
{
    uint64_t best = 0, kib;
    for (int i = 0; i < 8; i++) {
        char path[80];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (number_in(path, "", &kib) && kib * 1024 > best) best = kib * 1024;
    }
    return best;
}

coli_status coli__pages_take(uint64_t n_bytes, void **out)
{
    *out = NULL;
    if (n_bytes > SIZE_MAX / 2)
        return coli__fail(COLI_E_NOMEM, "out of memory: %llu bytes", (unsigned long long)n_bytes);
    void *p =
        mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return coli__fail(COLI_E_NOMEM, "out of memory: %llu bytes: %s",
                          (unsigned long long)n_bytes, strerror(errno));
#ifdef MADV_HUGEPAGE
    madvise(p, (size_t)n_bytes, MADV_HUGEPAGE); // advice: small pages do, too
#endif
    *out = p;
    return COLI_OK;
}

void coli__pages_give(void *pages, uint64_t n_bytes)
{
    if (pages) munmap(pages, (size_t)n_bytes);
}

bool coli__pages_lock(void *pages, uint64_t n_bytes)
{
    return mlock(pages, (size_t)n_bytes) == 0;
}
