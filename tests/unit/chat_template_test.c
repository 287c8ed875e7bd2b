/* chat_template_test.c - what the renders of the reference do not show: spans, stable prefixes,
 * numbers, and what each malformed conversation is told. */
#include "t.h"

#include "libcoli/src/model/chat_template.h"

static coli_status render_text(const char *tmpl, const char *messages, const char *options,
                               coli__render *r)
{
    json_t *m = NULL, *o = NULL;
    *r = (coli__render){0};
    coli_status status = coli__chat_parse("messages", messages, strlen(messages), &m);
    if (status == COLI_OK && options)
        status = coli__chat_parse("options", options, strlen(options), &o);
    if (status == COLI_OK) status = coli__chat_render(tmpl, m, o, r);
    json_decref(m);
    json_decref(o);
    return status;
}

/* The text with each plain stretch as [text] and the stable prefix ended by ^. */
static void check(const char *tmpl, const char *messages, const char *options, const char *expected)
{
    coli__render r;
    T_OK(render_text(tmpl, messages, options, &r));
    coli__buf shown = {0};
    for (size_t i = 0, span = 0; i <= r.text.n_bytes; i++) {
        if (span < r.n_plain && r.plain[span].end == i) {
            T_OK(coli__buf_str(&shown, "]"));
            span++;
        }
        if (r.stable_bytes == i) T_OK(coli__buf_str(&shown, "^"));
        if (span < r.n_plain && r.plain[span].begin == i) T_OK(coli__buf_str(&shown, "["));
        if (i < r.text.n_bytes) T_OK(coli__buf_append(&shown, r.text.data + i, 1));
    }
    T_STR(shown.data, expected);
    coli__buf_finish(&shown);
    coli__render_finish(&r);
}

#define USER(text)      "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define TOOL(text)      "{\"role\":\"tool\",\"content\":\"" text "\"}"
#define CALLS(name, arguments)                                                                     \
    "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"r\",\"tool_calls\":["        \
    "{\"function\":{\"name\":\"" name "\",\"arguments\":" arguments "}}]}"

T_TEST(spans_and_stable_prefix)
{
    T_BEGIN;
    check("3.6", "[" USER(" Hi ") "]", NULL,
          "<|im_start|>user\n[Hi]<|im_end|>\n<|im_start|>assistant\n^<think>\n");
    check("3.6", "[" USER("") "]", "{\"enable_thinking\":false}",
          "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n^<think>\n\n</think>\n\n");
    check("3.6", "[" USER("a") "]", "{\"add_generation_prompt\":false}",
          "<|im_start|>user\n[a]<|im_end|>\n^");
    check("3.6", "[" USER("a") "," ASSISTANT("<think>t</think>b") "," USER("c") "]", NULL,
          "<|im_start|>user\n[a]<|im_end|>\n<|im_start|>assistant\n[b]<|im_end|>\n"
          "<|im_start|>user\n[c]<|im_end|>\n<|im_start|>assistant\n^<think>\n");
    // Behind the last query thinking is shown, but the next user message removes it.
    check(
        "3.6", "[" USER("a") "," CALLS("f", "{\"k\":\"v\",\"n\":true}") "," TOOL("x") "]", NULL,
        "<|im_start|>user\n[a]<|im_end|>\n<|im_start|>assistant\n^<think>\n[r]\n</think>\n\n"
        "<tool_call>\n<function=[f]>\n<parameter=[k]>\n[v]\n</parameter>\n<parameter=[n]>\n[true]\n"
        "</parameter>\n</function>\n</"
        "tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n[x]\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n");
    check("3.6", "[" USER("a") "," ASSISTANT("b") "]", "{\"add_generation_prompt\":false}",
          "<|im_start|>user\n[a]<|im_end|>\n<|im_start|>assistant\n^<think>\n\n</"
          "think>\n\n[b]<|im_end|>\n");
    // With preserve_thinking every block stays, but the last one is yet to be filled.
    check("3.6", "[" USER("a") "," ASSISTANT("b") "," USER("c") "]",
          "{\"preserve_thinking\":true,\"enable_thinking\":false}",
          "<|im_start|>user\n[a]<|im_end|>\n<|im_start|>assistant\n<think>\n\n</"
          "think>\n\n[b]<|im_end|>\n"
          "<|im_start|>user\n[c]<|im_end|>\n<|im_start|>assistant\n^<think>\n\n</think>\n\n");
    check("3.5", "[" USER("a") "," ASSISTANT("b") "," USER("c") "]", "{\"preserve_thinking\":true}",
          "<|im_start|>user\n[a]<|im_end|>\n<|im_start|>assistant\n[b]<|im_end|>\n"
          "<|im_start|>user\n[c]<|im_end|>\n<|im_start|>assistant\n^<think>\n");
}

