/* dynlib_posix.c - dynlib.h with dlopen.
 *
 * The file is looked at before the system maps it, for two reasons.  dlopen believes the headers: a
 * library that was cut short by an incomplete copy is a SIGBUS when its missing pages are touched.
 * And what it says about a library for another processor is "No such file or directory".
 *
 * dlsym finds data as well as functions, and calling data is a crash.  Which segment of which
 * library an address lies in is known to dl_iterate_phdr. */
#include "dynlib.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

/* -- the file ---------------------------------------------------------------------------------- */

#ifdef __ELF__
#include <elf.h>
#include <link.h>

/* Numbers of e_machine that people meet. */
static const struct {
    uint16_t number;
    const char *name;
} machines[] = {
    {EM_X86_64, "x86-64"}, {EM_AARCH64, "aarch64"}, {EM_386, "x86 (32 bits)"},
    {EM_ARM, "arm"},       {EM_RISCV, "riscv"},     {EM_PPC64, "ppc64"},
};

#if defined(__x86_64__)
enum { OUR_MACHINE = EM_X86_64 };
#elif defined(__aarch64__)
enum { OUR_MACHINE = EM_AARCH64 };
#elif defined(__riscv)
enum { OUR_MACHINE = EM_RISCV };
#else
enum { OUR_MACHINE = EM_NONE }; // the system has to find out
#endif

static const char *machine_name(uint16_t number)
{
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        if (machines[i].number == number) return machines[i].name;
    return "another processor";
}

static coli_status cut_short(uint64_t n_bytes, uint64_t end)
{
    return coli__fail(COLI_E_FORMAT,
                      "cut short: it has %" PRIu64 " bytes, its headers speak of %" PRIu64
                      "; copy it again",
                      n_bytes, end);
}

/* n pieces of size bytes at offset lie in the file. */
static coli_status check_table(uint64_t n_bytes, uint64_t offset, uint64_t n, uint64_t size)
{
    uint64_t length, end;
    if (!coli__mul(n, size, &length) || !coli__add(offset, length, &end)) end = UINT64_MAX;
    return end <= n_bytes ? COLI_OK : cut_short(n_bytes, end);
}

static coli_status check_segments(const uint8_t *file, uint64_t n_bytes, const ElfW(Ehdr) * h)
{
    if (h->e_phentsize != sizeof(ElfW(Phdr)) || h->e_phnum == 0)
        return coli__fail(COLI_E_FORMAT, "damaged: its program headers make no sense");
    COLI_TRY(check_table(n_bytes, h->e_phoff, h->e_phnum, h->e_phentsize));
    if (h->e_shoff) COLI_TRY(check_table(n_bytes, h->e_shoff, h->e_shnum, h->e_shentsize));
    for (uint32_t i = 0; i < h->e_phnum; i++) {
        ElfW(Phdr) p;
        memcpy(&p, file + h->e_phoff + i * sizeof p, sizeof p);
        if (p.p_type == PT_LOAD) COLI_TRY(check_table(n_bytes, p.p_offset, 1, p.p_filesz));
    }
    return COLI_OK;
}

/* A shared library for this processor, and all of it. */
static coli_status check_image(const uint8_t *file, uint64_t n_bytes)
{
    ElfW(Ehdr) h;
    if (n_bytes == 0) return coli__fail(COLI_E_FORMAT, "empty; copy it again");
    if (n_bytes >= 2 && memcmp(file, "MZ", 2) == 0)
        return coli__fail(COLI_E_FORMAT, "a library for Windows; here a file of this system is "
                                         "needed");
    if (memcmp(file, ELFMAG, n_bytes < SELFMAG ? (size_t)n_bytes : SELFMAG) != 0)
        return coli__fail(COLI_E_FORMAT,
                          "not a shared library: it does not begin like an ELF file");
    if (n_bytes < sizeof h) return cut_short(n_bytes, sizeof h);
    memcpy(&h, file, sizeof h);
    const uint16_t one = 1;
    const int our_order = *(const uint8_t *)&one ? ELFDATA2LSB : ELFDATA2MSB;
    const int our_class = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
    if (h.e_ident[EI_DATA] != our_order)
        return coli__fail(COLI_E_FORMAT, "for a processor with another byte order; install the "
                                         "one for this machine");
    if (h.e_ident[EI_CLASS] != our_class || (OUR_MACHINE != EM_NONE && h.e_machine != OUR_MACHINE))
        return coli__fail(COLI_E_FORMAT, "for %s, this is %s; install the one for this machine",
                          machine_name(h.e_machine), machine_name(OUR_MACHINE));
    if (h.e_type != ET_DYN)
        return coli__fail(COLI_E_FORMAT,
                          "an ELF file, but no shared library; link it with -shared");
    return check_segments(file, n_bytes, &h);
}
#else
static coli_status check_image(const uint8_t *file, uint64_t n_bytes)
{
    (void)file;
    return n_bytes ? COLI_OK : coli__fail(COLI_E_FORMAT, "empty; copy it again");
}
#endif

/* The present message without "PATH: " in front.  A path so long that nothing was left of the
 * reason leaves the status to say. */
static coli_status without_path(coli_status status, const char *path)
{
    const size_t n = strlen(path);
    const char *text = coli_error_message();
    const bool named = strncmp(text, path, n) == 0 && strncmp(text + n, ": ", 2) == 0;
    return coli__fail(status, "%s", named ? text + n + 2 : coli_status_text(status));
}

