/* cmd_verify.c - `coli verify`, of a container or a pack, and its progress. */

#include "coli/coli.h"
#include "commands.h"
#include "open_model.h"
#include "progress.h"
#include "system.h"
#include "terminal.h"

int cmd_verify(const app_settings *s)
{
    app_settings of;
    char path[APP_MAX_PATH];
    int code = app_model_argument(s, "verify", &of);
    if (code == APP_OK) code = app_model_dir(&of, path, sizeof path);
    if (code != APP_OK) return code;
    const bool is_pack = app_system_look(path) == APP_PATH_FILE;
    app_progress progress;
    app_interrupt_count();
    app_progress_start(&progress, "verify");
    const coli_status status = is_pack ? coli_pack_verify(path, app_progress_step, &progress)
                                       : coli_verify(path, app_progress_step, &progress);
    app_progress_end(&progress, status == COLI_OK);
    app_interrupt_session(NULL);
    if (status != COLI_OK)
        return is_pack ? app_fail_reading(status, path, false)
                       : app_fail_opening(&of, status, path);
    app_line(stdout, "%s: all is well", path);
    return APP_OK;
}
