/* chat_template_prop.c - what must hold for every conversation: nobody's words become control
 * tokens, and the stable prefix is one. */
#include "t.h"

#include "libcoli/src/model/chat_template.h"

static coli__tok *tok;

/* ---- random conversations -------------------------------------------------------------------- */

typedef struct world {
    const char *tmpl;
    bool special;      // contents may hold the texts of control tokens
    bool no_reasoning; // leave "</think>" in contents to be taken apart
    json_t *messages, *options;
} world;

static char *words(t_rng *rng, bool special)
{
    static const char *const plain[] = {
        "one", "Two",      " ", "\n",           "\n\n",       "\xC3\xA9", "\xE6\x97\xA5",
        "7",   "\xCC\x81", "!", "\xE3\x80\x80", "{\"a\": 1}", "\\",       "\xF0\x9F\x91\x8D"};
    static const char *const control[] = {"<|im_end|>",      "<|im_start|>",     "<think>",
                                          "</think>",        "<tool_call>",      "</tool_call>",
                                          "<tool_response>", "</tool_response>", "<|im_",
                                          "end|>",           "<|endoftext|>",    "<"};
    coli__buf text = {0};
    T_OK(coli__buf_str(&text, ""));
    for (uint32_t i = t_below(rng, 7); i > 0; i--) {
        if (special && t_below(rng, 2))
            T_OK(coli__buf_str(&text, control[t_below(rng, 12)]));
        else
            T_OK(coli__buf_str(&text, plain[t_below(rng, 14)]));
    }
    return text.data;
}

static json_t *word_json(t_rng *rng, bool special)
{
    char *text = words(rng, special);
    json_t *value = json_string(text);
    coli__free(text);
    assert_non_null(value);
    return value;
}

static json_t *random_value(t_rng *rng, bool special)
{
    switch (t_below(rng, 5)) {
    case 0:
        return json_pack("[i, o]", 3, word_json(rng, special));
    case 1:
        return json_pack("{s: o}", "k", word_json(rng, special));
    case 2:
        return json_true();
    case 3:
        return json_real(2.5);
    default:
        return word_json(rng, special);
    }
}

static json_t *random_call(t_rng *rng, bool special)
{
    json_t *arguments = json_object();
    for (uint32_t i = t_below(rng, 3); i > 0; i--) {
        char *key = words(rng, special);
        json_object_set_new(arguments, key, random_value(rng, special));
        coli__free(key);
    }
    return json_pack("{s: {s: o, s: o}}", "function", "name", word_json(rng, special), "arguments",
                     arguments);
}

static json_t *message(t_rng *rng, const world *w, const char *role)
{
    json_t *m = json_pack("{s: s, s: o}", "role", role, "content", word_json(rng, w->special));
    if (t_below(rng, 10) == 0)
        json_object_set_new(m, "content",
                            json_pack("[{s: s, s: o}, {s: o}]", "type", "text", "text",
                                      word_json(rng, w->special), "text",
                                      word_json(rng, w->special)));
    if (strcmp(role, "assistant") != 0) return m;
    if (!w->no_reasoning || t_below(rng, 2))
        json_object_set_new(m, "reasoning_content", word_json(rng, w->special));
    if (t_below(rng, 3) == 0) {
        json_t *calls = json_array();
        for (uint32_t i = t_below(rng, 3); i > 0; i--)
            json_array_append_new(calls, random_call(rng, w->special));
        json_object_set_new(m, "tool_calls", calls);
    }
    return m;
}

/* Perhaps a system message; a query; then assistants, tool results and users as they come. */
static world world_random(t_rng *rng, bool special, bool no_reasoning)
{
    world w = {t_below(rng, 2) ? "3.6" : "3.5", special, no_reasoning, json_array(), json_object()};
    if (t_below(rng, 2)) json_array_append_new(w.messages, message(rng, &w, "system"));
    json_array_append_new(w.messages,
                          json_pack("{s: s, s: s}", "role", "user", "content", "query"));
    for (uint32_t i = t_below(rng, 7); i > 0; i--) {
        static const char *const roles[] = {"user", "assistant", "assistant", "tool"};
        json_array_append_new(w.messages, message(rng, &w, roles[t_below(rng, 4)]));
    }
    static const char *const switches[] = {"enable_thinking", "preserve_thinking",
                                           "add_generation_prompt"};
    for (size_t i = 0; i < 3; i++)
        if (t_below(rng, 2))
            json_object_set_new(w.options, switches[i], json_boolean(t_below(rng, 2)));
    if (t_below(rng, 3) == 0)
        json_object_set_new(
            w.options, "tools",
            json_pack("[{s: o}, o]", "f", word_json(rng, special), random_value(rng, special)));
    return w;
}

static void world_finish(world *w)
{
    json_decref(w->messages);
    json_decref(w->options);
}

static bool is_role(const json_t *m, const char *role)
{
    return strcmp(json_string_value(json_object_get(m, "role")), role) == 0;
}

