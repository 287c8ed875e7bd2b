/* file_windows.c - file_os.h on Windows; and those functions of file.h that are mostly system calls.
 *
 * Files are opened for everybody to read, rename and delete, as elsewhere, and wrapped in
 * descriptors of the C library in binary mode.
 *
 * When is a file on the disk?  After FlushFileBuffers (_commit), which the writer calls in close.
 * Directories cannot be flushed; a rename with MOVEFILE_WRITE_THROUGH returns when it is done. */
#include "file_os.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdio.h> // SEEK_SET
#include <string.h>
#include <windows.h>

#include "wide.h"

/* -- files ------------------------------------------------------------------------------------- */

ptrdiff_t coli__os_read(int fd, void *bytes, size_t n_bytes)
{
    return _read(fd, bytes, (unsigned)(n_bytes < INT_MAX ? n_bytes : INT_MAX));
}

ptrdiff_t coli__os_write(int fd, const void *bytes, size_t n_bytes)
{
    return _write(fd, bytes, (unsigned)(n_bytes < INT_MAX ? n_bytes : INT_MAX));
}

ptrdiff_t coli__os_pread(int fd, void *bytes, size_t n_bytes, uint64_t offset)
{
    OVERLAPPED at = {.Offset = (DWORD)offset, .OffsetHigh = (DWORD)(offset >> 32)};
    DWORD n = 0;
    const DWORD want = n_bytes < (1u << 30) ? (DWORD)n_bytes : 1u << 30;
    if (ReadFile((HANDLE)_get_osfhandle(fd), bytes, want, &n, &at)) return (ptrdiff_t)n;
    const DWORD error = GetLastError();
    if (error == ERROR_HANDLE_EOF) return 0;
    coli__wide_set_errno();
    if (error == ERROR_INVALID_PARAMETER) errno = EINVAL; // an unbuffered read that is not aligned
    return -1;
}

int coli__os_fsync(int fd)
{
    return _commit(fd);
}

int coli__os_close(int fd)
{
    return _close(fd);
}

static int open_wide(const char *path, DWORD access, DWORD how, DWORD flags)
{
    coli__wide wide;
    if (!coli__wide_path(path, &wide)) return -1;
    const DWORD everybody = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    // backup semantics: a directory can be opened, and then be told from a file
    const HANDLE handle =
        CreateFileW(wide.text, access, everybody, NULL, how,
                    FILE_ATTRIBUTE_NORMAL | FILE_FLAG_BACKUP_SEMANTICS | flags, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        coli__wide_set_errno();
        return -1;
    }
    const int fd = _open_osfhandle((intptr_t)handle, _O_BINARY | _O_NOINHERIT);
    if (fd < 0) CloseHandle(handle);
    return fd;
}

static HANDLE handle_of(int fd)
{
    return (HANDLE)_get_osfhandle(fd);
}

int coli__os_open(const char *path)
{
    return open_wide(path, GENERIC_READ, OPEN_EXISTING, 0);
}

int coli__os_open_direct(const char *path)
{
    return open_wide(path, GENERIC_READ, OPEN_EXISTING, FILE_FLAG_NO_BUFFERING);
}

void coli__os_forget(int fd, uint64_t offset, uint64_t n_bytes)
{
    (void)fd, (void)offset, (void)n_bytes; // the system has no such advice
}

int coli__os_create(const char *path)
{
    return open_wide(path, GENERIC_WRITE, CREATE_NEW, 0);
}

int coli__os_open_to_write(const char *path)
{
    return open_wide(path, GENERIC_WRITE, OPEN_EXISTING, 0);
}

int coli__os_truncate(int fd, uint64_t n_bytes)
{
    errno = _chsize_s(fd, (int64_t)n_bytes);
    return errno == 0 ? 0 : -1;
}

/* A file that is open cannot leave its directory by another name; but it may be removed. */
static bool is_removed(int fd)
{
    FILE_STANDARD_INFO info;
    return GetFileInformationByHandleEx(handle_of(fd), FileStandardInfo, &info, sizeof info) &&
           info.DeletePending;
}

