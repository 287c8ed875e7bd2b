/* main.c - qwen36: for people who measure.
 *
 * Results go to stdout, the rest to stderr.  Everything is greedy: what comes out depends on the
 * model and the input alone.  Four kinds of input, one at a time:
 *
 *     --prompt-file   text in, its continuation out
 *     --ids           ids in, ids out
 *     --teacher-force ids in; how likely each was and which one the model would have chosen
 *     --ppl           texts in; the same, summed by text and topic (measure.c)
 *
 * --dump-logits goes with the first three and holds the rows of the ids given, not of those made.
 */
#include <stdlib.h>
#include <string.h>

#include "cache_route.h"
#include "input.h"
#include "measure.h"
#include "open_model.h"
#include "options.h"
#include "progress.h"
#include "system.h"
#include "terminal.h"
#include "trace.h"

enum { DEFAULT_N = 64 };

/* ---- rows ---------------------------------------------------------------------------------- */

/* What one pass over the given ids collects; arrays that nobody asked for are NULL. */
typedef struct pass {
    coli_model_info info;
    const int32_t *ids; // (n)
    uint32_t n;
    float *logits;       // (n, n_vocab)
    int32_t *expert_ids; // (n_layer, n, n_expert_used)
    float *expert_w;     // (n_layer, n, n_expert_used)
    int32_t *argmax;     // (n)
    double nll;          // of ids[1..n-1]
} pass;

static bool on_rows(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                    const int32_t *expert_ids, const float *expert_w)
{
    pass *p = user;
    const size_t n_vocab = p->info.n_vocab, k = p->info.n_expert_used;
    if (p->logits) memcpy(p->logits + pos * n_vocab, logits, n_row * n_vocab * sizeof *logits);
    for (size_t layer = 0; p->expert_ids && layer < p->info.n_layer; layer++) {
        const size_t to = (layer * p->n + pos) * k, from = layer * n_row * k;
        memcpy(p->expert_ids + to, expert_ids + from, n_row * k * sizeof *expert_ids);
        memcpy(p->expert_w + to, expert_w + from, n_row * k * sizeof *expert_w);
    }
    for (uint32_t i = 0; p->argmax && i < n_row; i++) {
        const float *row = logits + i * n_vocab;
        p->argmax[pos + i] = measure_argmax(row, p->info.n_token);
        if (pos + i + 1 < p->n) p->nll += measure_nll(row, p->info.n_vocab, p->ids[pos + i + 1]);
    }
    return app_interrupts() == 0;
}

static int dump(const pass *p, const char *path)
{
    const uint64_t logits_shape[] = {p->n, p->info.n_vocab};
    const uint64_t choice_shape[] = {p->info.n_layer, p->n, p->info.n_expert_used};
    const coli_tensor tensors[] = {
        {"logits", "F32", logits_shape, 2, p->logits},
        {"expert_ids", "I32", choice_shape, 3, p->expert_ids},
        {"expert_w", "F32", choice_shape, 3, p->expert_w},
    };
    const coli_status status = coli_write_safetensors(path, tensors, 3);
    if (status != COLI_OK) return app_fail(status);
    app_note("%s: %u row%s", path, p->n, p->n == 1 ? "" : "s");
    return APP_OK;
}

/* Feed the ids and look at every row. */
static int run_pass(const app_settings *s, app_engine *engine, pass *p)
{
    if (s->dump_logits) {
        p->logits = app_alloc((size_t)p->n * p->info.n_vocab, sizeof *p->logits);
        const size_t n_choice = (size_t)p->info.n_layer * p->n * p->info.n_expert_used;
        p->expert_ids = app_alloc(n_choice, sizeof *p->expert_ids);
        p->expert_w = app_alloc(n_choice, sizeof *p->expert_w);
    }
    coli_status status = COLI_E_CANCELLED;
    if (app_interrupt_session(engine->session) == 0)
        status = coli_session_eval(engine->session, p->ids, p->n, on_rows, p);
    int code = status == COLI_OK ? APP_OK : app_fail(status);
    if (code == APP_OK && s->dump_logits) code = dump(p, s->dump_logits);
    return code;
}

static void finish_pass(pass *p)
{
    free(p->logits);
    free(p->expert_ids);
    free(p->expert_w);
    free(p->argmax);
}

/* ---- continuation -------------------------------------------------------------------------- */

static bool is_stop(const coli_model_info *info, int32_t id)
{
    for (uint32_t i = 0; i < info->n_stop_ids; i++)
        if (info->stop_ids[i] == id) return true;
    return false;
}

/* Greedy tokens from the present logits; with --stop, a stop token is the last one.  made (n_max).
 */
