/* system.h - what the programs need from the system: system_posix.c, system_windows.c.
 *
 * Text is UTF-8: arguments, variables, paths, what a terminal shows. */
#ifndef APP_SYSTEM_H
#define APP_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { APP_MAX_PATH = 32768 }; // bytes of a path, its NUL included; no system takes longer ones

/* First thing in main: standard streams are there and take bytes as they are; text is UTF-8. */
void app_system_start(void);
/* main's arguments. */
char **app_system_args(int *argc, char **argv);
/* "NAME=value" of every variable, NULL at the end; and one value, or NULL.  A program that runs with
 * more rights than the one who started it has takes no advice from his variables, one of which names
 * code to run: then no variable has a value. */
char **app_system_environ(void);
const char *app_system_getenv(const char *name);

/* From now on Ctrl-C calls fn instead of ending the process.  On any thread and at any moment: fn may
 * do what a signal handler may. */
void app_system_on_interrupt(void (*fn)(void));
/* From fn: end the process now, with this text on stderr. */
_Noreturn void app_system_end(const char *last_words, int code);
/* End as the reader of our stdout, which went away, expects it; returns where nobody expects
 * anything. */
void app_system_end_without_reader(void);

/* A person is at the other end; and escape sequences do there what they should. */
bool app_system_is_terminal(FILE *stream);
bool app_system_takes_escapes(FILE *stream);

/* Texts that tell who is at the computer, and which it is: the i-th, homes before names; false behind the
 * last.  One that is not known, or does not fit, is "". */
typedef enum app_personal { APP_HOME, APP_USER, APP_HOST } app_personal;
enum { APP_MAX_NAME = 512 };
bool app_system_personal(size_t i, app_personal *kind, char *out, size_t cap);

/* The directory below which programs remember things for the person; false: nowhere. */
bool app_system_state_dir(char *out, size_t cap);
/* The last slash of a path, of those that this system has; NULL: none. */
char *app_system_last_slash(char *path);
/* Whether files can be made in a directory: one is, and removed.  Rights alone do not tell. */
bool app_system_may_write(const char *dir);
/* Whether what a terminal shows and takes is UTF-8. */
bool app_system_is_utf8(void);

typedef enum app_path_kind {
    APP_PATH_NONE,
    APP_PATH_FILE,
    APP_PATH_DIR,
    APP_PATH_OTHER
} app_path_kind;

app_path_kind app_system_look(const char *path); // NONE sets errno
bool app_system_is_slash(char c);                // separates the components of a path
FILE *app_system_open(const char *path);         // for reading; NULL and errno
FILE *app_system_create(const char *path);       // for writing, empty; NULL and errno
/* fn for every name in a directory until it says false; false when it cannot be listed. */
bool app_system_each(const char *dir, bool (*fn)(void *ctx, const char *name), void *ctx);
/* The whole path, without "..", of what stands at `relative` to the directory of the running program.
 * False when there is nothing, or the system does not tell. */
bool app_system_beside_program(const char *relative, char *out, size_t cap);

#endif
