/* memory_windows.c - see memory.h. */
#include "memory.h"

#include <windows.h>

uint64_t coli__memory_available(void)
{
    MEMORYSTATUSEX status = {.dwLength = sizeof status};
    return GlobalMemoryStatusEx(&status) ? status.ullAvailPhys : 0;
}

uint64_t coli__cache_bytes(void)
{
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION facts[256]; // of one group: 64 processors, 4 facts each
    DWORD n_bytes = sizeof facts;
    if (!GetLogicalProcessorInformation(facts, &n_bytes)) return 0;
    uint64_t best = 0;
    for (DWORD i = 0; i < n_bytes / sizeof *facts; i++) {
        const bool ours = facts[i].Relationship == RelationCache && facts[i].ProcessorMask & 1;
        if (ours && facts[i].Cache.Size > best) best = facts[i].Cache.Size;
    }
    return best;
}

void coli__pages_bring(const void *data, uint64_t n_bytes)
{
    enum { PAGE = 4096 };
    const uint8_t *bytes = data;
    for (uint64_t at = 0; at < n_bytes; at += PAGE) (void)*(const volatile uint8_t *)(bytes + at);
}

/* Unlocking pages that are not locked takes them out of the working set; it says that they were not. */
void coli__pages_drop(const void *data, uint64_t n_bytes)
{
    VirtualUnlock((void *)(uintptr_t)data, (size_t)n_bytes);
}

/* A view of a file cannot be replaced in part. */
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

/* Huge pages need a right that users do not have: ordinary ones do. */
coli_status coli__pages_take(uint64_t n_bytes, void **out)
{
    *out = NULL;
    if (n_bytes <= SIZE_MAX / 2)
        *out = VirtualAlloc(NULL, (size_t)n_bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    if (*out) return COLI_OK;
    return coli__fail(COLI_E_NOMEM, "out of memory: %llu bytes", (unsigned long long)n_bytes);
}

void coli__pages_give(void *pages, uint64_t n_bytes)
{
    (void)n_bytes;
    if (pages) VirtualFree(pages, 0, MEM_RELEASE);
}

bool coli__pages_lock(void *pages, uint64_t n_bytes)
{
    return VirtualLock(pages, (size_t)n_bytes) != 0; // a process may lock little, unless it is told
}
