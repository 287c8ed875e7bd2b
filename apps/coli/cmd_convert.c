/* cmd_convert.c - `coli convert` and its progress. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "coli/coli.h"
#include "commands.h"
#include "open_model.h"
#include "options.h"
#include "progress.h"
#include "terminal.h"

/* Only these leave the group open. */
static bool takes_group(const char *format)
{
    return strcmp(format, "int4") == 0 || strcmp(format, "int8") == 0;
}

/* "int4" and "--group 32" to the format's full name. */
static const char *format_name(const char *format, const char *group, char *out, size_t cap)
{
    if (!group || !takes_group(format)) return format;
    const bool row = strcmp(group, "row") == 0;
    snprintf(out, cap, "%s-%s%s-f16", format, row ? "" : "g", group);
    return out;
}

/* --group must have something to say, and say what the formats do not say themselves. */
static int check_group(const char *group, const char *experts, const char *trunk)
{
    if (!group) return APP_OK;
    const char *full = strchr(experts, '-') ? experts : strchr(trunk, '-') ? trunk : NULL;
    if (full)
        return app_usage("convert",
                         "convert: --group %s and a format in full, %s: give both formats in full, "
                         "or none",
                         group, full);
    if (!takes_group(experts) && !takes_group(trunk))
        return app_usage("convert",
                         "convert: --group %s is for int4 and int8, found --experts %s --trunk %s",
                         group, experts, trunk);
    return APP_OK;
}

static int check_paths(const char *src, const char *out)
{
    struct stat st;
    if (!*src || !*out)
        return app_usage("convert", "convert: the path %s is empty", *src ? "OUT" : "SRC");
    const int reason = stat(src, &st) == 0 ? S_ISDIR(st.st_mode) ? 0 : ENOTDIR : errno;
    if (reason == 0) return APP_OK;
    app_error("%s: %s", src, strerror(reason));
    return APP_BAD;
}

/* A format by its short name, or in full: int4-g64-f16. */
static bool is_format(const char *text)
{
    static const char *const simple[] = {"int4", "int8", "bf16", "f32"};
    static const char *const groups[] = {"g64", "g32", "row"}, *const scales[] = {"f16", "f32"};
    for (int i = 0; i < 4; i++)
        if (strcmp(text, simple[i]) == 0) return true;
    for (int i = 0; i < 2 * 3 * 2; i++) {
        char full[32];
        snprintf(full, sizeof full, "%s-%s-%s", simple[i / 6], groups[i / 2 % 3], scales[i % 2]);
        if (strcmp(text, full) == 0) return true;
    }
    return false;
}

static int check_format(app_option_id id, const char *format)
{
    if (is_format(format)) return APP_OK;
    app_error("--%s: expected int4, int8, bf16, f32 or, in full, int{4,8}-{g64,g32,row}-{f16,f32}, "
              "found \"%s\"",
              app_options[id].name, format);
    return APP_BAD;
}

/* What the library says about the members of config.json leaves open whose. */
static int fail_converting(coli_status status, const char *src)
{
    const char *message = coli_error_message();
    if (strncmp(message, "config.json: ", strlen("config.json: ")) != 0)
        return app_fail_reading(status, src, true);
    app_error("%s/%s", src, message);
    return app_exit_code(status);
}

int cmd_convert(const app_settings *s)
{
    const char *experts = s->experts ? s->experts : "int4";
    const char *trunk = s->trunk ? s->trunk : "int8";
    int code = check_paths(s->args[0], s->args[1]);
    if (code == APP_OK) code = check_format(APP_OPT_EXPERTS, experts);
    if (code == APP_OK) code = check_format(APP_OPT_TRUNK, trunk);
    if (code == APP_OK) code = check_group(s->group, experts, trunk);
    if (code != APP_OK) return code;
    char experts_full[32], trunk_full[32];
    app_progress progress;
    const coli_convert_opts opts = {
        .struct_size = sizeof opts,
        .experts = format_name(experts, s->group, experts_full, sizeof experts_full),
        .trunk = format_name(trunk, s->group, trunk_full, sizeof trunk_full),
        .chat_template = s->chat_template,
        .n_threads = s->threads,
        .progress = app_progress_step,
        .note = app_progress_note,
        .user = &progress,
    };
    app_interrupt_count();
    app_progress_start(&progress, "convert");
    const coli_status status = coli_convert(s->args[0], s->args[1], &opts);
    app_progress_end(&progress, status == COLI_OK);
    app_interrupt_session(NULL);
    if (status != COLI_OK) {
        const int failed = fail_converting(status, s->args[0]);
        if (status == COLI_E_EXISTS) app_hint("give another OUT, or remove that one first");
        return failed;
    }
    app_note("%s is complete", s->args[1]);
    return APP_OK;
}
