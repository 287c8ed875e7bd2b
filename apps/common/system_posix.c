/* system_posix.c - see system.h. */
#include "system.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

/* ---- start and end ------------------------------------------------------------------------- */

/* The first file opened would take a closed stream's number, and messages would go into it.
 * stdin is empty then, stderr swallows; stdout is not writable, so that losing results is an error.
 */
static void open_standard_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY); // the lowest free one: fd
}

void app_system_start(void)
{
    open_standard_streams();
    /* Text is UTF-8 whatever the user's language; numbers keep their decimal point. */
    if (!setlocale(LC_CTYPE, "C.UTF-8") && !setlocale(LC_CTYPE, "en_US.UTF-8"))
        setlocale(LC_CTYPE, "");
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, NULL); // a write to a closed pipe fails, and the work ends in order
    sigaction(SIGXFSZ, &ignore, NULL); // so does one past the limit on file sizes
}

void app_system_end_without_reader(void)
{
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
}

/* ---- arguments and variables --------------------------------------------------------------- */

char **app_system_args(int *argc, char **argv)
{
    (void)argc;
    return argv;
}

char **app_system_environ(void)
{
    return environ;
}

const char *app_system_getenv(const char *name)
{
    return secure_getenv(name);
}

/* ---- Ctrl-C -------------------------------------------------------------------------------- */

static void (*on_interrupt)(void);

static void interrupted(int signal_number)
{
    (void)signal_number;
    const int saved = errno;
    on_interrupt();
    errno = saved;
}

void app_system_on_interrupt(void (*fn)(void))
{
    on_interrupt = fn;
    struct sigaction action = {.sa_handler = interrupted, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void app_system_end(const char *last_words, int code)
{
    if (write(STDERR_FILENO, last_words, strlen(last_words)) < 0) _exit(code);
    _exit(code);
}

/* ---- terminal ------------------------------------------------------------------------------ */

bool app_system_is_terminal(FILE *stream)
{
    return isatty(fileno(stream));
}

bool app_system_takes_escapes(FILE *stream)
{
    const char *term = secure_getenv("TERM");
    return isatty(fileno(stream)) && term && strcmp(term, "dumb") != 0;
}

/* ---- files --------------------------------------------------------------------------------- */

app_path_kind app_system_look(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return APP_PATH_NONE;
    return S_ISREG(st.st_mode)   ? APP_PATH_FILE
           : S_ISDIR(st.st_mode) ? APP_PATH_DIR
                                 : APP_PATH_OTHER;
}

bool app_system_is_slash(char c)
{
    return c == '/';
}

FILE *app_system_open(const char *path)
{
    return fopen(path, "rb");
}

FILE *app_system_create(const char *path)
{
    return fopen(path, "wb");
}

bool app_system_each(const char *path, bool (*fn)(void *ctx, const char *name), void *ctx)
{
    DIR *dir = opendir(path);
    if (!dir) return false;
    const struct dirent *entry;
    while ((entry = readdir(dir)) && fn(ctx, entry->d_name)) {
    }
    closedir(dir);
    return true;
}

bool app_system_beside_program(const char *relative, char *out, size_t cap)
{
    char self[PATH_MAX], joined[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return false;
    self[n] = 0;
    char *slash = strrchr(self, '/');
    if (!slash) return false;
    *slash = 0;
    if ((size_t)snprintf(joined, sizeof joined, "%s/%s", self, relative) >= sizeof joined)
        return false;
    char *clean = realpath(joined, NULL); // no "../.." in messages
    const bool fits = clean && (size_t)snprintf(out, cap, "%s", clean) < cap;
    free(clean);
    return fits;
}

/* ---- who and where ------------------------------------------------------------------------- */

/* "Alice Example,,," is a name, too. */
static const char *full_name(const struct passwd *who, char *out, size_t cap)
{
    if (!who || !who->pw_gecos) return "";
    snprintf(out, cap, "%.*s", (int)strcspn(who->pw_gecos, ","), who->pw_gecos);
    return out;
}

bool app_system_personal(size_t i, app_personal *kind, char *out, size_t cap)
{
    static const app_personal kinds[] = {APP_HOME, APP_HOME, APP_USER, APP_USER,
                                         APP_USER, APP_USER, APP_HOST, APP_HOST};
    if (i >= sizeof kinds / sizeof *kinds) return false;
    char host[256] = "", name[256];
    gethostname(host, sizeof host - 1);
    const struct passwd *who = getpwuid(getuid());
    const char *texts[sizeof kinds / sizeof *kinds] = {secure_getenv("HOME"),
                                                       who ? who->pw_dir : "",
                                                       secure_getenv("USER"),
                                                       secure_getenv("LOGNAME"),
                                                       who ? who->pw_name : "",
                                                       full_name(who, name, sizeof name),
                                                       host,
                                                       host};
    *kind = kinds[i];
    if (i == 7) host[strcspn(host, ".")] = 0; // without its domain
    const bool root = kinds[i] == APP_HOME && texts[i] && strcmp(texts[i], "/") == 0;
    if (!texts[i] || root || (size_t)snprintf(out, cap, "%s", texts[i]) >= cap) *out = 0;
    return true;
}

bool app_system_state_dir(char *out, size_t cap)
{
    const char *state = secure_getenv("XDG_STATE_HOME"), *home = secure_getenv("HOME");
    if (state && state[0] == '/') return (size_t)snprintf(out, cap, "%s", state) < cap;
    return home && home[0] == '/' && (size_t)snprintf(out, cap, "%s/.local/state", home) < cap;
}

char *app_system_last_slash(char *path)
{
    return strrchr(path, '/');
}

bool app_system_may_write(const char *dir)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s/.coli-XXXXXX", dir);
    const int fd = n > 0 && (size_t)n < sizeof path ? mkstemp(path) : -1;
    if (fd < 0) return false;
    close(fd);
    unlink(path);
    return true;
}

bool app_system_is_utf8(void)
{
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}
