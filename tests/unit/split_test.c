/* split_test.c - which patterns are understood, what they mean, and what the others are told. */
#include "t.h"

#include "libcoli/src/model/split.h"

/* Where the text is cut, as "a|b|c". */
static void check_cut(const char *pattern, const char *text, const char *expected)
{
    coli__split *split;
    coli__split_work *work;
    T_OK(coli__split_compile("test", pattern, &split));
    for (int jit = 0; jit < 2; jit++) {
        coli__split_use_jit(split, jit != 0);
        T_OK(coli__split_work_create(split, &work));
        coli__buf cut = {0};
        const size_t n = strlen(text);
        for (size_t at = 0; at < n;) {
            size_t begin, end;
            T_OK(coli__split_next(split, work, text, n, at, &begin, &end));
            if (at) T_OK(coli__buf_str(&cut, "|"));
            T_OK(coli__buf_append(&cut, text + at, begin - at));
            if (begin > at && end > begin) T_OK(coli__buf_str(&cut, "|"));
            T_OK(coli__buf_append(&cut, text + begin, end - begin));
            at = end;
        }
        T_STR(cut.data, expected);
        coli__buf_finish(&cut);
        coli__split_work_free(work);
    }
    coli__split_free(split);
}

T_TEST(cuts)
{
    T_BEGIN;
    check_cut("\\p{N}", "ab12c", "ab|1|2|c");
    check_cut("\\p{N}{1,3}", "1234567", "123|456|7");
    check_cut("\\s+(?!\\S)|\\s+", "a   b  ", "a|  | |b|  ");
    check_cut("(?i:'s|'ll)|\\p{L}+", "HE'S she'lL it'\xC5\xBF", "HE|'S| |she|'lL| |it|'\xC5\xBF");
    check_cut("[^\\r\\n]+", "a\r\nb", "a|\r\n|b");
    check_cut(".", "a\nb", "a|\n|b");
    check_cut("(a|b)c", "acbcc", "ac|bc|c");
    check_cut("\\[\\]|[\\]\\-x]", "[]]-x", "[]|]|-|x");
    check_cut("a{2}", "aaaaa", "aa|aa|a");
    check_cut("[\xE4\xB8\x80-\xE9\xBE\xA5]+",
              "a\xE6\x97\xA5\xE6\x9C\xAC"
              "b",
              "a|\xE6\x97\xA5\xE6\x9C\xAC|b");
    check_cut("a++|b+?|c?d", "aabbd", "aa|b|b|d");
}

/* \s is White_Space: not U+180E, which PCRE2 alone would take, nor U+200B or U+001C. */
T_TEST(white_space)
{
    T_BEGIN;
    static const uint32_t spaces[] = {0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
    static const char *const patterns[] = {"\\s", "[\\s]", "(?!\\S)[^q]"};
    for (size_t k = 0; k < 3; k++) {
        coli__split *split;
        coli__split_work *work;
        T_OK(coli__split_compile("test", patterns[k], &split));
        T_OK(coli__split_work_create(split, &work));
        for (uint32_t c = 1; c < 0x10000; c++) {
            if (c >= 0xD800 && c < 0xE000) continue;
            char text[4] = {(char)c};
            size_t n = 1, begin, end;
            if (c >= 0x800) {
                text[0] = (char)(0xE0 | c >> 12), text[1] = (char)(0x80 | (c >> 6 & 0x3F));
                text[2] = (char)(0x80 | (c & 0x3F)), n = 3;
            } else if (c >= 0x80) {
                text[0] = (char)(0xC0 | c >> 6), text[1] = (char)(0x80 | (c & 0x3F)), n = 2;
            }
            bool space = (c >= 9 && c <= 13) || c == 32 || (c >= 0x2000 && c <= 0x200A);
            for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) space |= c == spaces[i];
            T_OK(coli__split_next(split, work, text, n, 0, &begin, &end));
            if ((begin < end) != space) print_error("U+%04X in %s\n", c, patterns[k]);
            T_EQ(begin < end, space);
        }
        coli__split_work_free(work);
        coli__split_free(split);
    }
}

