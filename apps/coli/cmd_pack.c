/* cmd_pack.c - `coli pack` and `coli unpack`: a container as one file, and back. */
#include <string.h>

#include "coli/coli.h"
#include "commands.h"
#include "open_model.h"
#include "progress.h"
#include "terminal.h"

/* One of coli_pack and coli_unpack. */
typedef coli_status (*transport)(const char *from, const char *to, coli_progress_fn progress,
                                 void *user);

static int carry(const app_settings *s, const char *verb, transport fn)
{
    const char *from = s->args[0], *to = s->args[1];
    const bool packs = fn == coli_pack;
    if (strcmp(packs ? to : from, "-") == 0) {
        app_error("%s: a pack is a file, not a stream", verb);
        app_hint("./- is a file of that name");
        return APP_BAD;
    }
    const int bad = app_check_out(verb, packs ? "FILE" : "DIR", to, !packs);
    if (bad != APP_OK) return bad;
    app_progress progress;
    app_interrupt_count();
    app_progress_start(&progress, verb);
    const coli_status status = fn(from, to, app_progress_step, &progress);
    app_progress_end(&progress, status == COLI_OK);
    app_interrupt_session(NULL);
    if (status == COLI_OK) {
        app_note("%s is complete", to);
        return APP_OK;
    }
    if (status != COLI_E_EXISTS) return app_fail_reading(status, from, packs);
    const int code = app_fail(status);
    app_hint("give another name, or remove that one first");
    return code;
}

int cmd_pack(const app_settings *s)
{
    return carry(s, "pack", coli_pack);
}

int cmd_unpack(const app_settings *s)
{
    return carry(s, "unpack", coli_unpack);
}
