/* tokenizer_test.c - one tokenizer small enough to see through: what it encodes, and for each way
 * to break its file, the one message. */
#include "t.h"

#include "small_tokenizer.h"

/* The texts of the tokens; # follows an added one. */
static void check_encode(const coli__tok *tok, const char *text, const coli__span *plain,
                         size_t n_plain, const char *expected)
{
    int32_t *ids;
    size_t n_ids;
    T_OK(coli__tok_encode(tok, text, strlen(text), plain, n_plain, &ids, &n_ids));
    coli__buf shown = {0};
    T_OK(coli__buf_str(&shown, ""));
    for (size_t i = 0; i < n_ids; i++) {
        size_t n_bytes;
        const char *bytes = coli__tok_bytes(tok, ids[i], &n_bytes);
        T_OK(coli__buf_printf(&shown, "%s%.*s", i ? " " : "", (int)n_bytes, bytes));
        if (ids[i] == 261 || ids[i] == 263 || ids[i] == 264) T_OK(coli__buf_str(&shown, "#"));
    }
    T_STR(shown.data, expected);
    coli__buf_finish(&shown);
    coli__free(ids);
}

T_TEST(merges)
{
    T_BEGIN;
    coli__tok *tok;
    T_OK(small_open(&tok));
    T_EQ(coli__tok_n_id(tok), 269);
    check_encode(tok, "", NULL, 0, "");
    check_encode(tok, "hello", NULL, 0, "hello");
    check_encode(tok, "xhello hello", NULL, 0, "x hello  hello");
    check_encode(tok, "helll", NULL, 0, "hell l");
    check_encode(tok, "hehehe", NULL, 0, "he he he");
    coli__tok_close(tok);
}

T_TEST(added_tokens)
{
    T_BEGIN;
    coli__tok *tok;
    T_OK(small_open(&tok));
    T_EQ(coli__tok_added_id(tok, "<think>"), 263);
    T_EQ(coli__tok_added_id(tok, "<thin"), -1);
    T_EQ(coli__tok_added_id(tok, ""), -1);
    T_EQ(coli__tok_added_id(tok, "he"), -1);
    T_TRUE(coli__tok_is_special(tok, 261));
    T_TRUE(!coli__tok_is_special(tok, 263));
    T_TRUE(!coli__tok_is_special(tok, -1) && !coli__tok_is_special(tok, 269));
    size_t n_bytes = 7;
    assert_null(coli__tok_bytes(tok, 269, &n_bytes));
    T_EQ(n_bytes, 0);
    assert_null(coli__tok_bytes(tok, -1, &n_bytes));

    check_encode(tok, "<think>he<|end|>", NULL, 0, "<think># he <|end|>#");
    check_encode(tok, "<think>!<think>?", NULL, 0, "<think>!# <think># ?");
    check_encode(tok, "<<think>>", NULL, 0, "< <think># >");
    check_encode(tok, "<think", NULL, 0, "< t h i n k");
    check_encode(tok, "<|end|", NULL, 0, "<| e nd |");
    coli__tok_close(tok);
}

T_TEST(plain_spans)
{
    T_BEGIN;
    coli__tok *tok;
    T_OK(small_open(&tok));
    const char *text = "<think>hello<think>!";
    const coli__span all = {0, 20}, first = {0, 7}, last_byte = {19, 20}, middle = {3, 4};
    const coli__span empty[] = {{3, 3}, {7, 12}, {13, 13}};
    check_encode(tok, text, &all, 1, "< t h i n k > hello < t h i n k > !");
    check_encode(tok, text, &first, 1, "< t h i n k > hello <think>!#");
    check_encode(tok, text, &last_byte, 1, "<think># hello <think># !"); // the shorter one fits
    check_encode(tok, text, &middle, 1, "< t h i n k > hello <think>!#");
    check_encode(tok, text, empty, 3, "<think># hello <think>!#");

    int32_t *ids;
    size_t n_ids;
    const coli__span crossed[] = {{4, 8}, {7, 9}}, reversed = {5, 4}, outside = {19, 21};
    T_FAILS(coli__tok_encode(tok, text, 20, crossed, 2, &ids, &n_ids), COLI_E_INVALID, "span 1");
    T_FAILS(coli__tok_encode(tok, text, 20, &reversed, 1, &ids, &n_ids), COLI_E_INVALID, "span 0");
    T_FAILS(coli__tok_encode(tok, text, 20, &outside, 1, &ids, &n_ids), COLI_E_INVALID, "19 to 21");
    assert_null(ids);
    T_EQ(n_ids, 0);

    // A word that a span edge cuts is still one word, a mark still joins its letter.
    const coli__span edge = {2, 7};
    check_encode(tok, "hello", &edge, 0, "hello");
    const coli__span inside = {2, 4};
    check_encode(tok, "hello", &inside, 1, "hello");
    const coli__span mark = {1, 3};
    check_encode(tok, "e\xCC\x81", &mark, 1, "\xC3 \xA9");
    coli__tok_close(tok);
}

