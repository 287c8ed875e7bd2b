/* options.h - the command line: parse it, explain it, suggest what was meant.
 *
 * `--name value`, `--name=value`, `-n value`, `-nvalue`; `--` ends the options; options may stand
 * before or after the command and its arguments.  The last of a repeated option counts.  What the
 * command line leaves open may come from the environment (settings.c says which variable). */
#ifndef APP_OPTIONS_H
#define APP_OPTIONS_H

#include <stdio.h>

#include "settings.h"

typedef struct app_command {
    const char *name; // "run"; NULL when the program has only this one
    uint32_t bit;     // APP_RUN
    const char *synopsis;
    const char *summary;  // half a line
    const char *text;     // what it does; may be NULL
    const char *examples; // lines to type
    uint32_t min_arg, max_arg;
    int (*run)(const app_settings *settings); // returns the exit code
} app_command;

typedef struct app_program {
    const char *name;
    const char *summary;
    const app_command *commands;
    uint32_t n_command;
} app_program;

/* Parse, answer --help and --version, warn about variables, run the command.  Returns the exit
 * code. */
int app_main(const app_program *program, int argc, char **argv);

/* Settings with the options of a text over them, "--vram 25% --threads 1": those that say which model is
 * run and how.  Words are parted by blanks; quotes hold blanks.  *words (free) is what the new
 * settings point into.  An exit code, with a message printed. */
int app_settings_over(const app_settings *s, const char *text, app_settings *out, char **words);

/* Help texts, as --help prints them.  topic: a command's name, "environment", or NULL for the
 * whole. False when there is no such topic (an error was printed). */
bool app_help(const app_program *program, const char *topic, FILE *out);

/* The command's exit code for a command line that makes no sense: prints "coli: ..." and how to get
 * help. */
__attribute__((format(printf, 2, 3))) int app_usage(const char *command, const char *fmt, ...);

/* The likeliest of the words meant by `word`: feed candidates, then look at `best` (NULL: nothing
 * near). */
typedef struct app_nearest {
    const char *word, *best;
    uint32_t distance;
} app_nearest;
void app_nearest_try(app_nearest *n, const char *candidate);

/* The command of that name, or NULL. */
const app_command *app_command_named(const app_program *program, const char *name);

/* "-" or "--", as the option wants. */
const char *app_dashes(const app_option *option);
/* What an option's values may be, in words, "" when anything goes; brief leaves out "a number
 * from". */
void app_range_text(const app_option *option, bool brief, char *out, size_t cap);

/* The variables that set an option, "A or B"; "" when there is none. */
void app_variables_of(app_option_id id, char *out, size_t cap);
/* Whether --backend's value, a name or a path, means this backend.  NULL means none. */
bool app_is_backend(const char *value, const char *name);

/* A setting's value in words, as `coli info --settings` shows it.  New memory (free). */
char *app_value_text(const app_settings *s, app_option_id id);

#endif
