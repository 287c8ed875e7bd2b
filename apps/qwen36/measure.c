/* measure.c - see measure.h.
 *
 * Perplexity.  Each text is tokenised as it stands (special tokens recognised, nothing added) and
 * fed from an empty session.  The first token has nothing before it and is not scored; nll is the
 * mean over scored tokens, perplexity its exponential.  Means over a topic and over all are by
 * token. */
#include "measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "progress.h"
#include "terminal.h"
#include "text.h"

double measure_nll(const float *logits, uint32_t n_vocab, int32_t id)
{
    double top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++)
        if ((double)logits[i] > top) top = (double)logits[i];
    for (uint32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - top);
    return top + log(sum) - (double)logits[id];
}

int32_t measure_argmax(const float *logits, uint32_t n_token)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n_token; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* A sum over scored tokens, of a text, a topic or all. */
typedef struct score {
    char *topic; // owned; NULL for all
    double nll;
    uint64_t n_token, n_text;
} score;

static void add_score(score *to, const score *what)
{
    to->nll += what->nll;
    to->n_token += what->n_token;
    to->n_text++;
}

static double mean(const score *s)
{
    return s->n_token ? s->nll / (double)s->n_token : 0;
}

typedef struct scores {
    score all;
    score *topics;
    size_t n_topic;
    json_t *texts; // for --json; NULL otherwise
} scores;

static score *topic_of(scores *all, const char *topic)
{
    for (size_t i = 0; i < all->n_topic; i++)
        if (strcmp(all->topics[i].topic, topic) == 0) return &all->topics[i];
    all->topics = app_realloc(all->topics, all->n_topic + 1, sizeof *all->topics);
    score *fresh = &all->topics[all->n_topic++];
    *fresh = (score){.topic = app_alloc(strlen(topic) + 1, 1)};
    memcpy(fresh->topic, topic, strlen(topic));
    return fresh;
}

typedef struct text_rows {
    const int32_t *ids;
    uint32_t n, n_vocab;
    double nll;
} text_rows;

static bool on_rows(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                    const int32_t *expert_ids, const float *expert_w)
{
    text_rows *t = user;
    (void)expert_ids;
    (void)expert_w;
    for (uint32_t i = 0; i < n_row && pos + i + 1 < t->n; i++)
        t->nll += measure_nll(logits + (size_t)i * t->n_vocab, t->n_vocab, t->ids[pos + i + 1]);
    return app_interrupts() == 0;
}

static coli_status score_text(app_engine *engine, uint32_t n_vocab, const json_t *text, score *out)
{
    *out = (score){0};
    int32_t *ids;
    size_t n;
    coli_status status = app_tokenize(coli_model_tokenizer(engine->model), json_string_value(text),
                                      json_string_length(text), false, &ids, &n);
    text_rows rows = {.ids = ids, .n = (uint32_t)n, .n_vocab = n_vocab};
    coli_session_reset(engine->session);
    if (status == COLI_OK && n > 1) {
        uint32_t n_interrupt = app_interrupt_session(engine->session);
        if (n_interrupt == 0) status = coli_session_eval(engine->session, ids, n, on_rows, &rows);
        n_interrupt += app_interrupt_session(NULL); // the next line may take long to come
        if (status == COLI_OK && n_interrupt > 0) status = COLI_E_CANCELLED;
    }
    free(ids);
    *out = (score){.nll = rows.nll, .n_token = n ? n - 1 : 0};
    return status;
}

static json_t *score_json(const score *s)
{
    json_t *o = json_object();
    json_object_set_new(o, "tokens", json_integer((json_int_t)s->n_token));
    json_object_set_new(o, "nll", json_real(mean(s)));
    json_object_set_new(o, "ppl", json_real(exp(mean(s))));
    return o;
}

static void print_score(const char *kind, const char *name, const score *s)
{
    app_line(stdout, "%-6s %-16s %8llu tokens  nll %.5f  ppl %.4f", kind, name,
             (unsigned long long)s->n_token, mean(s), exp(mean(s)));
    fflush(stdout);
}

/* One object of the file; an exit code. */
static int score_object(const app_settings *s, app_engine *engine, uint32_t n_vocab,
                        const app_lines *l, const json_t *object, scores *all)
{
    const json_t *text = json_object_get(object, "text"), *topic = json_object_get(object, "topic");
    if (!object || !json_is_string(text) || (topic && !json_is_string(topic))) {
        if (!object)
            app_error("%s: %s", l->name, l->error);
        else
            app_error("%s: line %llu: expected the string \"text\"%s", l->name,
                      (unsigned long long)l->n_line, topic ? " and the string \"topic\"" : "");
        return APP_BAD;
    }
    score one;
    const coli_status status = score_text(engine, n_vocab, text, &one);
    if (status != COLI_OK) {
        if (status != COLI_E_CANCELLED)
            app_note("%s: line %llu:", l->name, (unsigned long long)l->n_line);
        return app_fail(status);
    }
    const char *topic_name = topic ? json_string_value(topic) : NULL;
    add_score(&all->all, &one);
    if (topic_name) add_score(topic_of(all, topic_name), &one);
    if (s->json) {
        json_t *item = score_json(&one);
        if (topic_name) json_object_set_new(item, "topic", json_string(topic_name));
        json_array_append_new(all->texts, item);
    } else {
        char *name = app_format("%llu%s%s", (unsigned long long)all->all.n_text,
                                topic_name ? " " : "", topic_name ? topic_name : "");
        print_score("text", name, &one);
        free(name);
    }
    return APP_OK;
}

static void print_sums(const app_settings *s, scores *all)
{
    if (!s->json) {
        for (size_t i = 0; i < all->n_topic; i++)
            print_score("topic", all->topics[i].topic, &all->topics[i]);
        print_score("all", "", &all->all);
        return;
    }
    json_t *topics = json_object(), *root = json_object();
    for (size_t i = 0; i < all->n_topic; i++)
        json_object_set_new(topics, all->topics[i].topic, score_json(&all->topics[i]));
    json_object_set_new(root, "all", score_json(&all->all));
    json_object_set_new(root, "topics", topics);
    json_object_set(root, "texts", all->texts);
    app_json_line(root);
}

int measure_perplexity(const app_settings *s, app_engine *engine)
{
    coli_model_info info = {.struct_size = sizeof info};
    const coli_status status = coli_model_get_info(engine->model, &info);
    if (status != COLI_OK) return app_fail(status);
    const coli_tokenizer *tok;
    int code = app_tokenizer(engine, &tok);
    if (code != APP_OK) return code;
    app_lines l;
    code = app_lines_open(&l, s->ppl);
    if (code != APP_OK) return code;
    scores all = {.texts = s->json ? json_array() : NULL};
    const double start_s = app_clock_s();
    json_t *object;
    while (code == APP_OK && !ferror(stdout) && app_lines_next_object(&l, &object)) {
        code = score_object(s, engine, info.n_vocab, &l, object, &all);
        json_decref(object);
    }
    const char *name = l.name;
    const int read = app_lines_close(&l);
    if (code == APP_OK) code = read;
    if (code == APP_OK && all.all.n_text == 0) {
        app_error("%s: there is no text in it", name);
        code = APP_BAD;
    }
    if (code == APP_OK) {
        print_sums(s, &all);
        const double elapsed = app_clock_s() - start_s;
        app_note("%llu texts in %.1f s", (unsigned long long)all.all.n_text, elapsed);
    }
    for (size_t i = 0; i < all.n_topic; i++) free(all.topics[i].topic);
    free(all.topics);
    json_decref(all.texts);
    return code;
}