/* Even a file whose merges spell out an added token cannot smuggle one out of plain text. */
T_TEST(merges_never_make_added_tokens)
{
    T_BEGIN;
    for (int ignore = 0; ignore < 2; ignore++) {
        coli__tok *tok;
        coli__buf text = {0};
        T_OK(small_tokenizer_text(&text));
        T_OK(small_replace(&text, SMALL_PATTERN, "[^\\\\n]+"));
        if (ignore) T_OK(small_replace(&text, "\"ignore_merges\":false", "\"ignore_merges\":true"));
        T_OK(small_open_text(text.data, text.n_bytes, NULL, &tok));
        const coli__span all = {0, 7};
        check_encode(tok, "<|end|>", &all, 1, "<|end |>");
        check_encode(tok, "<|end|>", NULL, 0, "<|end|>#");
        coli__tok_close(tok);
        coli__buf_finish(&text);
    }
}

T_TEST(ignore_merges)
{
    T_BEGIN;
    coli__tok *tok;
    coli__buf text = {0};
    T_OK(small_tokenizer_text(&text));
    T_OK(small_replace(&text, "[\"hell\",\"o\"],", "")); // hello is now out of reach of merges
    T_OK(small_open_text(text.data, text.n_bytes, NULL, &tok));
    check_encode(tok, "hello", NULL, 0, "hell o");
    coli__tok_close(tok);
    T_OK(small_replace(&text, "\"ignore_merges\":false", "\"ignore_merges\":true"));
    T_OK(small_open_text(text.data, text.n_bytes, NULL, &tok));
    check_encode(tok, "hello", NULL, 0, "hello");
    coli__tok_close(tok);
    coli__buf_finish(&text);
}

T_TEST(not_utf8)
{
    T_BEGIN;
    coli__tok *tok;
    int32_t *ids;
    size_t n_ids;
    T_OK(small_open(&tok));
    T_FAILS(coli__tok_encode(tok, "ab\xFFz", 4, NULL, 0, &ids, &n_ids), COLI_E_INVALID,
            "at byte 2");
    T_FAILS(coli__tok_encode(tok, "\xE2\x82", 2, NULL, 0, &ids, &n_ids), COLI_E_INVALID,
            "at byte 0");
    T_FAILS(coli__tok_encode(tok, "aaaaaaaaa\xED\xA0\x80", 12, NULL, 0, &ids, &n_ids),
            COLI_E_INVALID, "at byte 9");
    coli__tok_close(tok);
}

/* ---- broken files ---------------------------------------------------------------------------- */

