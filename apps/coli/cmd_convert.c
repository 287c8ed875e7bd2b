/* cmd_convert.c - `coli convert` and its progress. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "coli/coli.h"
#include "commands.h"
#include "format_name.h"
#include "open_model.h"
#include "options.h"
#include "progress.h"
#include "system.h"
#include "terminal.h"

static int check_paths(const char *src, const char *out)
{
    if (!*src) return app_usage("convert", "convert: the path SRC is empty");
    const app_path_kind kind = app_system_look(src);
    if (kind == APP_PATH_DIR || kind == APP_PATH_FILE)
        return app_check_out("convert", "OUT", out, true);
    app_error("%s: %s", src, strerror(kind == APP_PATH_NONE ? errno : ENOTDIR));
    return APP_BAD;
}

typedef struct other_source {
    bool is_container;
    char gguf[256]; // the name of one
} other_source;

static bool look_at_name(void *ctx, const char *name)
{
    other_source *o = ctx;
    const char *end = strrchr(name, '.');
    if (strcmp(name, "model.coli") == 0) o->is_container = true;
    if (end && strcmp(end, ".gguf") == 0) snprintf(o->gguf, sizeof o->gguf, "%s", name);
    return true;
}

/* What a directory without a checkpoint's files is instead. */
static void hint_at_source(const char *src)
{
    other_source o = {.is_container = false};
    app_system_each(src, look_at_name, &o);
    if (o.is_container)
        app_hint("it is a container already; other formats need what it was made of");
    else if (o.gguf[0])
        app_hint("there is a GGUF file in it: give %s/%s as SRC", src, o.gguf);
}

/* A file beside SRC; a recipe may be a name. */
static bool is_unreadable(const char *path)
{
    return path && app_system_look(path) != APP_PATH_NONE && !app_can_read(path);
}

/* What the library says about the members of config.json leaves open whose. */
static int fail_converting(const app_settings *s, coli_status status)
{
    const char *src = s->args[0], *message = coli_error_message();
    if (strncmp(message, "config.json: ", strlen("config.json: ")) == 0) {
        app_error("%s/%s", src, message);
        return app_exit_code(status);
    }
    const bool is_input =
        status == COLI_E_IO && (is_unreadable(s->recipe) || is_unreadable(s->imatrix));
    const bool is_file = app_system_look(src) == APP_PATH_FILE;
    const int code = app_fail_reading(status, src, !is_file);
    return is_input ? APP_BAD : code;
}

/* --group completes the short names of --experts and --trunk; a recipe has names of its own. */
static int check_recipe(const app_settings *s)
{
    if (!s->recipe || !s->group || (s->experts && s->trunk)) return APP_OK;
    return app_usage(
        "convert",
        "convert: --group %s beside --recipe: give both --experts and --trunk, or write "
        "formats in full into the recipe",
        s->group);
}

int cmd_convert(const app_settings *s)
{
    const char *experts = s->experts ? s->experts : "int4";
    const char *trunk = s->trunk ? s->trunk : "int8";
    int code = check_paths(s->args[0], s->args[1]);
    if (code == APP_OK) code = check_recipe(s);
    if (code == APP_OK) code = format_check("convert", s->group, experts, trunk);
    if (code != APP_OK) return code;
    char experts_full[32], trunk_full[32];
    app_progress progress;
    const coli_convert_opts opts = {
        .struct_size = sizeof opts,
        // left open, a GGUF's own formats count
        .experts = s->experts || s->group
                       ? format_name(experts, s->group, experts_full, sizeof experts_full)
                       : NULL,
        .trunk = s->trunk || s->group ? format_name(trunk, s->group, trunk_full, sizeof trunk_full)
                                      : NULL,
        .chat_template = s->chat_template,
        .n_threads = s->threads,
        .progress = app_progress_step,
        .note = app_progress_note,
        .user = &progress,
        .recipe = s->recipe,
        .imatrix = s->imatrix,
    };
    app_interrupt_count();
    app_progress_start(&progress, "convert");
    const coli_status status = coli_convert(s->args[0], s->args[1], &opts);
    app_progress_end(&progress, status == COLI_OK);
    app_interrupt_session(NULL);
    if (status != COLI_OK) {
        const int failed = fail_converting(s, status);
        if (status == COLI_E_NOTFOUND) hint_at_source(s->args[0]);
        // not for OUT.partial, where another conversion may be at work
        if (status == COLI_E_EXISTS && app_system_look(s->args[1]) != APP_PATH_NONE)
            app_hint("give another OUT, or remove that one first");
        return failed;
    }
    app_note("%s is complete", s->args[1]);
    return APP_OK;
}
