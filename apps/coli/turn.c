/* turn.c - see turn.h. */
#include "turn.h"

#include <stdlib.h>
#include <string.h>

#include "cache_route.h"
#include "input.h"
#include "report.h"
#include "terminal.h"
#include "trace.h"

/* -- an answer that is kept instead of shown --------------------------------------------------- */

typedef struct kept_text {
    char *data;
    size_t n_bytes, cap;
} kept_text;

typedef struct kept {
    kept_text answer, thinking;
} kept;

static void keep_text(kept_text *t, const char *text, size_t n_bytes)
{
    if (n_bytes > t->cap - t->n_bytes) {
        t->cap = 2 * t->cap + n_bytes;
        t->data = app_realloc(t->data, t->cap, 1);
    }
    if (n_bytes > 0) memcpy(t->data + t->n_bytes, text, n_bytes);
    t->n_bytes += n_bytes;
}

static bool keep_piece(void *user, const coli_piece *piece)
{
    kept *k = user;
    keep_text(piece->thinking ? &k->thinking : &k->answer, piece->text, piece->n_bytes);
    return app_interrupts() == 0;
}

/* Say it and show the answer; with --json print it, with its figures, when it is there. */
static coli_status say(coli_chat *chat, const app_engine *engine, const app_settings *s,
                       const char *text, const coli_generate_opts *opts, app_answer *answer,
                       coli_result *r)
{
    coli_status status;
    if (!s->json) {
        status = coli_chat_say(chat, text, opts, app_answer_piece, answer, r);
        app_answer_end(answer);
        return status;
    }
    kept k = {0};
    status = coli_chat_say(chat, text, opts, keep_piece, &k, r);
    if (status == COLI_OK)
        app_json_line(report_turn(engine, r, k.answer.data, k.answer.n_bytes, k.thinking.data,
                                  k.thinking.n_bytes));
    answer->any_answer = k.answer.n_bytes > 0;
    free(k.answer.data);
    free(k.thinking.data);
    return status;
}

/* -- a turn ------------------------------------------------------------------------------------ */

/* How it ended, where that is not simply the end of the answer.  An answer that thinking left no
 * room for is a failure, not an empty success. */
static int explain(const coli_result *r, const app_answer *a, const app_engine *engine,
                   const app_settings *s, const char *full_hint)
{
    const uint32_t n_ctx = coli_session_n_ctx(engine->session);
    const bool only_thinking = !s->no_think && !a->any_answer; // maybe nothing that shows
    switch (r->stop) {
    case COLI_STOP_CANCELLED:
        return APP_INTERRUPTED;
    case COLI_STOP_LENGTH:
        if (only_thinking) break;
        app_note("stopped after %u token%s, as -n says", r->n_generated,
                 r->n_generated == 1 ? "" : "s");
        return APP_OK;
    case COLI_STOP_CONTEXT:
        if (only_thinking) break;
        app_note("stopped: the context of %u tokens is full", n_ctx);
        if (full_hint) app_hint("%s", full_hint);
        return APP_OK;
    case COLI_STOP_TOKEN:
    case COLI_STOP_NONE:
        if (!only_thinking) return APP_OK;
        app_error("the model ended its turn without an answer");
        return APP_FAILED;
    }
    if (r->n_generated == 1)
        app_error("thinking took the one token: there is no answer");
    else
        app_error("thinking took all %u tokens: there is no answer", r->n_generated);
    if (r->stop == COLI_STOP_LENGTH)
        app_hint("a larger -n leaves room, --no-think answers at once");
    else if (full_hint)
        app_hint("%s", full_hint);
    return APP_FAILED;
}

int turn_say(coli_chat *chat, app_engine *engine, const app_settings *s, const char *text,
             const char *full_hint)
{
    coli_sampling sampling;
    coli_status status = app_sampling(s, engine->model, &sampling);
    if (status != COLI_OK) return app_fail(status);
    const coli_generate_opts opts = {
        .struct_size = sizeof opts, .max_tokens = s->n, .sampling = &sampling};
    coli_result result = {.struct_size = sizeof result};
    app_answer answer = {0};
    bool stopped = app_interrupt_session(engine->session) > 0; // since the text was read
    if (!stopped) status = say(chat, engine, s, text, &opts, &answer, &result);
    app_tell_lost(engine);
    app_trace_turn(engine, result.n_prefill);
    stopped |= app_interrupt_count() > 0;       // one that comes a moment late ends nothing else
    if (answer.write_failed) return APP_FAILED; // the end of the program says why
    if (stopped && (status == COLI_OK || status == COLI_E_CANCELLED)) {
        if (result.n_generated) app_footer(&result);
        app_note("stopped");
        return APP_INTERRUPTED;
    }
    if (status != COLI_OK) {
        const int code = app_fail(status);
        if (status == COLI_E_LIMIT && full_hint) app_hint("%s", full_hint);
        return code;
    }
    app_footer(&result);
    app_device_footer(engine);
    app_store_footer(engine);
    app_route_footer(engine->model, &engine->route);
    return explain(&result, &answer, engine, s, full_hint);
}