T_TEST(broken_files)
{
    T_BEGIN;
    static const struct {
        const char *from, *to;
        coli_status status;
        const char *message;
    } cases[] = {
        {"\"model\":", "\"modul\":", COLI_E_FORMAT, "model is missing"},
        {"\"vocab\":", "\"vocap\":", COLI_E_FORMAT, "vocab is missing"},
        {"\"merges\":", "\"mergers\":", COLI_E_FORMAT, "merges is missing"},
        {"\"pre_tokenizer\":", "\"pre\":", COLI_E_FORMAT, "pre_tokenizer is missing"},
        {"\"decoder\":", "\"dec\":", COLI_E_UNSUPPORTED, "decoder"},
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", COLI_E_UNSUPPORTED, "Unigram is not known"},
        {"\"type\":\"NFC\"", "\"type\":\"NFKC\"", COLI_E_UNSUPPORTED, "normalizer: NFKC"},
        {"\"type\":\"Split\"", "\"type\":\"Digits\"", COLI_E_UNSUPPORTED, "Digits"},
        {"\"type\":\"ByteLevel\"", "\"type\":\"Metaspace\"", COLI_E_UNSUPPORTED, "Metaspace"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"",
         COLI_E_UNSUPPORTED, "decoder: WordPiece"},
        {"\"post_processor\":null", "\"post_processor\":{\"type\":\"TemplateProcessing\"}",
         COLI_E_UNSUPPORTED, "post_processor: TemplateProcessing"},
        {"\"Isolated\"", "\"Removed\"", COLI_E_UNSUPPORTED, "behavior: Removed"},
        {"\"invert\":false", "\"invert\":true", COLI_E_UNSUPPORTED, "invert"},
        {"{\"Regex\":", "{\"String\":", COLI_E_UNSUPPORTED, "without Regex"},
        {"\\\\p{N}|", "\\\\w|", COLI_E_UNSUPPORTED, "pattern: \\w"},
        {"\"use_regex\":false", "\"use_regex\":true", COLI_E_UNSUPPORTED, "use_regex"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", COLI_E_UNSUPPORTED,
         "add_prefix_space"},
        {"\"dropout\":null", "\"dropout\":0.1", COLI_E_UNSUPPORTED, "dropout"},
        {"\"byte_fallback\":false", "\"byte_fallback\":true", COLI_E_UNSUPPORTED, "byte_fallback"},
        {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"@@\"", COLI_E_UNSUPPORTED,
         "end_of_word_suffix"},
        {"\"ignore_merges\":false", "\"ignore_merges\":3", COLI_E_FORMAT, "ignore_merges"},
        {"\"he\":256", "\"he\":-1", COLI_E_FORMAT, "\"he\": id -1 is not within"},
        {"\"he\":256", "\"he\":16777217", COLI_E_FORMAT, "id 16777217 is not within"},
        {"\"he\":256", "\"he\":16777216", COLI_E_FORMAT, "leaves a gap"},
        {"\"he\":256", "\"he\":5", COLI_E_FORMAT, "id 5 is already taken"},
        {"\"he\":256", "\"he\":\"256\"", COLI_E_FORMAT, "not a whole number"},
        {"\"he\":256", "\"he\":256.0", COLI_E_FORMAT, "not a whole number"},
        {"\"he\":256", "\"\":256", COLI_E_FORMAT, "is empty"},
        {"\"he\":256", "\"h e\":256", COLI_E_FORMAT, "token 256 of the vocabulary"},
        {"\"he\":256", "\"\xE6\x97\xA5\":256", COLI_E_FORMAT, "outside the byte alphabet"},
        {"\"he\":256", "\"\xC2\xAD\":256", COLI_E_FORMAT, "outside the byte alphabet"},
        {"\"he\":256", "\"ll\":256", COLI_E_FORMAT, "duplicate"},
        {"\"|>\":268", "\"|>\":269", COLI_E_FORMAT, "id 268 has no token"},
        {"\"!\":0", "\"!!\":0", COLI_E_FORMAT, "byte 0x21 has no token"},
        {"\"h e\"", "\"hq e\"", COLI_E_FORMAT, "merge 0: \"hq e\" is not in the vocabulary"},
        {"\"h e\"", "\"h qe\"", COLI_E_FORMAT, "merge 0: \"qe\" is not in the vocabulary"},
        {"\"h e\"", "\"h o\"", COLI_E_FORMAT, "merge 0: the result of \"h o\""},
        {"\"h e\"", "\"he\"", COLI_E_FORMAT, "merge 0: expected two tokens"},
        {"\"h e\"", "\"h e l\"", COLI_E_FORMAT, "merge 0: expected two tokens"},
        {"\"h e\"", "\" e\"", COLI_E_FORMAT, "is not in the vocabulary"},
        {"\"h e\"", "17", COLI_E_FORMAT, "merge 0: expected two tokens"},
        {"[\"hell\",\"o\"]", "[\"hell\"]", COLI_E_FORMAT, "merge 3: expected two tokens"},
        {"[\"hell\",\"o\"]", "[\"hell\",4]", COLI_E_FORMAT, "merge 3: expected two tokens"},
        {"\"lstrip\":false", "\"lstrip\":true", COLI_E_UNSUPPORTED, "lstrip: only false"},
        {"\"rstrip\":false", "\"rstrip\":true", COLI_E_UNSUPPORTED, "rstrip: only false"},
        {"\"single_word\":false", "\"single_word\":true", COLI_E_UNSUPPORTED, "single_word"},
        {"\"normalized\":false", "\"normalized\":true", COLI_E_UNSUPPORTED, "normalized"},
        {"\"special\":true", "\"special\":1", COLI_E_FORMAT, "special"},
        {"\"id\":263", "\"id\":262", COLI_E_FORMAT, "id 262 has another text already"},
        {"\"id\":264", "\"id\":263", COLI_E_FORMAT, "id 263 has another text already"},
        {"\"id\":261", "\"id\":300", COLI_E_FORMAT, "id 300 against 261"},
        {"\"id\":264", "\"id\":-3", COLI_E_FORMAT, "id -3 is not within"},
        {"\"id\":264", "\"id\":null", COLI_E_FORMAT, "no id"},
        {"\"content\":\"<think>!\"", "\"content\":\"\"", COLI_E_FORMAT, "0 bytes"},
        {"\"content\":\"<think>!\"", "\"content\":\"<think>\"", COLI_E_FORMAT, "listed twice"},
        {"\"content\":\"<think>!\"", "\"contents\":0", COLI_E_FORMAT, "no content"},
        {"\"added_tokens\":[", "\"added_tokens\":3,\"x\":[", COLI_E_FORMAT, "not an array"},
        {"\"version\":\"1.0\"",
         "\"version\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"
         "]]]",
         COLI_E_FORMAT, "nested deeper"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli__tok *tok;
        coli__buf text = {0};
        T_OK(small_tokenizer_text(&text));
        T_OK(small_replace(&text, cases[i].from, cases[i].to));
        const coli_status status = small_open_text(text.data, text.n_bytes, NULL, &tok);
        if (status != cases[i].status) print_error("%s -> %s\n", cases[i].from, cases[i].to);
        T_FAILS(status, cases[i].status, cases[i].message);
        assert_null(tok);
        coli__buf_finish(&text);
    }
}

/* Long and strange texts in messages are cut and cleaned. */
T_TEST(messages_are_readable)
{
    T_BEGIN;
    coli__tok *tok;
    coli__buf text = {0};
    T_OK(small_tokenizer_text(&text));
    T_OK(small_replace(&text, "\"h e\"",
                       "\"\\u001b[2J0123456789012345678901234567890123456789012345678901234\xE6\x97"
                       "\xA5\xE6\x97\xA5\xE6\x97\xA5 e\""));
    T_FAILS(small_open_text(text.data, text.n_bytes, NULL, &tok), COLI_E_FORMAT,
            "merge 0: \"?[2J0123456789012345678901234567890123456789012345678901234...\" is not");
    coli__buf_finish(&text);
}

T_TEST(every_prefix_is_refused)
{
    T_BEGIN;
    coli__buf text = {0};
    T_OK(small_tokenizer_text(&text));
    for (size_t n = 0; n < text.n_bytes; n++) {
        coli__tok *tok;
        char *exact = malloc(n ? n : 1);
        assert_non_null(exact);
        memcpy(exact, text.data, n);
        T_EQ(small_open_text(exact, n, NULL, &tok), COLI_E_FORMAT);
        free(exact);
    }
    coli__buf_finish(&text);
}

T_TEST(config_added_tokens)
{
    T_BEGIN;
    static const struct {
        const char *config;
        coli_status status;
        const char *message;
    } cases[] = {
        {"{}", COLI_OK, ""},
        {"{\"added_tokens_decoder\":null}", COLI_OK, ""},
        {"{\"added_tokens_decoder\":{\"263\":{\"content\":\"<think>\",\"special\":false}}}",
         COLI_OK, ""},
        {"{\"added_tokens_decoder\":{\"269\":{\"content\":\"<new>\",\"special\":true}}}", COLI_OK,
         ""},
        {"{\"added_tokens_decoder\":{\"263\":{\"content\":\"<think>\",\"special\":true}}}",
         COLI_E_FORMAT, "special is true, against false"},
        {"{\"added_tokens_decoder\":{\"263\":{\"content\":\"<other>\"}}}", COLI_E_FORMAT,
         "tokenizer_config.json: added token \"<other>\": id 263 has another text"},
        {"{\"added_tokens_decoder\":{\"264\":{\"content\":\"<think>\"}}}", COLI_E_FORMAT,
         "id 264 against 263"},
        {"{\"added_tokens_decoder\":{\"300\":{\"content\":\"<gap>\"}}}", COLI_E_FORMAT, "gap"},
        {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"<x>\"}}}", COLI_E_FORMAT,
         "\"x\" is not an id"},
        {"{\"added_tokens_decoder\":{\"9999999999\":{\"content\":\"<x>\"}}}", COLI_E_FORMAT,
         "is not an id"},
        {"{\"added_tokens_decoder\":{\"269\":{\"content\":\"<x>\",\"lstrip\":true}}}",
         COLI_E_UNSUPPORTED, "lstrip"},
        {"{\"added_tokens_decoder\":{\"269\":3}}", COLI_E_FORMAT, "no content"},
        {"{\"added_tokens_decoder\":[]}", COLI_E_FORMAT, "not an object"},
    };
    coli__buf text = {0};
    T_OK(small_tokenizer_text(&text));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli__tok *tok;
        const coli_status status = small_open_text(text.data, text.n_bytes, cases[i].config, &tok);
        if (cases[i].status == COLI_OK)
            T_OK(status);
        else
            T_FAILS(status, cases[i].status, cases[i].message);
        if (i == 3) check_encode(tok, "a<new>b", NULL, 0, "a <new> b");
        if (i == 3) T_EQ(coli__tok_added_id(tok, "<new>"), 269);
        coli__tok_close(tok);
    }
    coli__buf_finish(&text);
}