/* A lock keeps others off the bytes it is on: it is on one that no file reaches. */
int coli__os_lock(const char *path)
{
    const int fd = open_wide(path, GENERIC_READ | GENERIC_WRITE, OPEN_ALWAYS, 0);
    OVERLAPPED at = {.OffsetHigh = 1u << 30};
    const DWORD how = LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY;
    if (fd < 0) return fd;
    const DWORD error = LockFileEx(handle_of(fd), how, 0, 1, 0, &at) ? 0 : GetLastError();
    const bool is_held = error == ERROR_LOCK_VIOLATION || error == ERROR_IO_PENDING;
    if (!is_held && !is_removed(fd)) return fd;
    _close(fd);
    errno = EWOULDBLOCK;
    return -1;
}

int coli__os_look(const char *path, coli__file_stamp *out)
{
    coli__wide wide;
    WIN32_FILE_ATTRIBUTE_DATA info;
    if (!coli__wide_path(path, &wide)) return -1;
    if (!GetFileAttributesExW(wide.text, GetFileExInfoStandard, &info)) {
        coli__wide_set_errno();
        return -1;
    }
    const FILETIME t = info.ftLastWriteTime;
    *out = (coli__file_stamp){(uint64_t)info.nFileSizeHigh << 32 | info.nFileSizeLow,
                              (int64_t)((uint64_t)t.dwHighDateTime << 32 | t.dwLowDateTime)};
    return 0;
}

int coli__os_disk_free(const char *dir, uint64_t *n_bytes)
{
    coli__wide wide;
    ULARGE_INTEGER n;
    if (!coli__wide_path(dir, &wide)) return -1;
    if (!GetDiskFreeSpaceExW(wide.text, &n, NULL, NULL)) {
        coli__wide_set_errno();
        return -1;
    }
    *n_bytes = n.QuadPart;
    return 0;
}

int coli__os_seek(int fd, uint64_t offset)
{
    return _lseeki64(fd, (int64_t)offset, SEEK_SET) < 0 ? -1 : 0;
}

int coli__os_regular(int fd, uint64_t *n_bytes)
{
    BY_HANDLE_FILE_INFORMATION info;
    if (GetFileType(handle_of(fd)) != FILE_TYPE_DISK) return 0;
    if (!GetFileInformationByHandle(handle_of(fd), &info)) {
        coli__wide_set_errno();
        return -1;
    }
    *n_bytes = (uint64_t)info.nFileSizeHigh << 32 | info.nFileSizeLow;
    return info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY ? 0 : 1;
}

int coli__os_id(int fd, coli__file_id *out)
{
    BY_HANDLE_FILE_INFORMATION info;
    if (!GetFileInformationByHandle(handle_of(fd), &info)) {
        coli__wide_set_errno();
        return -1;
    }
    *out = (coli__file_id){info.dwVolumeSerialNumber,
                           (uint64_t)info.nFileIndexHigh << 32 | info.nFileIndexLow};
    return 0;
}

void *coli__os_map(int fd, size_t n_bytes)
{
    void *data = NULL;
    const HANDLE mapping = CreateFileMappingW(handle_of(fd), NULL, PAGE_READONLY, 0, 0, NULL);
    if (mapping) data = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, n_bytes);
    if (!data) coli__wide_set_errno();
    if (mapping) CloseHandle(mapping); // the view holds it
    return data;
}

void coli__os_unmap(void *data, size_t n_bytes)
{
    (void)n_bytes;
    UnmapViewOfFile(data);
}

/* -- paths and directories --------------------------------------------------------------------- */

bool coli__path_is_slash(char c)
{
    return c == '/' || c == '\\';
}

static DWORD attributes_of(const char *path)
{
    coli__wide wide;
    return coli__wide_path(path, &wide) ? GetFileAttributesW(wide.text) : INVALID_FILE_ATTRIBUTES;
}

bool coli__path_exists(const char *path)
{
    return attributes_of(path) != INVALID_FILE_ATTRIBUTES;
}

bool coli__path_is_dir(const char *path)
{
    const DWORD attributes = attributes_of(path);
    return attributes != INVALID_FILE_ATTRIBUTES && attributes & FILE_ATTRIBUTE_DIRECTORY;
}

