/* base_alloc.c - memory: zeroed, aligned, overflow-safe, counted, able to fail on the nth call. */
#include <locale.h>

#include "t.h"

#include "libcoli/src/base/alloc.h"

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i]) return false;
    return true;
}

/* Leave a dirty block behind, so that a missing memset shows. */
static void dirty(size_t n_bytes)
{
    void *p = coli__calloc(n_bytes, 1);
    T_TRUE(p);
    memset(p, 0xA5, n_bytes);
    coli__free(p);
}

T_TEST(calloc_zeroes)
{
    T_BEGIN;
    for (size_t n = 1; n < 300; n += 7) {
        dirty(n * 8);
        uint8_t *p = coli__calloc(n, 8);
        T_TRUE(p && all_zero(p, n * 8));
        coli__free(p);
    }
}

T_TEST(alloc64_is_aligned_and_zero)
{
    T_BEGIN;
    for (size_t n = 0; n < 1000; n += 13) {
        dirty(n + 64);
        uint8_t *p = coli__alloc64(n);
        T_TRUE(p);
        T_EQ((uintptr_t)p % 64, 0);
        T_TRUE(all_zero(p, n));
        coli__free_aligned(p);
    }
}

T_TEST(nothing_is_something_to_free)
{
    T_BEGIN;
    void *a = coli__calloc(0, 8), *b = coli__calloc(8, 0), *c = coli__realloc(NULL, 0, 1);
    void *d = coli__alloc64(0);
    T_TRUE(a && b && c && d);
    coli__free(a);
    coli__free(b);
    coli__free(c);
    coli__free_aligned(d);
    coli__free(NULL);
    coli__free_aligned(NULL);
}

T_TEST(sizes_that_overflow_are_refused)
{
    T_BEGIN;
    const struct {
        size_t n, size;
    } bad[] = {{SIZE_MAX, 2},         {2, SIZE_MAX},        {SIZE_MAX / 2 + 1, 2},
               {SIZE_MAX / 2 + 1, 1}, {SIZE_MAX, SIZE_MAX}, {(size_t)1 << 33, (size_t)1 << 31}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        coli__fail(COLI_OK, "none yet");
        T_TRUE(!coli__calloc(bad[i].n, bad[i].size));
        T_TRUE(strstr(coli_error_message(), "out of memory"));
        T_TRUE(!coli__realloc(NULL, bad[i].n, bad[i].size));
    }
    T_TRUE(!coli__alloc64(SIZE_MAX));
    T_TRUE(!coli__alloc64(SIZE_MAX - 62));
}

T_TEST(realloc_keeps_content_and_survives_failure)
{
    T_BEGIN;
    char *p = coli__realloc(NULL, 6, 1);
    T_TRUE(p);
    memcpy(p, "hello", 6);
    p = coli__realloc(p, 4096, 4);
    T_STR(p, "hello");
    coli__alloc_fail_at(1);
    T_TRUE(!coli__realloc(p, 8192, 4));
    coli__alloc_fail_at(0);
    T_STR(p, "hello"); // still ours
    coli__free(p);
}

T_TEST(the_nth_request_fails_once)
{
    T_BEGIN;
    for (uint64_t nth = 1; nth <= 4; nth++) {
        coli__alloc_fail_at(nth);
        for (uint64_t i = 1; i <= 6; i++) {
            void *p = coli__calloc(1, 1);
            T_EQ(p == NULL, i == nth);
            coli__free(p);
        }
        coli__alloc_fail_at(0);
    }
}

T_TEST(every_request_is_counted)
{
    T_BEGIN;
    const uint64_t before = coli__alloc_count();
    void *a = coli__calloc(1, 1);
    T_EQ(coli__alloc_count() - before, 1);
    a = coli__realloc(a, 2, 1);
    T_EQ(coli__alloc_count() - before, 2);
    void *b = coli__alloc64(1);
    T_EQ(coli__alloc_count() - before, 3);
    char *c = coli__strndup("x", 1);
    T_EQ(coli__alloc_count() - before, 4);
    coli__free(a);
    coli__free_aligned(b);
    coli__free(c);
    T_EQ(coli__alloc_count() - before, 4);
}

T_TEST(strndup_ends_with_nul)
{
    T_BEGIN;
    char *s = coli__strndup("coli and more", 4);
    T_STR(s, "coli");
    coli__free(s);
    s = coli__strndup("", 0);
    T_STR(s, "");
    coli__free(s);
}

