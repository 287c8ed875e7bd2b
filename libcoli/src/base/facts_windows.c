/* facts_windows.c - see facts.h.  Windows has no control groups, and huge pages only for those who have a
 * right to them; what it calls page file is what others call swap. */
#include "facts.h"

#include <stdio.h>
#include <windows.h>

/* GetVersion and its like say what a program asks for; the kernel's own library says what is there. */
static void read_version(char *out, size_t cap)
{
    typedef LONG(WINAPI * get_version)(OSVERSIONINFOW *);
    OSVERSIONINFOW v = {.dwOSVersionInfoSize = sizeof v};
    const HMODULE kernel = GetModuleHandleW(L"ntdll.dll");
    const get_version get =
        kernel ? (get_version)(void *)GetProcAddress(kernel, "RtlGetVersion") : NULL;
    if (get && get(&v) == 0)
        snprintf(out, cap, "Windows %lu.%lu.%lu", v.dwMajorVersion, v.dwMinorVersion,
                 v.dwBuildNumber);
    else
        snprintf(out, cap, "Windows");
}

void coli__facts_read(coli__facts *out)
{
    *out = (coli__facts){.n_processor = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS)};
    read_version(out->system, sizeof out->system);
    coli__facts_cpu(out->cpu, sizeof out->cpu);
    MEMORYSTATUSEX m = {.dwLength = sizeof m};
    if (!GlobalMemoryStatusEx(&m)) return;
    out->memory_bytes = m.ullTotalPhys;
    out->free_bytes = m.ullAvailPhys;
    // the limit counts memory, too
    if (m.ullTotalPageFile > m.ullTotalPhys) out->swap_bytes = m.ullTotalPageFile - m.ullTotalPhys;
    out->swap_free_bytes =
        m.ullAvailPageFile > m.ullAvailPhys ? m.ullAvailPageFile - m.ullAvailPhys : 0;
    if (out->swap_free_bytes > out->swap_bytes) out->swap_free_bytes = out->swap_bytes;
}