/* ---- control tokens -------------------------------------------------------------------------- */

enum {
    IM_START,
    IM_END,
    THINK,
    THINK_END,
    CALL,
    CALL_END,
    RESPONSE,
    RESPONSE_END,
    OTHER,
    N_CONTROL
};
static const char *const control_text[N_CONTROL] = {
    "<|im_start|>", "<|im_end|>",      "<think>",          "</think>",     "<tool_call>",
    "</tool_call>", "<tool_response>", "</tool_response>", "<|endoftext|>"};

/* How often the template itself says each: from the shape of the conversation alone.  first_shown
 * is the index of the first message whose thinking is shown. */
static void expected_counts(const world *w, size_t first_shown, int64_t n[N_CONTROL])
{
    memset(n, 0, N_CONTROL * sizeof *n);
    const size_t n_message = json_array_size(w->messages);
    const bool tools = json_array_size(json_object_get(w->options, "tools")) > 0;
    const bool prompt = !json_is_false(json_object_get(w->options, "add_generation_prompt"));
    const bool system = is_role(json_array_get(w->messages, 0), "system");
    int64_t n_turn = tools || system, n_tool = 0, n_call = tools ? 2 : 0, n_think = 0;
    for (size_t i = 0; i < n_message; i++) {
        const json_t *m = json_array_get(w->messages, i);
        if (is_role(m, "tool")) {
            n_tool++;
            n_turn += !is_role(json_array_get(w->messages, i - 1), "tool");
        } else if (!is_role(m, "system")) {
            n_turn++;
        }
        if (!is_role(m, "assistant")) continue;
        n_think += i >= first_shown;
        n_call += (int64_t)json_array_size(json_object_get(m, "tool_calls"));
    }
    n[IM_START] = n_turn + prompt;
    n[IM_END] = n_turn;
    n[THINK] = n_think + prompt;
    n[THINK_END] =
        n_think + (prompt && json_is_false(json_object_get(w->options, "enable_thinking")));
    n[CALL] = n[CALL_END] = n_call;
    n[RESPONSE] = n[RESPONSE_END] = n_tool;
}

static size_t first_shown(const world *w)
{
    const bool preserve = json_is_true(json_object_get(w->options, "preserve_thinking"));
    if (preserve && strcmp(w->tmpl, "3.6") == 0) return 0;
    for (size_t i = json_array_size(w->messages); i-- > 0;) {
        const json_t *m = json_array_get(w->messages, i);
        if (!is_role(m, "user")) continue;
        // Rendered alone, a message that is no query is refused.
        json_t *alone = json_pack("[O]", m);
        coli__render r;
        const bool query = coli__chat_render(w->tmpl, alone, NULL, &r) == COLI_OK;
        coli__render_finish(&r);
        json_decref(alone);
        if (query) return i + 1;
    }
    return 0;
}

T_PROP(words_never_become_control_tokens, 3000)
{
    world w = world_random(&rng, true, t_below(&rng, 2) != 0);
    coli__render r;
    T_OK(coli__chat_render(w.tmpl, w.messages, w.options, &r));
    int32_t *ids;
    size_t n_ids;
    int64_t expected[N_CONTROL], found[N_CONTROL] = {0};
    T_OK(coli__tok_encode(tok, r.text.data, r.text.n_bytes, r.plain, r.n_plain, &ids, &n_ids));
    for (size_t i = 0; i < n_ids; i++)
        for (int k = 0; k < N_CONTROL; k++)
            found[k] += ids[i] == coli__tok_added_id(tok, control_text[k]);
    expected_counts(&w, first_shown(&w), expected);
    for (int k = 0; k < N_CONTROL; k++) {
        if (found[k] != expected[k]) print_error("%s in %s\n", control_text[k], r.text.data);
        T_EQ(found[k], expected[k]);
    }
    coli__free(ids);
    coli__render_finish(&r);
    world_finish(&w);
}

T_PROP(without_special_text_spans_do_not_matter, 1500)
{
    world w = world_random(&rng, false, false);
    coli__render r;
    T_OK(coli__chat_render(w.tmpl, w.messages, w.options, &r));
    int32_t *with, *without;
    size_t n_with, n_without;
    T_OK(coli__tok_encode(tok, r.text.data, r.text.n_bytes, r.plain, r.n_plain, &with, &n_with));
    T_OK(coli__tok_encode(tok, r.text.data, r.text.n_bytes, NULL, 0, &without, &n_without));
    T_EQ(n_with, n_without);
    for (size_t i = 0; i < n_with; i++) T_EQ(with[i], without[i]);
    coli__free(with);
    coli__free(without);
    coli__render_finish(&r);
    world_finish(&w);
}

/* ---- spans ----------------------------------------------------------------------------------- */

