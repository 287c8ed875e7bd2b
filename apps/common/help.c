/* help.c - the help texts, out of the tables of settings.c and the commands of a program. */
#include <inttypes.h>
#include <string.h>

#include "coli/coli.h"
#include "options.h"
#include "terminal.h"

enum { HELP_INDENT = 26, HELP_WIDTH = 90 };

const char *app_dashes(const app_option *o)
{
    return o->name[1] ? "--" : "-";
}

const app_command *app_command_named(const app_program *program, const char *name)
{
    for (uint32_t i = 0; i < program->n_command; i++)
        if (program->commands[i].name && strcmp(program->commands[i].name, name) == 0)
            return &program->commands[i];
    return NULL;
}

/* "a, b or c" from "a|b|c". */
static void choices_text(const char *choices, char *out, size_t cap)
{
    size_t n = 0;
    for (const char *c = choices; *c && n + 8 < cap; c++) {
        if (*c == '|')
            n += (size_t)snprintf(out + n, cap - n, strchr(c + 1, '|') ? ", " : " or ");
        else
            out[n++] = *c;
    }
    out[n] = 0;
}

void app_range_text(const app_option *o, bool brief, char *out, size_t cap)
{
    *out = 0;
    switch (o->kind) {
    case APP_U32:
        snprintf(out, cap, "%s%.0f to %.0f", brief ? "" : "a whole number from ", o->min, o->max);
        break;
    case APP_U64:
        snprintf(out, cap, "%s0 to %" PRIu64, brief ? "" : "a whole number from ", UINT64_MAX);
        break;
    case APP_F32:
        snprintf(out, cap, "%s%g to %g", brief ? "" : "a number from ", o->min, o->max);
        break;
    case APP_CHOICE:
        choices_text(o->choices, out, cap);
        break;
    case APP_SET: {
        char choices[96];
        choices_text(o->choices, choices, sizeof choices);
        snprintf(out, cap, "%s of %s%s", brief ? "some" : "one or more", choices,
                 brief ? "" : ", each once, with commas between");
        break;
    }
    case APP_TEXT:
        if (!brief)
            snprintf(out, cap, "%s",
                     strcmp(o->arg, "FORMAT") == 0      ? "a format"
                     : strcmp(o->arg, "NAME|PATH") == 0 ? "a name or a path"
                                                        : "a path");
        break;
    case APP_ORDINALS:
        snprintf(out, cap, brief ? "0 or 0,2" : "numbers of devices like 0 or 0,2");
        break;
    case APP_VRAM:
        snprintf(out, cap, "%s",
                 brief ? "auto, 50%, 8GiB, 12GB, 500MiB; 8 means 8GiB"
                       : "auto, a share like 50%, or a size like 8GiB, 12GB or 500MiB");
        break;
    case APP_BYTES:
        snprintf(out, cap, "%s",
                 brief ? "auto, 8GB, 12GiB, 500MiB; 8 means 8GB"
                       : "auto, or a size like 8GB or 500MiB");
        break;
    case APP_ROWS:
        snprintf(out, cap,
                 brief ? "off, auto, %.0f to %.0f"
                       : "off, auto or a whole number from %.0f to %.0f",
                 o->min, o->max);
        break;
    case APP_FLAG:
    case APP_PAIR:
    case APP_OFF:
        break;
    }
}

/* Print words from `column` on, wrapped and indented. */
static void wrap(FILE *out, const char *text, int column)
{
    bool first = true;
    while (*text) {
        const int n = (int)strcspn(text, " ");
        if (!first && column + 1 + n > HELP_WIDTH) {
            fprintf(out, "\n%*s", HELP_INDENT, "");
            column = HELP_INDENT;
            first = true;
        }
        fprintf(out, "%s%.*s", first ? "" : " ", n, text);
        column += n + !first;
        first = false;
        text += n;
        text += *text == ' ';
    }
    fputc('\n', out);
}

