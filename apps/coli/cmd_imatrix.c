/* cmd_imatrix.c - `coli imatrix`: texts through a model, and what its matrices read in a file. */
#include <inttypes.h>

#include "coli/coli.h"
#include "commands.h"
#include "open_model.h"
#include "options.h"
#include "progress.h"
#include "system.h"
#include "terminal.h"

enum { FEW_TOKENS = 5000 }; // fewer are an attempt

/* The engine's session becomes as long as the texts need. */
static int make(const app_settings *s, const coli_tasks *tasks, app_engine *engine)
{
    coli_tasks_info info = {.struct_size = sizeof info};
    coli_status status = coli_tasks_get_info(tasks, &info);
    if (status == COLI_OK) status = app_open_session(s, info.n_ctx, engine);
    if (status != COLI_OK) return app_fail(status);
    app_banner(engine);
    if (info.n_token < FEW_TOKENS)
        app_note("%" PRIu64
                 " tokens are far too few to tell which columns matter: 25000 are enough "
                 "for the demo model, a larger one needs more",
                 info.n_token);
    app_progress progress;
    app_interrupt_session(engine->session);
    app_progress_start(&progress, "imatrix");
    progress.unit = "tokens";
    const coli_imatrix_opts opts = {
        .struct_size = sizeof opts, .progress = app_progress_step, .user = &progress};
    status = coli_imatrix_make(engine->session, tasks, s->args[0], &opts);
    app_progress_end(&progress, status == COLI_OK);
    app_interrupt_session(NULL);
    if (status != COLI_OK) return app_fail(status);
    app_note("%s is complete", s->args[0]);
    return APP_OK;
}

int cmd_imatrix(const app_settings *s)
{
    const char *out = s->args[0], *text = s->args[1];
    const int bad = app_check_out("imatrix", "OUT", out, false);
    if (bad != APP_OK) return bad;
    if (app_system_look(out) != APP_PATH_NONE) { // before a model is read for it
        app_error("%s: already exists", out);
        return APP_BAD;
    }
    app_engine engine;
    coli_tasks *tasks = NULL;
    int code = app_open(s, 0, &engine);
    if (code == APP_OK) {
        const coli_tasks_opts opts = {.struct_size = sizeof opts, .every = s->every};
        const coli_status status = coli_tasks_open(text, engine.model, &opts, &tasks);
        if (status != COLI_OK)
            code = app_fail_reading(status, text, app_system_look(text) == APP_PATH_DIR);
    }
    if (code == APP_OK) code = make(s, tasks, &engine);
    app_close(&engine);
    coli_tasks_close(tasks);
    return code;
}
