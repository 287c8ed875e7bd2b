/* wide.c - see wide.h. */
#include "wide.h"

#include <errno.h>
#include <string.h>
#include <windows.h>

void coli__wide_set_errno(void)
{
    static const struct {
        DWORD error;
        int code;
    } known[] = {
        {ERROR_FILE_NOT_FOUND, ENOENT},      {ERROR_PATH_NOT_FOUND, ENOENT},
        {ERROR_INVALID_NAME, ENOENT},        {ERROR_BAD_PATHNAME, ENOENT},
        {ERROR_BAD_NETPATH, ENOENT},         {ERROR_BAD_NET_NAME, ENOENT},
        {ERROR_INVALID_DRIVE, ENOENT},       {ERROR_DIRECTORY, ENOTDIR},
        {ERROR_FILE_EXISTS, EEXIST},         {ERROR_ALREADY_EXISTS, EEXIST},
        {ERROR_ACCESS_DENIED, EACCES},       {ERROR_SHARING_VIOLATION, EBUSY},
        {ERROR_LOCK_VIOLATION, EBUSY},       {ERROR_DISK_FULL, ENOSPC},
        {ERROR_HANDLE_DISK_FULL, ENOSPC},    {ERROR_NOT_ENOUGH_MEMORY, ENOMEM},
        {ERROR_OUTOFMEMORY, ENOMEM},         {ERROR_COMMITMENT_LIMIT, ENOMEM},
        {ERROR_DIR_NOT_EMPTY, ENOTEMPTY},    {ERROR_FILENAME_EXCED_RANGE, ENAMETOOLONG},
        {ERROR_NOT_SAME_DEVICE, EXDEV},      {ERROR_WRITE_PROTECT, EROFS},
        {ERROR_TOO_MANY_OPEN_FILES, EMFILE}, {ERROR_NOT_SUPPORTED, EINVAL},
    };
    const DWORD error = GetLastError();
    errno = EIO;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].error == error) errno = known[i].code;
}

static bool begins(const wchar_t *text, const wchar_t *prefix)
{
    return wcsncmp(text, prefix, wcslen(prefix)) == 0;
}

bool coli__wide_path(const char *path, coli__wide *out)
{
    wchar_t typed[COLI_WIDE_CHARS];
    if (!MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, typed, COLI_WIDE_CHARS)) {
        errno = GetLastError() == ERROR_INSUFFICIENT_BUFFER ? ENAMETOOLONG : EILSEQ;
        return false;
    }
    if (!*typed || begins(typed, L"\\\\?\\")) { // nothing, or somebody knows what they want
        wcscpy(out->text, typed);
        return true;
    }
    /* Room for the longest prefix is left in front, so that it can be put there. */
    static const wchar_t local[] = L"\\\\?\\", share[] = L"\\\\?\\UNC\\";
    const size_t n_room = wcslen(share);
    wchar_t *full = out->text + n_room;
    const DWORD n = GetFullPathNameW(typed, (DWORD)(COLI_WIDE_CHARS - n_room), full, NULL);
    if (n == 0 || n >= COLI_WIDE_CHARS - n_room) {
        errno = n ? ENAMETOOLONG : ENOENT;
        return false;
    }
    const wchar_t *prefix = L"";
    const size_t n_8_3 = 12; // what a directory may be shorter than a file
    if (n + n_8_3 >= MAX_PATH && !begins(full, L"\\\\.\\")) {
        prefix = begins(full, L"\\\\") ? share : local;
        if (prefix == share) full += 2;
    }
    wmemmove(out->text + wcslen(prefix), full, wcslen(full) + 1);
    wmemcpy(out->text, prefix, wcslen(prefix));
    return true;
}

bool coli__wide_to_utf8(const wchar_t *wide, char *out, size_t cap_bytes)
{
    const int cap = cap_bytes < INT_MAX ? (int)cap_bytes : INT_MAX;
    return WideCharToMultiByte(CP_UTF8, 0, wide, -1, out, cap, NULL, NULL) > 0;
}
