/* cmd_synth.c - `coli synth` and its progress. */
#include <stdio.h>

#include "coli/coli.h"
#include "commands.h"
#include "format_name.h"
#include "open_model.h"
#include "progress.h"
#include "terminal.h"

int cmd_synth(const app_settings *s)
{
    const char *experts = s->experts ? s->experts : "int4";
    const char *trunk = s->trunk ? s->trunk : "int8";
    int code = app_check_out("synth", "OUT", s->args[0], true);
    if (code == APP_OK) code = format_check("synth", s->group, experts, trunk);
    if (code != APP_OK) return code;
    char experts_full[32], trunk_full[32];
    app_progress progress;
    const coli_synth_opts opts = {
        .struct_size = sizeof opts,
        .like = s->like,
        .n_layer = s->layers,
        .d_model = s->hidden,
        .n_expert = s->experts_n,
        .n_expert_used = s->used,
        .d_ff = s->inner,
        .n_vocab = s->vocab,
        .experts = format_name(experts, s->group, experts_full, sizeof experts_full),
        .trunk = format_name(trunk, s->group, trunk_full, sizeof trunk_full),
        .skew = s->skew,
        .seed = s->seed,
        .n_threads = s->threads,
        .progress = app_progress_step,
        .user = &progress,
    };
    app_interrupt_count();
    app_progress_start(&progress, "synth");
    const coli_status status = coli_synth(s->args[0], &opts);
    app_progress_end(&progress, status == COLI_OK);
    app_interrupt_session(NULL);
    if (status != COLI_OK) {
        if (status != COLI_E_EXISTS) return app_fail(status);
        const int failed = app_fail(status);
        app_hint("give another OUT, or remove that one first");
        return failed;
    }
    app_note("%s is complete", s->args[0]);
    return APP_OK;
}
