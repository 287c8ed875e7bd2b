/* cmd_verify.c - `coli verify` and its progress. */
#include <limits.h>

#include "coli/coli.h"
#include "commands.h"
#include "open_model.h"
#include "options.h"
#include "progress.h"
#include "terminal.h"

int cmd_verify(const app_settings *s)
{
    if (s->n_arg && s->from[APP_OPT_MODEL] == APP_FROM_COMMAND_LINE)
        return app_usage("verify", "verify: give DIR or --model, not both");
    app_settings of = *s;
    if (s->n_arg) of.model = s->args[0];
    char dir[PATH_MAX];
    const int code = app_model_dir(&of, dir, sizeof dir);
    if (code != APP_OK) return code;
    app_progress progress;
    app_interrupt_count();
    app_progress_start(&progress, "verify");
    const coli_status status = coli_verify(dir, app_progress_step, &progress);
    app_progress_end(&progress, status == COLI_OK);
    app_interrupt_session(NULL);
    if (status != COLI_OK) return app_fail(status);
    printf("%s: all is well\n", dir);
    return APP_OK;
}
