/* cmd_convert.c - `coli convert` and its progress. */
#include <stdio.h>
#include <string.h>

#include "coli/coli.h"
#include "commands.h"
#include "format_name.h"
#include "progress.h"
#include "terminal.h"

const char *format_name(const char *format, const char *group, char *out, size_t cap)
{
    if (!format || !group || (strcmp(format, "int4") != 0 && strcmp(format, "int8") != 0))
        return format;
    const bool row = strcmp(group, "row") == 0;
    snprintf(out, cap, "%s-%s%s-f16", format, row ? "" : "g", group);
    return out;
}

int cmd_convert(const app_settings *s)
{
    char experts[32], trunk[32];
    app_progress progress;
    const coli_convert_opts opts = {
        .struct_size = sizeof opts,
        .experts = format_name(s->experts ? s->experts : "int4", s->group, experts, sizeof experts),
        .trunk = format_name(s->trunk ? s->trunk : "int8", s->group, trunk, sizeof trunk),
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
        const int code = app_fail(status);
        if (status == COLI_E_EXISTS) app_hint("give another OUT, or remove that one first");
        return code;
    }
    app_note("%s is complete", s->args[1]);
    return APP_OK;
}