static coli_status continue_greedily(const app_settings *s, app_engine *engine,
                                     const coli_model_info *info, int32_t *made, uint32_t n_max,
                                     coli_result *r)
{
    const coli_sampling greedy = {
        .struct_size = sizeof greedy, .top_p = 1, .repetition_penalty = 1}; // the rest is off at 0
    const uint32_t n_ctx = coli_session_n_ctx(engine->session);
    double first_s = 0;
    while (r->n_generated < n_max && app_interrupts() == 0) {
        int32_t id;
        coli_status status = coli_session_sample(engine->session, &greedy, &id);
        if (status != COLI_OK) return status;
        made[r->n_generated++] = id;
        if (r->n_generated == 1) first_s = app_clock_s();
        r->decode_s = app_clock_s() - first_s;
        if (s->stop && is_stop(info, id)) break;
        if (r->n_generated == n_max || coli_session_pos(engine->session) == n_ctx) break;
        status = coli_session_feed(engine->session, &id, 1);
        if (status != COLI_OK) return status;
    }
    if (r->n_generated > 1 && r->decode_s > 0) r->tok_s = (r->n_generated - 1) / r->decode_s;
    return COLI_OK;
}

static void print_ids(const int32_t *ids, uint32_t n)
{
    putchar('[');
    for (uint32_t i = 0; i < n; i++) printf("%s%d", i ? ", " : "", ids[i]);
    puts("]");
    app_flush();
}

static int print_text(const app_engine *engine, const int32_t *ids, uint32_t n)
{
    coli_text text = {0};
    const coli_status status =
        coli_detokenize(coli_model_tokenizer(engine->model), ids, n, false, &text);
    if (status != COLI_OK) return app_fail(status);
    const coli_piece piece = {.text = text.data, .n_bytes = text.n_bytes};
    app_answer answer = {0};
    app_answer_piece(&answer, &piece);
    app_answer_end(&answer);
    coli_text_free(&text);
    return APP_OK;
}

/* Feed the ids, go on from there, print what was made. */
static int continue_from(const app_settings *s, app_engine *engine, pass *p)
{
    const double start_s = app_clock_s();
    int code = APP_OK;
    coli_result r = {.struct_size = sizeof r, .n_prompt = p->n, .n_prefill = p->n};
    if (s->dump_logits) {
        code = run_pass(s, engine, p);
    } else {
        coli_status status = COLI_E_CANCELLED;
        if (app_interrupt_session(engine->session) == 0)
            status = coli_session_feed(engine->session, p->ids, p->n);
        if (status != COLI_OK) code = app_fail(status);
    }
    if (code != APP_OK) return code;
    r.ttft_s = r.prefill_s = app_clock_s() - start_s;

    const uint32_t room =
        coli_session_n_ctx(engine->session) - coli_session_pos(engine->session) + 1;
    uint32_t n = s->dump_logits ? 0 : DEFAULT_N;
    if (app_given(s, APP_OPT_N)) n = s->n ? s->n : room;
    const bool cut = n > room;
    if (cut) n = room;
    int32_t *made = app_alloc(n ? n : 1, sizeof *made);
    const coli_status status = continue_greedily(s, engine, &p->info, made, n, &r);
    if (status != COLI_OK)
        code = app_fail(status);
    else if (s->prompt_file)
        code = n ? print_text(engine, made, r.n_generated) : APP_OK;
    else
        print_ids(made, r.n_generated);
    app_trace_turn(engine, p->n);
    if (code == APP_OK) app_footer(&r);
    if (code == APP_OK && cut && r.n_generated == room) {
        app_note("stopped: the context of %u tokens is full", coli_session_n_ctx(engine->session));
        if (app_can_grow(engine)) app_hint("--ctx N makes a longer one");
    }
    if (code == APP_OK && app_interrupts()) code = APP_INTERRUPTED;
    free(made);
    return code;
}

/* ---- teacher forcing ----------------------------------------------------------------------- */

static int teacher_force(const app_settings *s, app_engine *engine, pass *p)
{
    p->argmax = app_alloc(p->n, sizeof *p->argmax);
    const double start_s = app_clock_s();
    const int code = run_pass(s, engine, p);
    if (code != APP_OK) return code;
    const double elapsed = app_clock_s() - start_s;
    uint32_t n_same = 0;
    json_t *argmax = json_array();
    for (uint32_t i = 0; i < p->n; i++) {
        if (i + 1 < p->n && p->argmax[i] == p->ids[i + 1]) n_same++;
        json_array_append_new(argmax, json_integer(p->argmax[i]));
    }
    json_t *root = json_object();
    json_object_set_new(root, "ids", json_integer(p->n));
    json_object_set_new(root, "scored", json_integer(p->n - 1));
    json_object_set_new(root, "nll", p->n > 1 ? json_real(p->nll / (p->n - 1)) : json_null());
    json_object_set_new(root, "same", json_integer(n_same));
    json_object_set_new(root, "argmax", argmax);
    app_json_line(root);
    app_note("%u tok in %.2f s · %.1f tok/s", p->n, elapsed, elapsed > 0 ? p->n / elapsed : 0);
    return APP_OK;
}

/* ---- the command --------------------------------------------------------------------------- */

