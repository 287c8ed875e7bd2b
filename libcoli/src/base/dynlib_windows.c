/* dynlib_windows.c - dynlib.h on Windows.
 *
 * A library is loaded by its absolute path, and what it needs is looked for beside it, in the
 * directory of the program and in that of the system: not in PATH, not in the working directory.
 * A box on the screen that asks what to do about a missing library would stop a program that nobody
 * watches: the thread says that it does not want any. */
#include "dynlib.h"

#include <string.h>
#include <windows.h>

#include "alloc.h"
#include "file.h"
#include "wide.h"

/* -- loading ----------------------------------------------------------------------------------- */

/* What the numbers mean for a library; the system's own words are about files in general. */
static coli_status fail_load(DWORD error)
{
    const unsigned long number = error;
    switch (error) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
        return coli__fail(COLI_E_NOTFOUND, "no such file (error %lu)", number);
    case ERROR_ACCESS_DENIED:
        return coli__fail(COLI_E_IO, "access is denied (error %lu)", number);
    case ERROR_MOD_NOT_FOUND:
        return coli__fail(COLI_E_FORMAT,
                          "a library that it needs is missing (error %lu); install it, or put it "
                          "beside the file",
                          number);
    case ERROR_PROC_NOT_FOUND:
        return coli__fail(COLI_E_FORMAT,
                          "a library that it needs lacks a function (error %lu); install a newer "
                          "one",
                          number);
    case ERROR_BAD_EXE_FORMAT:
        return coli__fail(COLI_E_FORMAT,
                          "not a library for this machine, or damaged (error %lu); install the one "
                          "for it",
                          number);
    }
    wchar_t wide[512];
    char text[3 * 512] = "";
    const DWORD flags = FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS;
    const DWORD n = FormatMessageW(flags, NULL, error, 0, wide, 512, NULL);
    if (n) coli__wide_to_utf8(wide, text, sizeof text);
    text[strcspn(text, "\r\n")] = 0;
    return coli__fail(COLI_E_FORMAT, "the system cannot load it: %s (error %lu)", text, number);
}

static coli_status check_file(const char *path)
{
    coli__map map;
    if (coli__path_is_dir(path)) return coli__fail(COLI_E_IO, "a directory; expected a file");
    const coli_status status = coli__map_open(path, &map);
    if (status == COLI_E_NOTFOUND) return coli__fail(status, "no such file");
    if (status != COLI_OK) return coli__fail(status, "cannot be read: %s", coli_error_message());
    const uint64_t n_bytes = map.n_bytes;
    coli__map_close(&map);
    return n_bytes ? COLI_OK : coli__fail(COLI_E_FORMAT, "empty; copy it again");
}