static coli_status check_file(const char *path)
{
    coli__map map;
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return coli__fail(COLI_E_IO, "a directory; expected a file");
    coli_status status = coli__map_open(path, &map);
    if (status == COLI_E_NOTFOUND) return coli__fail(status, "no such file");
    if (status != COLI_OK) return without_path(status, path);
    status = check_image(map.data, map.n_bytes);
    coli__map_close(&map);
    return status;
}

/* -- loading ----------------------------------------------------------------------------------- */

coli_status coli__dynlib_open(const char *path, coli__dynlib **out)
{
    *out = NULL;
    COLI_TRY(check_file(path));
    *out = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*out) return COLI_OK;
    const char *text = dlerror(); // begins with the path of what it is about, perhaps a dependency
    const size_t n = strlen(path);
    if (!text) text = "the system does not say why";
    if (strncmp(text, path, n) == 0 && strncmp(text + n, ": ", 2) == 0) text += n + 2;
    return coli__fail(COLI_E_FORMAT, "the system cannot load it: %s", text);
}

void coli__dynlib_close(coli__dynlib *lib)
{
    if (lib) dlclose(lib);
}

void *coli__dynlib_symbol(coli__dynlib *lib, const char *name)
{
    return dlsym(lib, name);
}

#ifdef __ELF__
typedef struct range {
    uintptr_t first, last; // both included
    uint32_t flags;        // that the segment must have
    bool found;
} range;

static int look_for(struct dl_phdr_info *info, size_t info_bytes, void *ctx)
{
    (void)info_bytes;
    range *r = ctx;
    for (int i = 0; i < info->dlpi_phnum && !r->found; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + p->p_vaddr;
        r->found = p->p_type == PT_LOAD && (p->p_flags & r->flags) == r->flags &&
                   r->first >= begin && r->last - begin < p->p_memsz;
    }
    return r->found;
}

static bool in_segment(const void *address, size_t n_bytes, uint32_t flags)
{
    range r = {.first = (uintptr_t)address, .flags = flags};
    if (n_bytes == 0 || n_bytes - 1 > UINTPTR_MAX - r.first) return false;
    r.last = r.first + n_bytes - 1;
    dl_iterate_phdr(look_for, &r);
    return r.found;
}

bool coli__dynlib_is_code(const void *address)
{
    return in_segment(address, 1, PF_X);
}

bool coli__dynlib_is_readable(const void *address, size_t n_bytes)
{
    return in_segment(address, n_bytes, PF_R);
}
#else
bool coli__dynlib_is_code(const void *address)
{
    return address != NULL;
}

bool coli__dynlib_is_readable(const void *address, size_t n_bytes)
{
    return address != NULL && n_bytes > 0;
}
#endif

/* -- paths ------------------------------------------------------------------------------------- */

/* The file that is mapped at an address, as the kernel knows it; NULL where it does not tell. */
static char *mapped_file(const void *address)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char *line = NULL, *path = NULL;
    size_t cap = 0;
    while (maps && !path && getline(&line, &cap, maps) > 0) {
        uintptr_t begin, end;
        int n = 0;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n", &begin, &end, &n) < 2 ||
            (uintptr_t)address < begin || (uintptr_t)address >= end || line[n] != '/')
            continue;
        path = coli__strndup(line + n, strcspn(line + n, "\n"));
    }
    free(line);
    if (maps) fclose(maps);
    return path;
}

/* dladdr names the file as it was asked for: relative, when a run path or the command line was.  The
 * working directory may have changed since, so then the kernel is asked.  The directory's real name
 * is taken, without "bin/../lib"; not the file's, which may be a link to another place. */
coli_status coli__dynlib_own_dir(char **out)
{
    Dl_info info;
    *out = NULL;
    const void *here = (const void *)(uintptr_t)&coli__dynlib_own_dir;
    const bool absolute = dladdr(here, &info) && info.dli_fname && info.dli_fname[0] == '/';
    char *path =
        absolute ? coli__strndup(info.dli_fname, strlen(info.dli_fname)) : mapped_file(here);
    if (!path && absolute) return COLI_E_NOMEM;
    if (!path) return coli__fail(COLI_E_IO, "cannot tell where libcoli is");
    char *slash = strrchr(path, '/');
    slash[slash == path] = 0; // "/" keeps its own
    char *real = realpath(path, NULL);
    const char *dir = real ? real : path;
    *out = coli__strndup(dir, strlen(dir));
    free(real);
    coli__free(path);
    return *out ? COLI_OK : COLI_E_NOMEM;
}

const char *coli__dynlib_suffix(void)
{
#ifdef __APPLE__
    return ".dylib";
#else
    return ".so";
#endif
}

char coli__path_list_separator(void)
{
    return ':';
}

bool coli__path_has_dir(const char *path)
{
    return strchr(path, '/') != NULL;
}

bool coli__path_is_absolute(const char *path)
{
    return path[0] == '/';
}

coli_status coli__path_absolute(const char *path, char **out)
{
    *out = NULL;
    if (coli__path_is_absolute(path)) {
        *out = coli__strndup(path, strlen(path));
        return *out ? COLI_OK : COLI_E_NOMEM;
    }
    while (strncmp(path, "./", 2) == 0) path += 2 + strspn(path + 2, "/");
    char *here = getcwd(NULL, 0);
    if (!here)
        return coli__fail(COLI_E_IO, "%s: cannot tell the working directory: %s", path,
                          strerror(errno));
    const coli_status status = coli__path_join(here, path, out);
    free(here);
    return status;
}

bool coli__path_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
