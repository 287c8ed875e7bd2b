/* format_name.c - see format_name.h. */
#include "format_name.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "options.h"
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

static int check_group(const char *command, const char *group, const char *experts,
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

int format_check(const char *command, const char *group, const char *experts, const char *trunk)
{
    int code = check_format(APP_OPT_EXPERTS, experts);
    if (code == APP_OK) code = check_format(APP_OPT_TRUNK, trunk);
    return code == APP_OK ? check_group(command, group, experts, trunk) : code;
}
