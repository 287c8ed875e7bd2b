/* memory_posix.c - see memory.h.
 *
 * Linux: MemAvailable of /proc/meminfo counts what the kernel could free without swapping.  A process
 * may be allowed less, by its control group or one that this is in: what the strictest of them has left
 * then counts.  Pages of files that a group has read are charged to it and can be freed, so they count as
 * left.  Both versions of control groups are looked at; a container often sees its own as the root.
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

#include "file_os.h"

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

/* What a version of control groups calls things. */
typedef struct group_names {
    const char *mark;  // before the path of a process's group in /proc/self/cgroup
    const char *mount; // of the groups
    const char *limit, *used, *inactive, *active;
} group_names;

static const group_names versions[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ", "\nactive_file "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file ", "total_active_file "}};

/* Lower *available to what one group has left; one without a limit, or that is none, changes nothing. */
static void limit_by_group(const group_names *v, const char *dir, uint64_t *available)
{
    char path[4096];
    uint64_t limit, used, inactive = 0, active = 0;
    snprintf(path, sizeof path, "%s/%s", dir, v->limit);
    if (!number_in(path, "", &limit)) return; // "max"
    snprintf(path, sizeof path, "%s/%s", dir, v->used);
    if (!number_in(path, "", &used)) return;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    number_in(path, v->inactive, &inactive);
    number_in(path, v->active, &active);
    used = used > inactive + active ? used - inactive - active : 0;
    const uint64_t left = limit > used ? limit - used : 0;
    if (left < *available) *available = left;
}

/* The group and all that it is in. */
static void limit_by_groups(const char *root, const group_names *v, const char *groups,
                            uint64_t *available)
{
    const char *at = strstr(groups, v->mark);
    if (!at) return;
    at += strlen(v->mark);
    char dir[3072];
    const int n_mount = snprintf(dir, sizeof dir, "%s%s", root, v->mount);
    const size_t n_group = strcspn(at, "\n");
    if (n_mount < 0 || (size_t)n_mount + n_group >= sizeof dir) return;
    memcpy(dir + n_mount, at, n_group);
    size_t n = (size_t)n_mount + n_group;
    do {
        while (n > (size_t)n_mount && dir[n - 1] == '/') n--;
        dir[n] = 0;
        limit_by_group(v, dir, available);
        while (n > (size_t)n_mount && dir[n - 1] != '/') n--;
    } while (n > (size_t)n_mount);
    dir[n_mount] = 0;
    limit_by_group(v, dir, available);
}

uint64_t coli__memory_available_under(const char *root)
{
    char path[2048];
    uint64_t kib;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (!number_in(path, "MemAvailable:", &kib)) return 0;
    uint64_t available = kib * 1024;
    coli__buf groups = {0};
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (coli__file_read(path, MAX_TEXT, &groups) == COLI_OK && groups.data)
        for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
            limit_by_groups(root, &versions[i], groups.data, &available);
    coli__buf_finish(&groups);
    return available;
}

uint64_t coli__memory_available(void)
{
    return coli__memory_available_under("");
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

void coli__pages_drop(const void *data, uint64_t n_bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)data / page * page,
                    end = (uintptr_t)data + (uintptr_t)n_bytes;
    madvise((void *)begin, end - begin, MADV_DONTNEED); // posix_madvise's does nothing on Linux
}

#if defined(__linux__) && defined(MADV_HUGEPAGE) && defined(MREMAP_FIXED)

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000 // of Linux, on every machine that we know
#endif

enum { HUGE_BYTES = 2 << 20 }; // of x86-64, and of aarch64 with pages of 4 KiB

bool coli__pages_can_be_huge(void)
{
    char text[256];
    return coli__os_text("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) &&
           !strstr(text, "[never]");
}

/* Memory of its own at a multiple of a huge page; NULL: there is none. */
static uint8_t *take_huge(size_t n_bytes)
{
    const size_t n_all = n_bytes + HUGE_BYTES;
    uint8_t *all = mmap(NULL, n_all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    const size_t before = (HUGE_BYTES - (uintptr_t)all % HUGE_BYTES) % HUGE_BYTES;
    if (before > 0) munmap(all, before);
    munmap(all + before + n_bytes, HUGE_BYTES - before);
    madvise(all + before, n_bytes, MADV_HUGEPAGE);
    return all + before;
}

/* Moving unmaps what is at the target first, and what fails after that leaves nothing there: the bytes
 * are put back then, from the copy.  False: they could not be. */
static bool put_back(uint8_t *at, const uint8_t *copy, size_t n)
{
    uint8_t *p = mmap(at, n, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == MAP_FAILED) return errno == EEXIST; // it failed before: all is as it was
    if (p != at) {                               // the same, said by a kernel before 4.17
        munmap(p, n);
        return true;
    }
    memcpy(p, copy, n);
    mprotect(p, n, PROT_READ);
    return true;
}

/* The copy is complete before one call moves it: who reads meanwhile waits for that call, unless it
 * fails. */
coli_status coli__pages_copy_huge(const void *data, uint64_t n_bytes, uint64_t *n_copied)
{
    *n_copied = 0;
    const uintptr_t from = (uintptr_t)data, to = from + (uintptr_t)n_bytes;
    const uintptr_t begin = (from + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES,
                    end = to / HUGE_BYTES * HUGE_BYTES;
    if (end <= begin) return COLI_OK;
    const size_t n = end - begin;
    uint8_t *copy = take_huge(n);
    if (!copy) return COLI_OK;
    memcpy(copy, (const void *)begin, n);
    if (mprotect(copy, n, PROT_READ) == 0 &&
        mremap(copy, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)begin) != MAP_FAILED) {
        *n_copied = n;
        return COLI_OK;
    }
    const bool is_there = put_back((uint8_t *)begin, copy, n);
    munmap(copy, n);
    if (is_there) return COLI_OK;
    return coli__fail(COLI_E_NOMEM, "out of memory: %llu bytes that were in use could not be moved",
                      (unsigned long long)n);
}

#else

bool coli__pages_can_be_huge(void)
{
    return false;
}

coli_status coli__pages_copy_huge(const void *data, uint64_t n_bytes, uint64_t *n_copied)
{
    (void)data, (void)n_bytes;
    *n_copied = 0;
    return COLI_OK;
}

#endif

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