T_PROP(buf_equals_the_pieces, 200)
{
    static char expected[1 << 16];
    coli__buf buf = {0};
    size_t n = 0;
    for (uint32_t i = t_below(&rng, 60); i-- > 0;) {
        char piece[600];
        const uint32_t n_piece = t_below(&rng, 2) ? t_below(&rng, 8) : t_below(&rng, 590);
        for (uint32_t j = 0; j < n_piece; j++) piece[j] = (char)t_range(&rng, ' ', '~');
        piece[n_piece] = 0;
        switch (t_below(&rng, 3)) { // lengths on both sides of printf's small buffer
        case 0:
            T_OK(coli__buf_append(&buf, piece, n_piece));
            break;
        case 1:
            T_OK(coli__buf_str(&buf, piece));
            break;
        default:
            T_OK(coli__buf_printf(&buf, "%s", piece));
        }
        memcpy(expected + n, piece, n_piece + 1);
        n += n_piece;
        T_STR(buf.data, expected);
        T_EQ(buf.n_bytes, n);
        T_TRUE(buf.n_bytes < buf.cap_bytes);
    }
    coli__buf_finish(&buf);
    T_TRUE(!buf.data && !buf.n_bytes && !buf.cap_bytes);
    coli__buf_finish(&buf); // a zeroed one is fine, too
}

T_TEST(buf_holds_any_bytes)
{
    T_BEGIN;
    coli__buf buf = {0};
    T_OK(coli__buf_append(&buf, NULL, 0));
    T_STR(buf.data, "");
    T_OK(coli__buf_append(&buf, "a\0b", 3));
    T_EQ(buf.n_bytes, 3);
    T_MEM(buf.data, "a\0b", 4);
    coli__buf_finish(&buf);
}

T_TEST(buf_that_cannot_grow_keeps_what_it_has)
{
    T_BEGIN;
    coli__buf buf = {0};
    static char large[1000];
    memset(large, 'x', sizeof large - 1);
    T_OK(coli__buf_str(&buf, "kept"));
    coli__alloc_fail_at(1);
    T_FAILS(coli__buf_str(&buf, large), COLI_E_NOMEM, "out of memory");
    coli__alloc_fail_at(1); // printf's own large text
    T_FAILS(coli__buf_printf(&buf, "%s", large), COLI_E_NOMEM, "out of memory");
    coli__alloc_fail_at(2); // the buffer
    T_FAILS(coli__buf_printf(&buf, "%s", large), COLI_E_NOMEM, "out of memory");
    coli__alloc_fail_at(0);
    T_FAILS(coli__buf_append(&buf, large, SIZE_MAX), COLI_E_NOMEM, "bytes");
    T_STR(buf.data, "kept");
    coli__buf_finish(&buf);
}

T_TEST(checked_arithmetic)
{
    T_BEGIN;
    uint64_t out = 0;
    T_TRUE(coli__mul(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &out));
    T_TRUE(out == UINT64_C(0xFFFFFFFF00000000));
    T_TRUE(!coli__mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &out));
    T_TRUE(coli__add(UINT64_MAX - 1, 1, &out));
    T_TRUE(out == UINT64_MAX);
    T_TRUE(!coli__add(UINT64_MAX, 1, &out));
}

/* Where the locale writes a comma, JSON has a point. */
T_TEST(numbers_have_a_point)
{
    T_BEGIN;
    static const char *const commas[] = {"C", "de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "German"};
    static const struct {
        double value;
        int n_digit;
        const char *text;
    } cases[] = {{0.25, 17, "0.25"},   {-1e-06, 9, "-1e-06"}, {1.5e-7, 9, "1.5e-07"},
                 {1e7, 9, "10000000"}, {0.1f, 7, "0.1"},      {1.25e300, 9, "1.25e+300"},
                 {0, 9, "0"}};
    uint32_t n_comma = 0;
    for (size_t l = 0; l < sizeof commas / sizeof *commas; l++) {
        if (!setlocale(LC_NUMERIC, commas[l])) continue;
        n_comma += *localeconv()->decimal_point == ',';
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            coli__buf buf = {0};
            T_OK(coli__buf_number(&buf, cases[i].value, cases[i].n_digit));
            T_STR(buf.data, cases[i].text);
            coli__buf_finish(&buf);
        }
    }
    setlocale(LC_NUMERIC, "C");
    print_message("    %u locales with a comma\n", n_comma);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calloc_zeroes),
        cmocka_unit_test(alloc64_is_aligned_and_zero),
        cmocka_unit_test(nothing_is_something_to_free),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(realloc_keeps_content_and_survives_failure),
        cmocka_unit_test(the_nth_request_fails_once),
        cmocka_unit_test(every_request_is_counted),
        cmocka_unit_test(strndup_ends_with_nul),
        cmocka_unit_test(buf_equals_the_pieces),
        cmocka_unit_test(buf_holds_any_bytes),
        cmocka_unit_test(buf_that_cannot_grow_keeps_what_it_has),
        cmocka_unit_test(checked_arithmetic),
        cmocka_unit_test(numbers_have_a_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
