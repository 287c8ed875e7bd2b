/* base_error.c - codes, names and messages: coli/status.h and base/error.h keep their promises. */
#include "t.h"

#include <pthread.h> // ThreadSanitizer does not know C11's thrd_create

#include "libcoli/src/base/error.h"

T_TEST(codes_are_stable)
{
    T_BEGIN;
    // Programs in the field were compiled against these numbers.
    T_EQ(COLI_OK, 0);
    T_EQ(COLI_E_INVALID, 1);
    T_EQ(COLI_E_NOMEM, 2);
    T_EQ(COLI_E_IO, 3);
    T_EQ(COLI_E_NOTFOUND, 4);
    T_EQ(COLI_E_FORMAT, 5);
    T_EQ(COLI_E_UNSUPPORTED, 6);
    T_EQ(COLI_E_EXISTS, 7);
    T_EQ(COLI_E_LIMIT, 8);
    T_EQ(COLI_E_NUMERIC, 9);
    T_EQ(COLI_E_CANCELLED, 10);
    T_EQ(COLI_E_INTERNAL, 11);
}

T_TEST(names_and_texts)
{
    T_BEGIN;
    T_STR(coli_status_name(COLI_OK), "COLI_OK");
    T_STR(coli_status_name(COLI_E_FORMAT), "COLI_E_FORMAT");
    T_STR(coli_status_text(COLI_E_NOMEM), "out of memory");
    for (int code = COLI_OK; code <= COLI_E_INTERNAL; code++) {
        T_EQ(strncmp(coli_status_name((coli_status)code), "COLI_", 5), 0);
        T_TRUE(strcmp(coli_status_text((coli_status)code), "unknown") != 0);
    }
    T_STR(coli_status_name((coli_status)(COLI_E_INTERNAL + 1)), "unknown");
    T_STR(coli_status_text((coli_status)99), "unknown");
}

T_TEST(fail_keeps_the_message)
{
    T_BEGIN;
    T_EQ(coli__fail(COLI_E_FORMAT, "%s: needs %d bytes, has %d", "a.bin", 8, 3), COLI_E_FORMAT);
    T_STR(coli_error_message(), "a.bin: needs 8 bytes, has 3");
    T_EQ(coli__fail_in(COLI_E_IO, "model %s", "m"), COLI_E_IO);
    T_STR(coli_error_message(), "model m: a.bin: needs 8 bytes, has 3");
    // A failure may quote the message before it.
    T_EQ(coli__fail(COLI_E_IO, "worker 3: %s", coli_error_message()), COLI_E_IO);
    T_STR(coli_error_message(), "worker 3: model m: a.bin: needs 8 bytes, has 3");
}

static coli_status pass_on(coli_status status, int *reached)
{
    COLI_TRY(status);
    ++*reached;
    return COLI_OK;
}

static coli_status pass_on_and_clean(coli_status first, int *cleaned)
{
    coli_status status = COLI_OK;
    COLI_TRY_OUT(first);
out:
    ++*cleaned;
    return status;
}

T_TEST(try_passes_the_status_on)
{
    T_BEGIN;
    int reached = 0, cleaned = 0;
    T_EQ(pass_on(COLI_E_LIMIT, &reached), COLI_E_LIMIT);
    T_EQ(reached, 0);
    T_EQ(pass_on(COLI_OK, &reached), COLI_OK);
    T_EQ(reached, 1);
    T_EQ(pass_on_and_clean(COLI_E_LIMIT, &cleaned), COLI_E_LIMIT);
    T_EQ(pass_on_and_clean(COLI_OK, &cleaned), COLI_OK);
    T_EQ(cleaned, 2);
}

/* Messages of every length around the buffer's: what is kept is a prefix and well-formed UTF-8. */
T_TEST(long_messages_are_cut_at_a_character)
{
    T_BEGIN;
    enum { MAX = 1200 };
    static char text[MAX + 8];
    for (size_t n_ascii = 0; n_ascii < 5; n_ascii++) { // shifts the characters against the end
        for (size_t n = 900; n < MAX; n++) {
            size_t at = 0;
            while (at < n_ascii) text[at++] = 'a';
            while (at + 3 <= n) at += (size_t)sprintf(text + at, "\xE2\x82\xAC"); // 3 bytes
            text[at] = 0;
            coli__fail(COLI_E_FORMAT, "%s", text);
            const char *kept = coli_error_message();
            const size_t n_kept = strlen(kept);
            T_MEM(kept, text, n_kept);
            T_EQ((n_kept - n_ascii) % 3, 0);
            T_TRUE(n_kept == at || n_kept >= 1000);
        }
    }
}

static void *other_thread(void *right)
{
    const bool quiet_before = !coli_error_message()[0]; // "" before its first failure
    coli__fail(COLI_E_IO, "theirs");
    *(bool *)right = quiet_before && strcmp(coli_error_message(), "theirs") == 0;
    return NULL;
}

T_TEST(messages_belong_to_their_thread)
{
    T_BEGIN;
    coli__fail(COLI_E_IO, "mine");
    pthread_t thread;
    bool right = false;
    T_EQ(pthread_create(&thread, NULL, other_thread, &right), 0);
    T_EQ(pthread_join(thread, NULL), 0);
    T_TRUE(right);
    T_STR(coli_error_message(), "mine");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_stable),
        cmocka_unit_test(names_and_texts),
        cmocka_unit_test(fail_keeps_the_message),
        cmocka_unit_test(try_passes_the_status_on),
        cmocka_unit_test(long_messages_are_cut_at_a_character),
        cmocka_unit_test(messages_belong_to_their_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