void coli__file_remove(const char *path)
{
    coli__wide wide;
    if (coli__wide_path(path, &wide)) DeleteFileW(wide.text);
}

int coli__os_dir_create(const char *path)
{
    coli__wide wide;
    if (!coli__wide_path(path, &wide)) return -1;
    if (CreateDirectoryW(wide.text, NULL)) return 0;
    coli__wide_set_errno();
    return -1;
}

static bool is_dots(const wchar_t *name)
{
    return wcscmp(name, L".") == 0 || wcscmp(name, L"..") == 0;
}

/* Put a name behind a directory's path, also where there is a slash already.  The place, so that it
 * can be taken away again, or NULL when it is too long. */
static wchar_t *append(coli__wide *dir, const wchar_t *name)
{
    wchar_t *end = dir->text + wcslen(dir->text);
    const bool slash = end > dir->text && end[-1] != L'\\';
    if ((size_t)(end - dir->text) + slash + wcslen(name) >= COLI_WIDE_CHARS) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    if (slash) wcscpy(end, L"\\");
    wcscpy(end + slash, name);
    return end;
}

int coli__os_dir_each(const char *path, bool (*fn)(void *ctx, const char *name), void *ctx)
{
    coli__wide wide;
    if (!coli__wide_path(path, &wide) || !append(&wide, L"*")) return -1;
    WIN32_FIND_DATAW entry;
    const HANDLE found = FindFirstFileW(wide.text, &entry);
    bool more = found != INVALID_HANDLE_VALUE;
    DWORD error = more ? ERROR_NO_MORE_FILES : GetLastError();
    while (more) {
        char name[3 * MAX_PATH]; // as long as MAX_PATH units of UTF-16 may get
        coli__wide_to_utf8(entry.cFileName, name, sizeof name);
        if (!is_dots(entry.cFileName) && !fn(ctx, name)) break;
        more = FindNextFileW(found, &entry);
        if (!more) error = GetLastError();
    }
    if (found != INVALID_HANDLE_VALUE) FindClose(found);
    if (error == ERROR_NO_MORE_FILES || error == ERROR_FILE_NOT_FOUND) return 0;
    SetLastError(error);
    coli__wide_set_errno();
    return -1;
}

void coli__dir_remove_empty(const char *path)
{
    coli__wide wide;
    if (coli__wide_path(path, &wide)) RemoveDirectoryW(wide.text);
}

void coli__dir_remove(const char *path)
{
    coli__wide wide;
    WIN32_FIND_DATAW entry;
    if (!coli__wide_path(path, &wide)) return;
    wchar_t *end = append(&wide, L"*");
    const HANDLE found = end ? FindFirstFileW(wide.text, &entry) : INVALID_HANDLE_VALUE;
    if (found != INVALID_HANDLE_VALUE) {
        do {
            *end = 0;
            if (!is_dots(entry.cFileName) && append(&wide, entry.cFileName)) DeleteFileW(wide.text);
        } while (FindNextFileW(found, &entry));
        FindClose(found);
    }
    if (end) *end = 0;
    RemoveDirectoryW(wide.text);
}

/* -- renaming ---------------------------------------------------------------------------------- */

const bool coli__dir_moves_open = false;

static int move_wide(const char *from, const char *to, DWORD how)
{
    coli__wide wide_from, wide_to;
    if (!coli__wide_path(from, &wide_from) || !coli__wide_path(to, &wide_to)) return -1;
    if (MoveFileExW(wide_from.text, wide_to.text, how | MOVEFILE_WRITE_THROUGH)) return 0;
    coli__wide_set_errno();
    return -1;
}

int coli__os_rename(const char *from, const char *to)
{
    return move_wide(from, to, 0);
}

int coli__os_replace(const char *from, const char *to)
{
    return move_wide(from, to, MOVEFILE_REPLACE_EXISTING);
}

coli_status coli__move_for_good(const char *from, const char *to, bool replace, bool *moved)
{
    const coli_status status = coli__move(from, to, replace);
    *moved = status == COLI_OK;
    return status;
}
