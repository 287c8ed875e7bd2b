/* cmd_verify.c - `coli verify` and its progress. */

#include "coli/coli.h"
#include "commands.h"
#include "open_model.h"
#include "progress.h"
#include "system.h"
#include "terminal.h"

int cmd_verify(const app_settings *s)
{
    app_settings of;
    char dir[APP_MAX_PATH];
    int code = app_model_argument(s, "verify", &of);
    if (code == APP_OK) code = app_model_dir(&of, dir, sizeof dir);
    if (code != APP_OK) return code;
    app_progress progress;
    app_interrupt_count();
    app_progress_start(&progress, "verify");
    const coli_status status = coli_verify(dir, app_progress_step, &progress);
    app_progress_end(&progress, status == COLI_OK);
    app_interrupt_session(NULL);
    if (status != COLI_OK) return app_fail_reading(status, dir, true);
    app_line(stdout, "%s: all is well", dir);
    return APP_OK;
}