coli_status coli__dynlib_open(const char *path, coli__dynlib **out)
{
    *out = NULL;
    coli__wide wide;
    COLI_TRY(check_file(path));
    if (!coli__wide_path(path, &wide)) return coli__fail(COLI_E_IO, "the path is too long");
    DWORD before;
    SetThreadErrorMode(SEM_FAILCRITICALERRORS | SEM_NOOPENFILEERRORBOX, &before);
    const HMODULE module = LoadLibraryExW(
        wide.text, NULL, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
    const DWORD error = GetLastError();
    SetThreadErrorMode(before, NULL);
    if (!module) return fail_load(error);
    *out = (coli__dynlib *)module;
    return COLI_OK;
}

void coli__dynlib_close(coli__dynlib *lib)
{
    if (lib) FreeLibrary((HMODULE)lib);
}

void *coli__dynlib_symbol(coli__dynlib *lib, const char *name)
{
    return (void *)(uintptr_t)GetProcAddress((HMODULE)lib, name);
}

/* Whether all pages of a range are there and have one of the protections. */
static bool has_protection(const void *address, size_t n_bytes, DWORD any)
{
    const uintptr_t first = (uintptr_t)address;
    if (n_bytes == 0 || n_bytes - 1 > UINTPTR_MAX - first) return false;
    for (uintptr_t at = first; at - first < n_bytes;) {
        MEMORY_BASIC_INFORMATION pages;
        if (!VirtualQuery((const void *)at, &pages, sizeof pages)) return false;
        if (pages.State != MEM_COMMIT || !(pages.Protect & any) || pages.Protect & PAGE_GUARD)
            return false;
        at = (uintptr_t)pages.BaseAddress + pages.RegionSize;
    }
    return true;
}

enum {
    CODE = PAGE_EXECUTE | PAGE_EXECUTE_READ | PAGE_EXECUTE_READWRITE | PAGE_EXECUTE_WRITECOPY,
    READABLE = PAGE_READONLY | PAGE_READWRITE | PAGE_WRITECOPY | PAGE_EXECUTE_READ |
               PAGE_EXECUTE_READWRITE | PAGE_EXECUTE_WRITECOPY
};

bool coli__dynlib_is_code(const void *address)
{
    return has_protection(address, 1, CODE);
}

bool coli__dynlib_is_readable(const void *address, size_t n_bytes)
{
    return has_protection(address, n_bytes, READABLE);
}

/* -- paths ------------------------------------------------------------------------------------- */

static bool is_slash(char c)
{
    return c == '/' || c == '\\';
}

/* UTF-16 into new memory. */
static coli_status utf8_of(const wchar_t *wide, char **out)
{
    char text[3 * COLI_WIDE_CHARS];
    if (!coli__wide_to_utf8(wide, text, sizeof text))
        return coli__fail(COLI_E_IO, "a path is too long");
    *out = coli__strndup(text, strlen(text));
    return *out ? COLI_OK : COLI_E_NOMEM;
}

coli_status coli__dynlib_own_dir(char **out)
{
    *out = NULL;
    HMODULE module;
    coli__wide path;
    const DWORD how =
        GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    const wchar_t *here = (const wchar_t *)(uintptr_t)&coli__dynlib_own_dir;
    DWORD n = 0;
    if (GetModuleHandleExW(how, here, &module))
        n = GetModuleFileNameW(module, path.text, COLI_WIDE_CHARS);
    if (n == 0 || n >= COLI_WIDE_CHARS)
        return coli__fail(COLI_E_IO, "cannot tell where libcoli is (error %lu)", GetLastError());
    while (n > 0 && path.text[n - 1] != L'\\') n--;
    path.text[n > 0 ? n - 1 : 0] = 0;
    return utf8_of(path.text, out);
}

const char *coli__dynlib_suffix(void)
{
    return ".dll";
}

char coli__path_list_separator(void)
{
    return ';';
}

bool coli__path_has_dir(const char *path)
{
    return strpbrk(path, "/\\:") != NULL;
}

/* "C:\x" or "\\server\x".  "\x" is on the present drive, "C:x" in the present directory there. */
bool coli__path_is_absolute(const char *path)
{
    if (is_slash(path[0])) return is_slash(path[1]);
    const char letter = (char)(path[0] | 0x20);
    return letter >= 'a' && letter <= 'z' && path[1] == ':' && is_slash(path[2]);
}

coli_status coli__path_absolute(const char *path, char **out)
{
    *out = NULL;
    wchar_t typed[COLI_WIDE_CHARS];
    coli__wide full;
    DWORD n = 0;
    if (MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, typed, COLI_WIDE_CHARS))
        n = GetFullPathNameW(typed, COLI_WIDE_CHARS, full.text, NULL);
    if (n == 0 || n >= COLI_WIDE_CHARS)
        return coli__fail(COLI_E_INVALID, "%s: not a path (error %lu)", path, GetLastError());
    return utf8_of(full.text, out);
}

static bool identity(const char *path, BY_HANDLE_FILE_INFORMATION *out)
{
    coli__wide wide;
    if (!coli__wide_path(path, &wide)) return false;
    const DWORD everybody = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    const HANDLE handle = CreateFileW(wide.text, 0, everybody, NULL, OPEN_EXISTING,
                                      FILE_FLAG_BACKUP_SEMANTICS, NULL); // also directories
    if (handle == INVALID_HANDLE_VALUE) return false;
    const bool known = GetFileInformationByHandle(handle, out) != 0;
    CloseHandle(handle);
    return known;
}

bool coli__path_same(const char *a, const char *b)
{
    BY_HANDLE_FILE_INFORMATION x, y;
    return identity(a, &x) && identity(b, &y) && x.dwVolumeSerialNumber == y.dwVolumeSerialNumber &&
           x.nFileIndexHigh == y.nFileIndexHigh && x.nFileIndexLow == y.nFileIndexLow;
}
