/* system_windows.c - see system.h.
 *
 * Windows has two of everything that takes text, and the narrow one knows no UTF-8.  So arguments,
 * variables and paths are asked for and handed over in UTF-16.  The console is told that the bytes it
 * gets are UTF-8 and may be escape sequences, and finds itself as it was when the program ends. */
#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>
#include <shellapi.h>

#include "terminal.h"
#include "text.h"
#include "wide.h"

/* ---- start and end ------------------------------------------------------------------------- */

enum { STREAM_BYTES = 1 << 16 };

static struct {
    UINT code_page;
    DWORD out_mode, err_mode;
    bool out_is_console, err_is_console;
} console_before;

static HANDLE handle_of(FILE *stream)
{
    return (HANDLE)_get_osfhandle(_fileno(stream));
}

static void restore_console(void)
{
    if (console_before.code_page) SetConsoleOutputCP(console_before.code_page);
    if (console_before.out_is_console) SetConsoleMode(handle_of(stdout), console_before.out_mode);
    if (console_before.err_is_console) SetConsoleMode(handle_of(stderr), console_before.err_mode);
}

void app_system_start(void)
{
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
    _setmode(_fileno(stderr), _O_BINARY);
    // a character whose bytes come one by one is none to a console: texts are written as a whole
    setvbuf(stdout, NULL, _IOFBF, STREAM_BYTES);
    setvbuf(stderr, NULL, _IOFBF, STREAM_BYTES);
    console_before.out_is_console = GetConsoleMode(handle_of(stdout), &console_before.out_mode);
    console_before.err_is_console = GetConsoleMode(handle_of(stderr), &console_before.err_mode);
    console_before.code_page = GetConsoleOutputCP(); // 0: there is no console
    if (console_before.code_page) SetConsoleOutputCP(CP_UTF8);
    atexit(restore_console);
}

void app_system_end_without_reader(void) {}

/* ---- arguments and variables --------------------------------------------------------------- */

static char *utf8_of(const wchar_t *wide) // new memory
{
    const size_t cap = 3 * wcslen(wide) + 1;
    char *text = app_alloc(cap, 1);
    coli__wide_to_utf8(wide, text, cap);
    return text;
}

char **app_system_args(int *argc, char **argv)
{
    int n = 0;
    wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), &n);
    if (!wide || n < 1) return argv;
    char **args = app_alloc((size_t)n + 1, sizeof *args);
    for (int i = 0; i < n; i++) args[i] = utf8_of(wide[i]);
    LocalFree(wide);
    *argc = n;
    return args; // for as long as the process runs
}

char **app_system_environ(void)
{
    static char **variables; // for as long as the process runs
    if (variables) return variables;
    wchar_t *all = GetEnvironmentStringsW();
    size_t n = 0;
    for (const wchar_t *at = all; at && *at; at += wcslen(at) + 1) n++;
    variables = app_alloc(n + 1, sizeof *variables);
    n = 0;
    for (const wchar_t *at = all; at && *at; at += wcslen(at) + 1) variables[n++] = utf8_of(at);
    if (all) FreeEnvironmentStringsW(all);
    return variables;
}

const char *app_system_getenv(const char *name)
{
    const size_t n = strlen(name);
    for (char **entry = app_system_environ(); *entry; entry++)
        if (_strnicmp(*entry, name, n) == 0 && (*entry)[n] == '=') return *entry + n + 1;
    return NULL;
}

/* ---- Ctrl-C -------------------------------------------------------------------------------- */

static void (*on_interrupt)(void);

static BOOL WINAPI interrupted(DWORD event) // on a thread of its own
{
    if (event != CTRL_C_EVENT && event != CTRL_BREAK_EVENT) return FALSE;
    on_interrupt();
    return TRUE;
}

void app_system_on_interrupt(void (*fn)(void))
{
    on_interrupt = fn;
    SetConsoleCtrlHandler(interrupted, TRUE);
}

void app_system_end(const char *last_words, int code)
{
    DWORD n;
    WriteFile(GetStdHandle(STD_ERROR_HANDLE), last_words, (DWORD)strlen(last_words), &n, NULL);
    restore_console();
    // not exit: another thread may hold any lock of the C library
    TerminateProcess(GetCurrentProcess(), (UINT)code);
    abort(); // not reached
}

/* ---- terminal ------------------------------------------------------------------------------ */

bool app_system_is_terminal(FILE *stream)
{
    DWORD mode;
    return GetConsoleMode(handle_of(stream), &mode); // _isatty says yes to NUL, too
}