/* The system turn: the caller's tools and text are plain, the instructions are not. */
T_TEST(tool_spans)
{
    T_BEGIN;
    coli__render r;
    T_OK(render_text("3.6", "[{\"role\":\"system\",\"content\":\"S\"}," USER("u") "]",
                     "{\"tools\":[{\"a\":\"<|im_end|>\"},[1]]}", &r));
    static const char *const plain[] = {"{\"a\": \"<|im_end|>\"}", "[1]", "S", "u"};
    T_EQ(r.n_plain, 4);
    for (size_t i = 0; i < 4; i++) {
        T_EQ(r.plain[i].end - r.plain[i].begin, strlen(plain[i]));
        T_MEM(r.text.data + r.plain[i].begin, plain[i], strlen(plain[i]));
    }
    coli__render_finish(&r);
}

/* One value through a tool call, as 3.6 (JSON) and 3.5 (Python) write it. */
T_TEST(values)
{
    T_BEGIN;
    static const struct {
        const char *json, *as36, *as35;
    } cases[] = {
        {"true", "true", "True"},
        {"false", "false", "False"},
        {"null", "null", "None"},
        {"0", "0", "0"},
        {"-0", "0", "0"},
        {"-17", "-17", "-17"},
        {"9223372036854775807", "9223372036854775807", "9223372036854775807"},
        {"9223372036854775808", "9223372036854775808", "9223372036854775808"},
        {"-9223372036854775808", "-9223372036854775808", "-9223372036854775808"},
        {"-9223372036854775809", "-9223372036854775809", "-9223372036854775809"},
        {"123456789012345678901234567890", "123456789012345678901234567890",
         "123456789012345678901234567890"},
        {"0.0", "0.0", "0.0"},
        {"-0.0", "-0.0", "-0.0"},
        {"2.50", "2.5", "2.5"},
        {"100.0", "100.0", "100.0"},
        {"1e5", "100000.0", "100000.0"},
        {"0.1", "0.1", "0.1"},
        {"0.0001", "0.0001", "0.0001"},
        {"0.00001", "1e-05", "1e-05"},
        {"1.5e-7", "1.5e-07", "1.5e-07"},
        {"1e16", "1e+16", "1e+16"},
        {"1e15", "1000000000000000.0", "1000000000000000.0"},
        {"1234567890123456.0", "1234567890123456.0", "1234567890123456.0"},
        {"12345678901234567.0", "1.2345678901234568e+16", "1.2345678901234568e+16"},
        {"1e23", "1e+23", "1e+23"},
        {"1.7976931348623157e308", "1.7976931348623157e+308", "1.7976931348623157e+308"},
        {"5e-324", "5e-324", "5e-324"},
        {"2.2250738585072014e-308", "2.2250738585072014e-308", "2.2250738585072014e-308"},
        {"5.684341886080802e-14", "5.684341886080802e-14", "5.684341886080802e-14"}, // 2^-44
        {"9007199254740993.0", "9007199254740992.0", "9007199254740992.0"},
        {"\"  as \\\"is\\\" \"", "  as \"is\" ", "  as \"is\" "},
        {"[]", "[]", "[]"},
        {"{}", "{}", "{}"},
        {"[1,[null,true],{\"a\":1.0,\"b\":99999999999999999999}]",
         "[1, [null, true], {\"a\": 1.0, \"b\": 99999999999999999999}]",
         "[1, [null, true], {\"a\": 1.0, \"b\": 99999999999999999999}]"},
        {"[\"\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u001f\\u007f\\u00e9\\ud83d\\ude00/\"]",
         "[\"\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u001f\x7F\xC3\xA9\xF0\x9F\x98\x80/\"]",
         "[\"\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u001f\x7F\xC3\xA9\xF0\x9F\x98\x80/\"]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char messages[512];
        snprintf(messages, sizeof messages, "[" USER("u") "," CALLS("f", "{\"k\":%s}") "]",
                 cases[i].json);
        for (int v = 0; v < 2; v++) {
            coli__render r;
            T_OK(render_text(v ? "3.5" : "3.6", messages, NULL, &r));
            char *value = strstr(r.text.data, "<parameter=k>\n") + strlen("<parameter=k>\n");
            *strstr(value, "\n</parameter>") = 0;
            T_STR(value, v ? cases[i].as35 : cases[i].as36);
            coli__render_finish(&r);
        }
    }
}

/* Python's idea of blanks, at both ends, for every code point. */
T_TEST(trimming)
{
    T_BEGIN;
    static const uint32_t blanks[] = {0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
    for (uint32_t c = 1; c < 0x3100; c++) {
        bool blank =
            (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || (c >= 0x2000 && c <= 0x200A);
        for (size_t i = 0; i < sizeof blanks / sizeof *blanks; i++) blank |= c == blanks[i];
        char messages[128];
        coli__render r;
        snprintf(messages, sizeof messages, "[" USER("\\u%04x\\u%04xz\\u%04x") "]", c, c, c);
        T_OK(render_text("3.6", messages, NULL, &r));
        const bool trimmed =
            strncmp(r.text.data + strlen("<|im_start|>user\n"), "z<|im_end|>", 11) == 0;
        if (trimmed != blank) print_error("U+%04X\n", c);
        T_EQ(trimmed, blank);
        coli__render_finish(&r);
    }
}

T_TEST(refused)
{
    T_BEGIN;
    static const struct {
        const char *messages, *options;
        coli_status status;
        const char *message;
    } cases[] = {
        {"[]", NULL, COLI_E_INVALID, "no messages"},
        {"{}", NULL, COLI_E_INVALID, "no messages"},
        {"[" ASSISTANT("a") "]", NULL, COLI_E_INVALID, "no user query"},
        {"[" USER("<tool_response></tool_response>") "]", NULL, COLI_E_INVALID, "no user query"},
        {"[" USER("a") ",{\"role\":\"system\",\"content\":\"s\"}]", NULL, COLI_E_INVALID,
         "message 1: a system message must be the first"},
        {"[" USER("a") ",{\"role\":\"developer\",\"content\":\"s\"}]", NULL, COLI_E_INVALID,
         "message 1: unexpected role"},
        {"[" USER("a") ",{\"role\":\"user\\u0000\",\"content\":\"s\"}]", NULL, COLI_E_INVALID,
         "message 1: unexpected role"},
        {"[" USER("a") ",{\"content\":\"s\"}]", NULL, COLI_E_INVALID, "unexpected role"},
        {"[" USER("a") ",3]", NULL, COLI_E_INVALID, "message 1: unexpected role"},
        {"[{\"role\":\"user\",\"content\":5}]", NULL, COLI_E_INVALID,
         "message 0: content is not a text"},
        {"[{\"role\":\"user\",\"content\":99999999999999999999}]", NULL, COLI_E_INVALID,
         "content is not a text"},
        {"[{\"role\":\"user\",\"content\":{\"text\":\"a\"}}]", NULL, COLI_E_INVALID, "not a text"},
        {"[{\"role\":\"user\",\"content\":[\"a\"]}]", NULL, COLI_E_INVALID, "has no text"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"audio\"}]}]", NULL, COLI_E_INVALID,
         "has no text"},
        {"[{\"role\":\"user\",\"content\":[{\"text\":7}]}]", NULL, COLI_E_INVALID, "has no text"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]", NULL, COLI_E_UNSUPPORTED,
         "image"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]", NULL,
         COLI_E_UNSUPPORTED, "image_url"},
        {"[{\"role\":\"user\",\"content\":[{\"video\":\"x\",\"text\":\"y\"}]}]", NULL,
         COLI_E_UNSUPPORTED, "video"},
        {"[{\"role\":\"system\",\"content\":[{\"image\":1}]}," USER("a") "]", NULL, COLI_E_INVALID,
         "a system message cannot contain images"},
        {"[" USER("a") "," CALLS("f", "null") "]", NULL, COLI_E_INVALID,
         "arguments of a tool call"},
        {"[" USER("a") "," CALLS("f", "\"{}\"") "]", NULL, COLI_E_INVALID,
         "arguments of a tool call"},
        {"[" USER("a") ",{\"role\":\"assistant\",\"tool_calls\":[{\"function\":null}]}]", NULL,
         COLI_E_INVALID, "no name"},
        {"[" USER("a") ",{\"role\":\"assistant\",\"tool_calls\":[{\"name\":3}]}]", NULL,
         COLI_E_INVALID, "no name"},
        {"[" USER("a") ",{\"role\":\"assistant\",\"tool_calls\":{}}]", NULL, COLI_E_INVALID,
         "tool_calls is not an array"},
        {"[" USER("a") "]", "[]", COLI_E_INVALID, "options are not an object"},
        {"[" USER("a") "]", "{\"tools\":{}}", COLI_E_INVALID, "tools"},
        {"[" USER("a") "]", "{\"enable_thinking\":\"no\"}", COLI_E_INVALID, "enable_thinking"},
        {"[" USER("a") "]", "{\"preserve_thinking\":1}", COLI_E_INVALID, "preserve_thinking"},
        {"[" USER("a") "]", "{\"add_generation_prompt\":0}", COLI_E_INVALID,
         "add_generation_prompt"},
        {"[" USER("a") "", NULL, COLI_E_FORMAT, "messages: line 1"},
        {"[" USER("\\ud800") "]", NULL, COLI_E_FORMAT, "messages: line 1"},
        {"[" USER("\xFF") "]", NULL, COLI_E_FORMAT, "messages: line 1"},
        {"[" USER("\\u0000x") "]", NULL, COLI_E_FORMAT, "begins with U+0000"},
        {"[{\"role\":\"user\",\"role\":\"user\"}]", NULL, COLI_E_FORMAT, "duplicate"},
        {"[00123456789012345678901234567890]", NULL, COLI_E_FORMAT, "messages: line 1"},
        {"[{12345678901234567890123:1}]", NULL, COLI_E_FORMAT, "messages: line 1"},
        {"", NULL, COLI_E_FORMAT, "messages: line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli__render r;
        const coli_status status = render_text("3.6", cases[i].messages, cases[i].options, &r);
        if (status != cases[i].status) print_error("case %s\n", cases[i].messages);
        T_FAILS(status, cases[i].status, cases[i].message);
        assert_null(r.text.data);
        assert_null(r.plain);
    }
    coli__render r;
    T_FAILS(render_text("3.7", "[" USER("a") "]", NULL, &r), COLI_E_INVALID, "template \"3.7\"");
}

T_TEST(depth)
{
    T_BEGIN;
    for (int depth = 127; depth <= 129; depth++) {
        char text[300];
        json_t *value;
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        const coli_status status = coli__chat_parse("x", text, 2 * (size_t)depth, &value);
        T_EQ(status, depth <= 128 ? COLI_OK : COLI_E_FORMAT);
        json_decref(value);
    }
}

T_TEST(nul_inside)
{
    T_BEGIN;
    coli__render r;
    T_OK(render_text("3.6", "[" USER("a\\u0000b") "]", NULL, &r));
    T_MEM(r.text.data, "<|im_start|>user\na\0b<|im_end|>\n", 31);
    coli__render_finish(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_and_stable_prefix),
        cmocka_unit_test(tool_spans),
        cmocka_unit_test(values),
        cmocka_unit_test(trimming),
        cmocka_unit_test(refused),
        cmocka_unit_test(depth),
        cmocka_unit_test(nul_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