T_TEST(refused)
{
    T_BEGIN;
    static const struct {
        const char *pattern;
        coli_status status;
        const char *message;
    } cases[] = {
        {"\\h+", COLI_E_UNSUPPORTED, "\\h at byte 0"},
        {"a|\\w", COLI_E_UNSUPPORTED, "\\w at byte 2"},
        {"\\bx", COLI_E_UNSUPPORTED, "\\b"},
        {"\\x41", COLI_E_UNSUPPORTED, "\\x"},
        {"(a)\\1", COLI_E_UNSUPPORTED, "\\1"},
        {"a\\", COLI_E_UNSUPPORTED, "escape"},
        {"^a", COLI_E_UNSUPPORTED, "anchors"},
        {"a$", COLI_E_UNSUPPORTED, "anchors"},
        {"[[a]]", COLI_E_UNSUPPORTED, "class inside a class"},
        {"[[:alpha:]]", COLI_E_UNSUPPORTED, "class inside a class"},
        {"[a&&b]", COLI_E_UNSUPPORTED, "intersection"},
        {"[]a]", COLI_E_UNSUPPORTED, "empty class"},
        {"[a", COLI_E_UNSUPPORTED, "not closed"},
        {"[\\s-a]", COLI_E_UNSUPPORTED, "range"},
        {"[!-\\d]", COLI_E_UNSUPPORTED, "range"},
        {"[^\\S]", COLI_E_UNSUPPORTED, "\\S"},
        {"\\p{Greek}", COLI_E_UNSUPPORTED, "general categories"},
        {"\\p{u }", COLI_E_UNSUPPORTED, "general categories"},
        {"\\pL", COLI_E_UNSUPPORTED, "\\p"},
        {"\\p{L", COLI_E_UNSUPPORTED, "\\p"},
        {"(?<n>a)", COLI_E_UNSUPPORTED, "(?<"},
        {"(?i)a", COLI_E_UNSUPPORTED, "group"},
        {"(?", COLI_E_UNSUPPORTED, "group"},
        {"(*COMMIT)a", COLI_E_UNSUPPORTED, "(*"},
        {"a{2}+", COLI_E_UNSUPPORTED, "quantifier"},
        {"a{2}?", COLI_E_UNSUPPORTED, "quantifier"},
        {"a{1001}", COLI_E_UNSUPPORTED, "1000"},
        {"a{99999999999999999999}", COLI_E_UNSUPPORTED, "1000"},
        {"a{,3}", COLI_E_UNSUPPORTED, "{"},
        {"a{x}", COLI_E_UNSUPPORTED, "{"},
        {"a*", COLI_E_UNSUPPORTED, "match nothing"},
        {"a|(?=b)", COLI_E_UNSUPPORTED, "match nothing"},
        {"(a", COLI_E_FORMAT, "parenthesis"},
        {"a)", COLI_E_FORMAT, "parenthesis"},
        {"*a", COLI_E_FORMAT, "quantifier"},
        {"[z-a]", COLI_E_FORMAT, "range"},
        {"", COLI_E_FORMAT, "1 to 65536 bytes"},
        {"((a{1000}){1000}){1000}", COLI_E_FORMAT, "too large"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli__split *split;
        const coli_status status = coli__split_compile("test", cases[i].pattern, &split);
        if (status != cases[i].status) print_error("pattern %s\n", cases[i].pattern);
        T_FAILS(status, cases[i].status, cases[i].message);
        assert_null(split);
    }
}

/* An explosive pattern ends in an error, with compiled code and without. */
T_TEST(limits)
{
    T_BEGIN;
    coli__split *split;
    coli__split_work *work;
    T_OK(coli__split_compile("test", "(?:a+)+[bc]", &split));
    const char *text = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaad";
    for (int jit = 0; jit < 2; jit++) {
        coli__split_use_jit(split, jit != 0);
        T_OK(coli__split_work_create(split, &work));
        size_t begin, end;
        T_FAILS(coli__split_next(split, work, text, strlen(text), 0, &begin, &end), COLI_E_LIMIT,
                "byte 0");
        coli__split_work_free(work);
    }
    coli__split_free(split);
}

/* A group repeated a million times needs more stack than the compiled code has: the heap serves. */
T_TEST(deep_repeat)
{
    T_BEGIN;
    enum { N = 1000000 };
    coli__split *split;
    coli__split_work *work;
    T_OK(coli__split_compile("test", "(?:ab|a)+(?!c)", &split));
    T_OK(coli__split_work_create(split, &work));
    char *text = malloc(N);
    assert_non_null(text);
    memset(text, 'a', N);
    size_t begin, end;
    T_OK(coli__split_next(split, work, text, N, 0, &begin, &end));
    T_EQ(begin, 0);
    T_EQ(end, N);
    free(text);
    coli__split_work_free(work);
    coli__split_free(split);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts),   cmocka_unit_test(white_space), cmocka_unit_test(refused),
        cmocka_unit_test(limits), cmocka_unit_test(deep_repeat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
