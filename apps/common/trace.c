/* trace.c - see trace.h. */
#include "trace.h"

#include "terminal.h"

int app_trace_open(const app_settings *s, app_engine *engine)
{
    if (!s->trace) return APP_OK;
    const coli_status status = coli_recorder_create(engine->session, s->trace, &engine->recorder);
    if (status == COLI_OK) return APP_OK;
    const int code = app_fail(status);
    return status == COLI_E_EXISTS ? APP_BAD : code;
}

void app_trace_turn(app_engine *engine, uint32_t n_prompt)
{
    const uint32_t n_row = coli_recorder_n_row(engine->recorder);
    if (n_row == 0) return; // nothing was fed, or nobody records
    const coli_status status = coli_recorder_add(engine->recorder, NULL, NULL, n_prompt);
    if (n_row <= n_prompt)
        app_note("nothing of this answer was recorded: its only token was not computed with");
    else if (status != COLI_OK)
        app_error("the trace lacks this turn: %s", coli_error_message());
}

int app_trace_close(const app_settings *s, app_engine *engine, int code)
{
    coli_recorder *recorder = engine->recorder;
    engine->recorder = NULL;
    const uint32_t n = coli_recorder_n_prompt(recorder);
    const coli_status status = n > 0 ? coli_recorder_write(recorder) : COLI_OK;
    coli_recorder_destroy(recorder);
    if (status == COLI_OK) {
        if (n > 0) app_note("%s: the routing of %u prompt%s", s->trace, n, n == 1 ? "" : "s");
        return code;
    }
    const int failed = app_fail(status);
    return code == APP_OK ? failed : code;
}