static int read_prompt_ids(const char *path, const app_engine *engine, int32_t **ids, size_t *n)
{
    const coli_tokenizer *tok;
    int code = app_tokenizer(engine, &tok);
    if (code != APP_OK) {
        app_hint("--ids takes ids");
        return code;
    }
    char *text;
    size_t n_bytes;
    code = app_read_all(path, APP_MAX_TEXT, &text, &n_bytes);
    if (code != APP_OK) return code;
    const coli_status status = app_tokenize(tok, text, n_bytes, false, ids, n);
    free(text);
    if (status != COLI_OK) return app_fail(status);
    if (*n > 0) return APP_OK;
    app_error("%s: the text is empty", path);
    return APP_BAD;
}

static int measure_ids(const app_settings *s, app_engine *engine)
{
    pass p = {.info = {.struct_size = sizeof p.info}};
    const coli_status status = coli_model_get_info(engine->model, &p.info);
    if (status != COLI_OK) return app_fail(status);
    int32_t *ids = NULL;
    size_t n = 0;
    const char *path = s->ids ? s->ids : s->teacher_force;
    int code = s->prompt_file ? read_prompt_ids(s->prompt_file, engine, &ids, &n)
                              : app_read_ids(path, p.info.n_vocab, &ids, &n);
    const uint32_t n_ctx = coli_session_n_ctx(engine->session);
    if (code == APP_OK && n > n_ctx) {
        app_error("%s: %zu tokens do not fit the context of %u",
                  s->prompt_file ? s->prompt_file : path, n, n_ctx);
        if (app_can_grow(engine)) app_hint("--ctx N makes a longer one");
        code = APP_FAILED;
    }
    if (code == APP_OK) {
        p.ids = ids;
        p.n = (uint32_t)n;
        code = s->teacher_force ? teacher_force(s, engine, &p) : continue_from(s, engine, &p);
    }
    finish_pass(&p);
    free(ids);
    return code;
}

static int run(const app_settings *s)
{
    const int n_input = !!s->prompt_file + !!s->ids + !!s->teacher_force + !!s->ppl;
    if (n_input != 1)
        return app_usage(NULL, "%s --prompt-file, --ids, --teacher-force and --ppl",
                         n_input ? "give only one of" : "give one of");
    const char *fixed = s->ppl ? "--ppl" : s->teacher_force ? "--teacher-force" : NULL;
    if (s->ppl && s->dump_logits) return app_usage(NULL, "--dump-logits does not go with --ppl");
    if (fixed && s->from[APP_OPT_N] == APP_FROM_COMMAND_LINE) // NGEN may stay set
        return app_usage(NULL, "-n does not go with %s, which makes no tokens", fixed);
    if (fixed && s->stop)
        return app_usage(NULL, "--stop does not go with %s, which makes no tokens", fixed);
    if (fixed && s->trace)
        return app_usage(NULL, "--dump-routing does not go with %s, which makes no tokens", fixed);
    if (s->dump_logits && strcmp(s->dump_logits, "-") == 0)
        return app_usage(NULL, "--dump-logits: a dump is a file, it cannot go to stdout");
    if (s->json && !s->ppl)
        return app_usage(NULL, "--json goes with --ppl; the others print JSON anyway");
    const int bad =
        s->dump_logits ? app_check_out(NULL, "--dump-logits", s->dump_logits, false) : APP_OK;
    if (bad != APP_OK) return bad;
    if (s->dump_logits &&
        app_system_look(s->dump_logits) != APP_PATH_NONE) { // known before hours of work
        app_error("%s: already exists", s->dump_logits);
        return APP_BAD;
    }
    app_engine engine;
    int code = app_open(s, APP_OPEN_SESSION | APP_OPEN_DEVICES | APP_OPEN_TELL, &engine);
    if (code != APP_OK) return code;
    app_banner(&engine);
    code = app_trace_open(s, &engine);
    if (code != APP_OK) {
        app_close(&engine);
        return code;
    }
    code = s->ppl ? measure_perplexity(s, &engine) : measure_ids(s, &engine);
    code = app_trace_close(s, &engine, code);
    app_device_footer(&engine);
    app_store_footer(&engine);
    app_route_footer(engine.model, &engine.route);
    app_close(&engine);
    return code;
}

static const app_command command = {
    .bit = APP_QWEN36,
    .synopsis = "[options] INPUT",
    .summary = "Measure a model of the family qwen36",
    .text = "INPUT is one of --prompt-file, --ids, --teacher-force and --ppl.  Results go to "
            "stdout, the rest to\n"
            "stderr.  Everything is greedy.  Exactly -n tokens are made while they fit the "
            "context, 64 without -n,\n"
            "none with --dump-logits and without -n.  A file named - is standard input.\n",
    .examples = "  qwen36 --prompt-file story.txt -n 100\n"
                "  echo '[1, 85, 2]' | qwen36 --ids - -n 32\n"
                "  qwen36 --ids prompt.json --dump-logits prompt.safetensors\n"
                "  qwen36 --teacher-force answer.json\n"
                "  qwen36 --ppl texts.jsonl --threads 4 --isa avx2\n",
    .run = run,
};

static const app_program program = {
    .name = "qwen36",
    .summary = "measure a model of the family qwen36",
    .commands = &command,
    .n_command = 1,
};

int main(int argc, char **argv)
{
    app_terminal_init(program.name);
    return app_terminal_finish(app_main(&program, argc, argv));
}
