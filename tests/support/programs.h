/* programs.h - start the programs of build/bin as a person or a script would: with arguments, an
 * input and an environment of their own; look at what came out and how it ended. */
#ifndef COLI_TEST_PROGRAMS_H
#define COLI_TEST_PROGRAMS_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "t.h"

#define MODEL TEST_MODELS "/hummingbird"

/* Programs of another processor are started by an emulator: `"path", "argument",` of it. */
#ifndef TEST_EMULATOR
#define TEST_EMULATOR
#endif

enum { MAX_ARG = 24, MAX_ENV = 12, TIMEOUT_S = 120 };

static char scratch[64]; // a directory of this run

typedef struct outcome {
    int code;        // exit code, or 256 + the signal
    char *out, *err; // NUL-terminated
    size_t n_out, n_err;
} outcome;

static inline void forget(outcome *o)
{
    free(o->out);
    free(o->err);
    *o = (outcome){0};
}

static inline char *slurp(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *n = (size_t)ftell(file);
    rewind(file);
    char *text = calloc(*n + 1, 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, *n, file), *n);
    fclose(file);
    return text;
}

/* The path of a file in the scratch directory; the same name gives the same string. */
static inline const char *scratch_path(const char *name)
{
    static char paths[32][128];
    char path[128];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    int i = 0;
    while (paths[i][0] && strcmp(paths[i], path) != 0) i++;
    assert_true(i < 32);
    return strcpy(paths[i], path);
}

/* In the child: the program with arguments and an environment that holds nothing but `env`. */
static inline void become(const char *program, const char *const *args, const char *const *env)
{
    char path[512], home[128], *argv[MAX_ARG + 6] = {TEST_EMULATOR path}, *envp[MAX_ENV + 6];
    snprintf(path, sizeof path, "%s/%s", TEST_BIN, program);
    snprintf(home, sizeof home, "HOME=%s", scratch);
    int n = 0;
    while (argv[n] != path) n++;
    for (int i = 0; i < MAX_ARG && args[i]; i++) argv[++n] = (char *)(uintptr_t)args[i];
    n = 0;
    envp[n++] = home;
    envp[n++] = (char *)(uintptr_t) "TERM=xterm";
    for (int i = 0; env && env[i] && i < MAX_ENV; i++) envp[n++] = (char *)(uintptr_t)env[i];
    static const char *const passed[] = {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"};
    for (int i = 0; i < 3; i++) { // sanitizers are told apart by these
        const char *value = getenv(passed[i]);
        static char text[3][256];
        if (value)
            envp[n++] = (snprintf(text[i], sizeof text[i], "%s=%s", passed[i], value), text[i]);
    }
    envp[n] = NULL;
    execve(argv[0], argv, envp);
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    _exit(127);
}

static inline int exit_code(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

static inline void open_as(int fd, const char *path, int flags)
{
    const int file = open(path, flags, 0600);
    if (file < 0 || dup2(file, fd) != fd) _exit(126);
    close(file);
}

/* The program with the file `in` as its standard input. */
static inline outcome run_from(const char *program, const char *in, const char *const *env,
                               const char *const *args)
{
    const char *out = scratch_path("out"), *err = scratch_path("err");
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(TIMEOUT_S);
        open_as(0, in, O_RDONLY);
        open_as(1, out, O_WRONLY | O_CREAT | O_TRUNC);
        open_as(2, err, O_WRONLY | O_CREAT | O_TRUNC);
        become(program, args, env);
    }
    outcome o = {.code = exit_code(pid)};
    o.out = slurp(out, &o.n_out);
    o.err = slurp(err, &o.n_err);
    return o;
}

static inline void spill(const char *path, const char *text, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static inline outcome run_with(const char *program, const char *input, size_t n_input,
                               const char *const *env, const char *const *args)
{
    spill(scratch_path("in"), input, n_input);
    return run_from(program, scratch_path("in"), env, args);
}

#define LIST(...)                                                                                  \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define RUN(program, input, ...) run_with(program, input, strlen(input), NULL, LIST(__VA_ARGS__))

static inline void show(const outcome *o)
{
    print_error("exit code %d\n--- stdout\n%s\n--- stderr\n%s\n", o->code, o->out, o->err);
}

#define EXPECT(o, condition)                                                                       \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("not true: %s\n", #condition);                                             \
            show(&(o));                                                                            \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)

static inline bool has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

/* `N tok · T tok/s · prefill P tok · TTFT S s`, the only such line; *prefill gets P. */
static inline bool has_footer(const char *text, unsigned *prefill)
{
    const char *at = strstr(text, " tok · ");
    if (!at) return false;
    while (at > text && at[-1] != '\n' && at[-1] != 'm') at--;
    unsigned n, p;
    double speed, ttft;
    char end[8] = "";
    const bool ok = sscanf(at, "%u tok · %lf tok/s · prefill %u tok · TTFT %lf %7[s]", &n, &speed,
                           &p, &ttft, end) == 5;
    if (ok && prefill) *prefill = p;
    return ok;
}

static inline int make_scratch(void **state)
{
    (void)state;
    snprintf(scratch, sizeof scratch, "/tmp/coli-cli-XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static inline int remove_scratch(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", scratch);
    return system(command);
}

#endif