T_TEST(files)
{
    T_BEGIN;
    coli__tok *tok;
    T_FAILS(coli__tok_open("no/such/tokenizer.json", NULL, &tok), COLI_E_NOTFOUND,
            "tokenizer.json");
    assert_null(tok);
    T_OK(coli__tok_open(TEST_MODELS "/hummingbird/tokenizer.json", "no/such/tokenizer_config.json",
                        &tok));
    coli__tok_close(tok);
    coli__tok_close(NULL);
}

/* ---- ids to text ----------------------------------------------------------------------------- */

static void check_decode(const char *bytes, size_t n_bytes, const char *expected)
{
    for (size_t cut = 0; cut <= n_bytes; cut++) {
        coli__utf8_stream stream = {0};
        coli__buf out = {0};
        T_OK(coli__buf_str(&out, ""));
        T_OK(coli__utf8_push(&stream, bytes, cut, &out));
        T_OK(coli__utf8_push(&stream, bytes + cut, n_bytes - cut, &out));
        T_OK(coli__utf8_flush(&stream, &out));
        T_STR(out.data, expected);
        coli__buf_finish(&out);
    }
}

T_TEST(replacement)
{
    T_BEGIN;
#define R "\xEF\xBF\xBD"
    check_decode("abc", 3, "abc");
    check_decode("\xF0\x9F\x91\x8D", 4, "\xF0\x9F\x91\x8D");
    check_decode("a\xF0\x9F\x91"
                 "b",
                 5, "a" R "b");
    check_decode("\xF0\x9F\x91", 3, R);
    check_decode("\xC0\x80", 2, R R);
    check_decode("\xED\xA0\x80", 3, R R R);
    check_decode("\xF4\x90\x80\x80", 4, R R R R);
    check_decode("\xE0\x9F\xBF", 3, R R R);
    check_decode("\xE2\x82\xE2\x82\xAC", 5, R "\xE2\x82\xAC");
    check_decode("\xF0\x90\xF0\x90\x80\x80", 6, R "\xF0\x90\x80\x80");
    check_decode("\x80\xBF\xFE\xFF", 4, R R R R);
    check_decode("\xC2", 1, R);
#undef R
}

T_TEST(decode)
{
    T_BEGIN;
    coli__tok *tok;
    coli__buf out = {0};
    T_OK(small_open(&tok));
    const int32_t ids[] = {259, 261, 999, -5, 260, 263};
    T_OK(coli__tok_decode(tok, ids, 6, false, &out));
    T_STR(out.data, "hello<|end|> hello<think>");
    out.n_bytes = 0;
    T_OK(coli__tok_decode(tok, ids, 6, true, &out));
    T_STR(out.data, "hello hello<think>");
    coli__buf_finish(&out);
    coli__tok_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges),
        cmocka_unit_test(added_tokens),
        cmocka_unit_test(plain_spans),
        cmocka_unit_test(merges_never_make_added_tokens),
        cmocka_unit_test(ignore_merges),
        cmocka_unit_test(not_utf8),
        cmocka_unit_test(broken_files),
        cmocka_unit_test(messages_are_readable),
        cmocka_unit_test(every_prefix_is_refused),
        cmocka_unit_test(config_added_tokens),
        cmocka_unit_test(files),
        cmocka_unit_test(replacement),
        cmocka_unit_test(decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