static void option_help(const app_option *o, uint32_t command, FILE *out)
{
    const app_option_id id = (app_option_id)(o - app_options);
    char left[64], range[128], variables[128], right[512];
    const app_other_help *other = app_other_help_of(id, command);
    const char *help = other ? other->help : o->help;
    const char *otherwise = other ? other->otherwise : o->otherwise;
    snprintf(left, sizeof left, "  %s%s%s%s", app_dashes(o), o->name, o->arg ? " " : "",
             o->arg ? o->arg : "");
    app_range_text(o, true, range, sizeof range);
    app_variables_of(id, variables, sizeof variables);
    size_t n = (size_t)snprintf(right, sizeof right, "%s", help);
    const char *separator = " (";
    if (*range) {
        n += (size_t)snprintf(right + n, sizeof right - n, "%s%s", separator, range);
        separator = "; ";
    }
    if (otherwise) {
        n += (size_t)snprintf(right + n, sizeof right - n, "%sdefault: %s", separator, otherwise);
        separator = "; ";
    }
    if (*variables) {
        n += (size_t)snprintf(right + n, sizeof right - n, "%senvironment: %s", separator,
                              variables);
        separator = "; ";
    }
    if (strcmp(separator, "; ") == 0) snprintf(right + n, sizeof right - n, ")");
    fprintf(out, "%-*s", HELP_INDENT, left);
    if (strlen(left) >= HELP_INDENT) fprintf(out, "\n%*s", HELP_INDENT, "");
    wrap(out, right, HELP_INDENT);
}

static void command_help(const app_program *program, const app_command *c, FILE *out)
{
    fprintf(out, "usage: %s %s%s%s\n\n%s.\n", program->name, c->name ? c->name : "",
            c->name ? " " : "", c->synopsis, c->summary);
    if (c->text) fprintf(out, "\n%s", c->text);
    fprintf(out, "\nexamples:\n%s\noptions:\n", c->examples);
    for (uint32_t i = 0; i < APP_N_OPTION; i++)
        if (app_options[i].commands & c->bit) option_help(&app_options[i], c->bit, out);
    fputs("\nAn option without a value is off with `=no`, also where the environment switches\n"
          "it on.\n",
          out);
}

static void environment_help(FILE *out)
{
    fputs("Environment variables.  The command line wins over them; an empty one counts as "
          "absent.\n\n"
          "set an option:\n",
          out);
    for (uint32_t i = 0; i < app_n_variable; i++) {
        if (app_variables[i].option == APP_N_OPTION) continue;
        const app_option *o = &app_options[app_variables[i].option];
        char flag[32];
        snprintf(flag, sizeof flag, "%s%s", app_dashes(o), o->name);
        fprintf(out, "  %-24s%-19s%s\n", app_variables[i].name, flag, app_variables[i].help);
    }
    fputs("\nof the terminal:\n", out);
    for (uint32_t i = 0; i < app_n_system_variable; i++)
        fprintf(out, "  %-24s%s\n", app_system_variables[i].name, app_system_variables[i].help);
    fputs("\nknown, without effect yet (a warning says so when one is set):\n", out);
    for (uint32_t i = 0; i < app_n_variable; i++)
        if (app_variables[i].option == APP_N_OPTION)
            fprintf(out, "  %-24s%s\n", app_variables[i].name, app_variables[i].help);
    fputs("\nOther variables named COLI_*, QT_* or ROUTE_* are warned about: they are likely "
          "mistyped.\n",
          out);
}

static void program_help(const app_program *program, FILE *out)
{
    fprintf(out, "%s %s - %s\n\nusage: %s COMMAND [options]\n\ncommands:\n", program->name,
            coli_version(), program->summary, program->name);
    for (uint32_t i = 0; i < program->n_command; i++)
        fprintf(out, "  %-12s%s\n", program->commands[i].name, program->commands[i].summary);
    fprintf(
        out,
        "\n`%s help COMMAND` shows examples and options, `%s help environment` the variables.\n",
        program->name, program->name);
}

bool app_help(const app_program *program, const char *topic, FILE *out)
{
    if (topic && strcmp(topic, "environment") == 0) {
        environment_help(out);
        return true;
    }
    const app_command *c = topic ? app_command_named(program, topic) : NULL;
    if (!topic && !program->commands[0].name) c = &program->commands[0];
    if (topic && !c) {
        app_error("there is no help about \"%s\"", topic);
        app_nearest n = {.word = topic};
        for (uint32_t i = 0; i < program->n_command; i++)
            if (program->commands[i].name) app_nearest_try(&n, program->commands[i].name);
        app_nearest_try(&n, "environment");
        if (n.best) app_hint("did you mean `%s help %s`?", program->name, n.best);
        return false;
    }
    if (c)
        command_help(program, c, out);
    else
        program_help(program, out);
    if (out == stdout) app_flush();
    return true;
}
