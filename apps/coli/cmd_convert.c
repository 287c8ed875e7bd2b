/* cmd_convert.c - `coli convert` and its progress. */
#include <stdio.h>
#include <string.h>

#include "coli/coli.h"
#include "commands.h"
#include "format_name.h"
#include "options.h"
#include "progress.h"
#include "terminal.h"

/* Only these leave the group open. */
static bool takes_group(const char *format)
{
    return strcmp(format, "int4") == 0 || strcmp(format, "int8") == 0;
}

const char *format_name(const char *format, const char *group, char *out, size_t cap)
{
    if (!group || !takes_group(format)) return format;
    const bool row = strcmp(group, "row") == 0;
    snprintf(out, cap, "%s-%s%s-f16", format, row ? "" : "g", group);
    return out;
}

int format_check_group(const char *command, const char *group, const char *experts,
                       const char *trunk)
{
    if (!group) return APP_OK;
    const char *full = strchr(experts, '-') ? experts : strchr(trunk, '-') ? trunk : NULL;
    if (full)
        return app_usage(command,
                         "%s: --group %s and a format in full, %s: give both formats in full, "
                         "or none",
                         command, group, full);
    if (!takes_group(experts) && !takes_group(trunk))
        return app_usage(command,
                         "%s: --group %s is for int4 and int8, found --experts %s --trunk %s",
                         command, group, experts, trunk);
    return APP_OK;
}

int cmd_convert(const app_settings *s)
{
    const char *experts = s->experts ? s->experts : "int4";
    const char *trunk = s->trunk ? s->trunk : "int8";
    const int code = format_check_group("convert", s->group, experts, trunk);
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
        const int failed = app_fail(status);
        if (status == COLI_E_EXISTS) app_hint("give another OUT, or remove that one first");
        return failed;
    }
    app_note("%s is complete", s->args[1]);
    return APP_OK;
}
