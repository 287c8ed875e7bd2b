/* memory_posix.c - see memory.h.
 *
 * Linux: MemAvailable of /proc/meminfo counts what the kernel could free without swapping.  A
 * container, or a service, may be allowed less: what its control group, or one around it, has left then
 * counts, in either version of that interface.
 *
 * Caches: sysconf may add up those of a whole socket, so the files of the first processor are read.
 */
#include "memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "file.h"

enum { MAX_TEXT = 1 << 16, MAX_GROUP = 1024 };

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

/* The files of a control group, by the version of the interface. */
typedef struct group_files {
    const char *line; // of /proc/self/cgroup, before the path
    const char *root, *limit, *used, *inactive, *active;
} group_files;

static const group_files versions[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "\ninactive_file ", "\nactive_file "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "\ntotal_inactive_file ", "\ntotal_active_file "}};

static bool group_number(const group_files *v, const char *path, const char *file, const char *key,
                         uint64_t *out)
{
    char name[MAX_GROUP + 64];
    snprintf(name, sizeof name, "%s%s/%s", v->root, path, file);
    return number_in(name, key, out);
}

/* What one group may still take.  Pages of files count as free: they go when others want the memory. */
static uint64_t left_in(const group_files *v, const char *path)
{
    uint64_t limit, used, inactive = 0, active = 0;
    if (!group_number(v, path, v->limit, "", &limit) || !group_number(v, path, v->used, "", &used))
        return UINT64_MAX;
    group_number(v, path, "memory.stat", v->inactive, &inactive);
    group_number(v, path, "memory.stat", v->active, &active);
    const uint64_t files = inactive + active;
    used = used > files ? used - files : 0;
    return limit > used ? limit - used : 0;
}

/* The same of this process's group and all groups around it. */
static uint64_t left_in_groups(const group_files *v)
{
    coli__buf text = {0};
    char path[MAX_GROUP] = "";
    if (coli__file_read("/proc/self/cgroup", MAX_TEXT, &text) == COLI_OK && text.data) {
        const char *at = strstr(text.data, v->line);
        if (at) {
            at += strlen(v->line);
            const size_t n = strcspn(at, "\n");
            if (n < sizeof path) memcpy(path, at, n); // the rest is zero
        }
    }
    coli__buf_finish(&text);
    uint64_t least = left_in(v, ""); // also what a container sees as its root
    for (char *end = path + strlen(path); end > path; *end = 0) {
        const uint64_t left = left_in(v, path);
        if (left < least) least = left;
        while (end > path && *end != '/') end--;
    }
    return least;
}

uint64_t coli__memory_available(void)
{
    uint64_t kib;
    if (!number_in("/proc/meminfo", "MemAvailable:", &kib)) return 0;
    uint64_t available = kib * 1024;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        const uint64_t left = left_in_groups(&versions[i]);
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

void coli__pages_bring(const void *data, uint64_t n_bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)data / page * page,
                    end = (uintptr_t)data + (uintptr_t)n_bytes;
#ifdef MADV_POPULATE_READ
    if (madvise((void *)begin, end - begin, MADV_POPULATE_READ) == 0) return;
#endif
    madvise((void *)begin, end - begin, MADV_WILLNEED);
    for (uintptr_t at = begin; at < end; at += page) (void)*(const volatile uint8_t *)at;
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
