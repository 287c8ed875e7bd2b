/* text_fault.c - the tokenizer and the chat template when memory runs out at the first request, the
 * second, and so on: E_NOMEM with a message, nothing left behind (the sanitizer build looks for
 * leaks), and the same call succeeds afterwards. */
#include "t.h"

#include "libcoli/src/model/chat_template.h"
#include "libcoli/src/model/split.h"
#include "small_tokenizer.h"

typedef coli_status (*step)(void *world);

/* Run `call` with each of its allocations failing in turn.  Returns how often it succeeded all the
 * same. */
static uint64_t fail_each(step call, void *world)
{
    const uint64_t before = coli__alloc_count();
    T_OK(call(world));
    const uint64_t n = coli__alloc_count() - before;
    T_GE(n, 1);
    uint64_t n_survived = 0;
    for (uint64_t nth = 1; nth <= n; nth++) {
        coli__alloc_fail_at(nth);
        const coli_status status = call(world);
        coli__alloc_fail_at(0);
        n_survived += status == COLI_OK;
        if (status != COLI_OK) T_FAILS(status, COLI_E_NOMEM, "memory");
    }
    T_OK(call(world));
    return n_survived;
}

/* PCRE2 does without compiled code when it has no memory for that: so often compiling the pattern
 * of both tokenizers survives, and nothing else may. */
static uint64_t jit_survives;

static coli_status compile(void *world)
{
    coli__split *split;
    COLI_TRY(coli__split_compile("test", world, &split));
    coli__split_free(split);
    return COLI_OK;
}

T_TEST(compiling)
{
    T_BEGIN;
    char pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                     " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    jit_survives = fail_each(compile, pattern);
}

static coli_status open_small(void *world)
{
    const coli__buf *text = world;
    coli__tok *tok;
    COLI_TRY(small_open_text(text->data, text->n_bytes,
                             "{\"added_tokens_decoder\":{\"269\":{\"content\":\"<new>\"}}}", &tok));
    coli__tok_close(tok);
    return COLI_OK;
}

T_TEST(opening)
{
    T_BEGIN;
    coli__buf text = {0};
    T_OK(small_tokenizer_text(&text));
    T_EQ(fail_each(open_small, &text), jit_survives);
    coli__buf_finish(&text);
}

static coli_status open_file(void *world)
{
    (void)world;
    coli__tok *tok;
    COLI_TRY(coli__tok_open(TEST_MODELS "/hummingbird/tokenizer.json", NULL, &tok));
    coli__tok_close(tok);
    return COLI_OK;
}

T_TEST(opening_a_file)
{
    T_BEGIN;
    T_EQ(fail_each(open_file, NULL), jit_survives);
}

static coli_status encode(void *world)
{
    static const char text[] =
        "hello <think>e\xCC\x81\xCC\xA3<|end|> 42 hellohellohellohellohellohello"
        "\xF0\x9F\x91\x8D \xE1\x84\x80\xE1\x85\xA1";
    int32_t *ids;
    size_t n_ids;
    COLI_TRY(coli__tok_encode(world, text, sizeof text - 1, NULL, 0, &ids, &n_ids));
    coli__buf decoded = {0};
    const coli_status status = coli__tok_decode(world, ids, n_ids, false, &decoded);
    coli__buf_finish(&decoded);
    coli__free(ids);
    return status;
}

T_TEST(encoding_and_decoding)
{
    T_BEGIN;
    coli__tok *tok;
    T_OK(small_open(&tok));
    T_EQ(fail_each(encode, tok), 0);
    coli__tok_use_jit(tok, false);
    T_EQ(fail_each(encode, tok), 0);
    coli__tok_close(tok);
}

static coli_status render(void *world)
{
    static const char text[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":[{\"text\":\"S\"}]},{\"role\":\"user\","
        "\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"<think>a</"
        "think>b\",\"tool_calls\":["
        "{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1,2.5,null,\"\\n\"],"
        "\"big\":12345678901234567890}}}]},{\"role\":\"tool\",\"content\":\"r\"}],"
        "\"options\":{\"tools\":[{\"type\":\"function\"}]}}";
    (void)world;
    json_t *item;
    coli__render r;
    COLI_TRY(coli__chat_parse("chat", text, sizeof text - 1, &item));
    const coli_status status = coli__chat_render("3.6", json_object_get(item, "messages"),
                                                 json_object_get(item, "options"), &r);
    json_decref(item);
    coli__render_finish(&r);
    return status;
}

T_TEST(rendering)
{
    T_BEGIN;
    T_EQ(fail_each(render, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiling),      cmocka_unit_test(opening),
        cmocka_unit_test(opening_a_file), cmocka_unit_test(encoding_and_decoding),
        cmocka_unit_test(rendering),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