bool app_system_takes_escapes(FILE *stream)
{
    DWORD mode;
    const HANDLE console = handle_of(stream);
    if (!GetConsoleMode(console, &mode)) return false;
    // Windows 10 and later know it; earlier ones refuse
    return SetConsoleMode(console,
                          mode | ENABLE_PROCESSED_OUTPUT | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
}

/* ---- files --------------------------------------------------------------------------------- */

app_path_kind app_system_look(const char *path)
{
    coli__wide wide;
    if (!coli__wide_path(path, &wide)) return APP_PATH_NONE;
    const DWORD attributes = GetFileAttributesW(wide.text);
    if (attributes == INVALID_FILE_ATTRIBUTES) {
        coli__wide_set_errno();
        return APP_PATH_NONE;
    }
    if (attributes & FILE_ATTRIBUTE_DIRECTORY) return APP_PATH_DIR;
    return attributes & FILE_ATTRIBUTE_DEVICE ? APP_PATH_OTHER : APP_PATH_FILE;
}

bool app_system_is_slash(char c)
{
    return c == '/' || c == '\\';
}

FILE *app_system_open(const char *path)
{
    coli__wide wide;
    return coli__wide_path(path, &wide) ? _wfopen(wide.text, L"rb") : NULL;
}

FILE *app_system_create(const char *path)
{
    coli__wide wide;
    return coli__wide_path(path, &wide) ? _wfopen(wide.text, L"wb") : NULL;
}

bool app_system_each(const char *dir, bool (*fn)(void *ctx, const char *name), void *ctx)
{
    char *pattern = app_format("%s/*", dir);
    coli__wide wide;
    WIN32_FIND_DATAW entry;
    HANDLE found = INVALID_HANDLE_VALUE;
    if (coli__wide_path(pattern, &wide)) found = FindFirstFileW(wide.text, &entry);
    free(pattern);
    if (found == INVALID_HANDLE_VALUE) return false;
    char name[3 * MAX_PATH]; // as long as MAX_PATH units of UTF-16 may get
    do coli__wide_to_utf8(entry.cFileName, name, sizeof name);
    while (fn(ctx, name) && FindNextFileW(found, &entry));
    FindClose(found);
    return true;
}

bool app_system_beside_program(const char *relative, char *out, size_t cap)
{
    coli__wide wide;
    const DWORD n = GetModuleFileNameW(NULL, wide.text, COLI_WIDE_CHARS);
    if (n == 0 || n >= COLI_WIDE_CHARS || !coli__wide_to_utf8(wide.text, out, cap)) return false;
    char *slash = strrchr(out, '\\');
    if (!slash) return false;
    *slash = 0;
    char *joined = app_format("%s\\%s", out, relative);
    const bool there = coli__wide_path(joined, &wide) && // the whole path, without ".."
                       GetFileAttributesW(wide.text) != INVALID_FILE_ATTRIBUTES;
    free(joined);
    return there && coli__wide_to_utf8(wide.text, out, cap);
}

/* ---- who and where ------------------------------------------------------------------------- */

bool app_system_personal(size_t i, app_personal *kind, char *out, size_t cap)
{
    static const struct {
        app_personal kind;
        const char *variable;
    } all[] = {{APP_HOME, "USERPROFILE"},  {APP_HOME, "HOME"},       {APP_USER, "USERNAME"},
               {APP_HOST, "COMPUTERNAME"}, {APP_HOST, "USERDOMAIN"}, {APP_HOST, "USERDNSDOMAIN"}};
    if (i >= sizeof all / sizeof *all) return false;
    const char *value = app_system_getenv(all[i].variable);
    *kind = all[i].kind;
    if (!value || (size_t)snprintf(out, cap, "%s", value) >= cap) *out = 0;
    return true;
}

/* The console remembers lines itself. */
bool app_system_state_dir(char *out, size_t cap)
{
    (void)out, (void)cap;
    return false;
}

/* Rights of Windows are more than a bit; this one is the common reason. */
char *app_system_last_slash(char *path)
{
    char *slash = strrchr(path, '/'), *back = strrchr(path, '\\');
    return !slash || (back && back > slash) ? back : slash;
}

bool app_system_may_write(const char *dir)
{
    coli__wide wide;
    if (!coli__wide_path(dir, &wide)) return false;
    wchar_t path[MAX_PATH];
    if (GetTempFileNameW(wide.text, L"col", 0, path) == 0) return false; // else it made the file
    DeleteFileW(path);
    return true;
}

bool app_system_is_utf8(void)
{
    return true; // app_system_start told the console
}
