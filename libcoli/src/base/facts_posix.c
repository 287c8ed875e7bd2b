/* facts_posix.c - see facts.h.  Linux tells in /proc and /sys. */
#include "facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "file.h"

enum { MAX_TEXT = 1 << 16 };

static coli_status read_small(const char *root, const char *path, coli__buf *out)
{
    char full[2048];
    snprintf(full, sizeof full, "%s%s", root, path);
    return coli__file_read(full, MAX_TEXT, out);
}

/* "MemTotal:       24689764 kB" in bytes; 0 without such a line. */
static uint64_t kib_of(const char *meminfo, const char *key)
{
    const char *at = strstr(meminfo, key);
    return at ? strtoull(at + strlen(key), NULL, 10) * 1024 : 0;
}

static void read_memory(const char *root, coli__facts *out)
{
    coli__buf text = {0};
    if (read_small(root, "/proc/meminfo", &text) == COLI_OK && text.data) {
        out->memory_bytes = kib_of(text.data, "MemTotal:");
        out->free_bytes = kib_of(text.data, "MemAvailable:");
        out->swap_bytes = kib_of(text.data, "SwapTotal:");
        out->swap_free_bytes = kib_of(text.data, "SwapFree:");
    }
    coli__buf_finish(&text);
}

/* "always [madvise] never": the word in brackets. */
static void read_huge_pages(const char *root, coli__facts *out)
{
    coli__buf text = {0};
    if (read_small(root, "/sys/kernel/mm/transparent_hugepage/enabled", &text) == COLI_OK &&
        text.data) {
        const char *begin = strchr(text.data, '['), *end = begin ? strchr(begin, ']') : NULL;
        if (end)
            snprintf(out->huge_pages, sizeof out->huge_pages, "%.*s", (int)(end - begin - 1),
                     begin + 1);
    }
    coli__buf_finish(&text);
}

void coli__facts_read_under(const char *root, coli__facts *out)
{
    *out = (coli__facts){.has_huge_pages = true, .has_groups = true};
    struct utsname name;
    if (uname(&name) == 0)
        snprintf(out->system, sizeof out->system, "%.20s %.50s %.20s", name.sysname, name.release,
                 name.machine);
    coli__facts_cpu(out->cpu, sizeof out->cpu);
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    out->n_processor = n > 0 ? (uint32_t)n : 0;
    read_memory(root, out);
    read_huge_pages(root, out);
}

void coli__facts_read(coli__facts *out)
{
    coli__facts_read_under("", out);
}