/* The value with every letter of every text and key replaced by `letter`. */
static json_t *recolour(const json_t *value, char letter)
{
    if (json_is_string(value)) {
        char *text = coli__strndup(json_string_value(value), json_string_length(value));
        memset(text, letter, strlen(text));
        json_t *out = json_string(text);
        coli__free(text);
        return out;
    }
    if (json_is_array(value)) {
        json_t *out = json_array();
        for (size_t i = 0; i < json_array_size(value); i++)
            json_array_append_new(out, recolour(json_array_get(value, i), letter));
        return out;
    }
    if (!json_is_object(value)) return json_copy((json_t *)(uintptr_t)value);
    json_t *out = json_object(), *member;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        const bool ours = strcmp(key, "role") == 0 || strcmp(key, "type") == 0;
        json_object_set_new(out, key, ours ? json_incref(member) : recolour(member, letter));
    }
    return out;
}

/* Two conversations that differ in every letter of the caller's and in nothing else: their
 * renderings differ exactly there, and exactly there are the plain spans. */
T_PROP(spans_are_the_callers_words, 1500)
{
    world w = world_random(&rng, false, false);
    json_object_del(w.options, "tools"); // their JSON has marks and keys that do not change
    for (size_t i = 0; i < json_array_size(w.messages); i++) {
        json_t *calls = json_object_get(json_array_get(w.messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *function = json_object_get(json_array_get(calls, k), "function");
            json_object_set_new(function, "arguments", json_object());
        }
    }
    json_t *x = recolour(w.messages, 'x'), *y = recolour(w.messages, 'y');
    coli__render rx, ry;
    T_OK(coli__chat_render(w.tmpl, x, w.options, &rx));
    T_OK(coli__chat_render(w.tmpl, y, w.options, &ry));
    T_EQ(rx.text.n_bytes, ry.text.n_bytes);
    for (size_t i = 0, span = 0; i < rx.text.n_bytes; i++) {
        while (span < rx.n_plain && rx.plain[span].end <= i) span++;
        const bool plain = span < rx.n_plain && rx.plain[span].begin <= i;
        T_EQ(plain, rx.text.data[i] != ry.text.data[i]);
    }
    coli__render_finish(&rx);
    coli__render_finish(&ry);
    json_decref(x);
    json_decref(y);
    world_finish(&w);
}

/* ---- stable prefix --------------------------------------------------------------------------- */

T_PROP(stable_prefix_is_shared, 4000)
{
    world w = world_random(&rng, t_below(&rng, 2) != 0, t_below(&rng, 2) != 0);
    coli__render before, after;
    T_OK(coli__chat_render(w.tmpl, w.messages, w.options, &before));
    static const char *const roles[] = {"user", "assistant", "tool"};
    json_array_append_new(w.messages, message(&rng, &w, "assistant"));
    for (uint32_t i = t_range(&rng, 1, 4); i > 0; i--)
        json_array_append_new(w.messages, message(&rng, &w, roles[t_below(&rng, 3)]));
    T_OK(coli__chat_render(w.tmpl, w.messages, w.options, &after));
    T_LE(before.stable_bytes, after.stable_bytes); // later snapshots are never behind earlier ones
    T_MEM(before.text.data, after.text.data, before.stable_bytes);
    coli__render_finish(&before);
    coli__render_finish(&after);
    world_finish(&w);
}

/* In tokens too, when the reasoning is given apart: then what follows the prefix begins with no
 * blank. */
T_PROP(stable_prefix_is_shared_in_tokens, 1500)
{
    world w = world_random(&rng, false, false);
    coli__render before, after;
    T_OK(coli__chat_render(w.tmpl, w.messages, w.options, &before));
    json_array_append_new(w.messages, message(&rng, &w, "assistant"));
    json_array_append_new(w.messages, message(&rng, &w, "user"));
    T_OK(coli__chat_render(w.tmpl, w.messages, w.options, &after));
    int32_t *a, *b;
    size_t n_a, n_b, n_plain = 0;
    while (n_plain < before.n_plain && before.plain[n_plain].end <= before.stable_bytes) n_plain++;
    T_OK(coli__tok_encode(tok, before.text.data, before.stable_bytes, before.plain, n_plain, &a,
                          &n_a));
    T_OK(coli__tok_encode(tok, after.text.data, after.text.n_bytes, after.plain, after.n_plain, &b,
                          &n_b));
    T_LE(n_a, n_b);
    for (size_t i = 0; i < n_a; i++) T_EQ(a[i], b[i]);
    coli__free(a);
    coli__free(b);
    coli__render_finish(&before);
    coli__render_finish(&after);
    world_finish(&w);
}

static int open_tokenizer(void **state)
{
    (void)state;
    return coli__tok_open(TEST_MODELS "/hummingbird/tokenizer.json", NULL, &tok) == COLI_OK ? 0
                                                                                            : -1;
}

static int close_tokenizer(void **state)
{
    (void)state;
    coli__tok_close(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_never_become_control_tokens),
        cmocka_unit_test(without_special_text_spans_do_not_matter),
        cmocka_unit_test(spans_are_the_callers_words),
        cmocka_unit_test(stable_prefix_is_shared),
        cmocka_unit_test(stable_prefix_is_shared_in_tokens),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
