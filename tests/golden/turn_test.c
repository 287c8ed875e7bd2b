/* turn_test.c - what the programs share, where a test from outside could not choose the moment: a
 * Ctrl-C that comes just before the work begins, and every byte that could reach a terminal. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "open_model.h"
#include "t.h"
#include "terminal.h"
#include "text.h"
#include "turn.h"

T_TEST(a_mode_tells_what_came_before_it)
{
    T_BEGIN;
    app_interrupt_count();
    raise(SIGINT);
    raise(SIGINT);
    T_EQ(app_interrupts(), 2);
    T_EQ(app_interrupt_session(NULL), 2);
    T_EQ(app_interrupts(), 0);
    T_EQ(app_interrupt_count(), 0);
}

T_TEST(ctrl_c_before_a_turn_is_not_lost)
{
    T_BEGIN;
    const app_settings settings = {.model = TEST_MODELS "/hummingbird", .n = 4};
    app_engine engine;
    coli_chat *chat;
    T_EQ(app_open(&settings, true, &engine), APP_OK);
    T_OK(coli_chat_create(engine.session, NULL, &chat));
    app_interrupt_count(); // as while a line is typed
    raise(SIGINT);
    T_EQ(turn_say(chat, &engine, &settings, "Hello!", ""), APP_INTERRUPTED);
    coli_text said;
    T_OK(coli_chat_messages(chat, &said));
    T_STR(said.data, "[]");
    T_EQ(coli_session_pos(engine.session), 0);
    coli_text_free(&said);
    T_EQ(app_interrupts(), 0); // and it is used up
    coli_chat_destroy(chat);
    app_close(&engine);
}

/* Once a turn, from a thread of its own: as a console does it, and as any thread may take a signal. */
enum { N_TURN = 300000 };
static atomic_int turn_begun, turn_pressed;

static void *press_each_turn(void *unused)
{
    (void)unused;
    for (int turn = 1; turn <= N_TURN; turn++) {
        while (atomic_load(&turn_begun) < turn) {
        }
        raise(SIGINT);
        atomic_store(&turn_pressed, turn);
    }
    return NULL;
}

T_TEST(ctrl_c_at_any_instant_is_counted_once_and_ends_nothing)
{
    T_BEGIN;
    const app_settings settings = {.model = TEST_MODELS "/hummingbird", .n = 4};
    app_engine engine;
    T_EQ(app_open(&settings, true, &engine), APP_OK);
    app_interrupt_count();
    pthread_t thread;
    T_EQ(pthread_create(&thread, NULL, press_each_turn, NULL), 0);
    t_rng rng = {1};
    uint32_t n = 0;
    for (int turn = 1; turn <= N_TURN; turn++) {
        atomic_store(&turn_begun, turn);
        for (volatile uint32_t wait = t_below(&rng, 2000); wait > 0; wait--) {
        }
        n += app_interrupt_session(engine.session);
        n += app_interrupt_count();
        while (atomic_load(&turn_pressed) < turn) {
        }
    }
    n += app_interrupt_count();
    pthread_join(thread, NULL);
    T_EQ(n, N_TURN);
    app_close(&engine);
}

static char *shown(const char *text, size_t n_bytes, const char *kept)
{
    char *out = NULL;
    size_t n;
    FILE *stream = open_memstream(&out, &n);
    assert_non_null(stream);
    assert_true(app_put_shown(stream, text, n_bytes, kept));
    fclose(stream);
    return out;
}

T_TEST(text_is_shown_and_not_obeyed)
{
    T_BEGIN;
    static const struct {
        const char *text, *kept, *expected;
    } cases[] = {
        {"", "", ""},
        {"plain, Jörg, 日本, \xF0\x9F\x90\xA6", "", "plain, Jörg, 日本, \xF0\x9F\x90\xA6"},
        {"\033[31m\a", "", "␛[31m␇"},
        {"a\nb\tc\r", "\n\t", "a\nb\tc␍"},
        {"a\nb\tc\r", "", "a␊b␉c␍"},
        {"\x7F", "", "␡"},
        {"\xC2\x80\xC2\x9B\xC2\x9F\xC2\xA0", "", "���\xC2\xA0"},
        {"\x9B", "", "�"},                // alone
        {"\xC2", "", "�"},                // cut off
        {"\xE6\x97", "", "��"},           // cut off
        {"\xC0\x9B", "", "��"},           // longer than needed
        {"\xE0\x82\x9B", "", "���"},      // longer than needed
        {"\xED\xA0\x80", "", "���"},      // a surrogate
        {"\xF4\x90\x80\x80", "", "����"}, // past U+10FFFF
        {"\xFF\xFE", "", "��"},
        {"\xE6\033\xE6", "", "�␛�"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *out = shown(cases[i].text, strlen(cases[i].text), cases[i].kept);
        T_STR(out, cases[i].expected);
        free(out);
    }
    char *out = shown("a\0b", 3, "\n");
    T_STR(out, "a␀b");
    free(out);
    size_t n;
    out = app_utf8_repair("a\0\033é\x9B\xE6", 7, &n);
    T_EQ(n, 11);
    T_MEM(out, "a\0\033é\xEF\xBF\xBD\xEF\xBF\xBD", 12);
    free(out);
}

int main(void)
{
    app_terminal_init("turn_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mode_tells_what_came_before_it),
        cmocka_unit_test(ctrl_c_before_a_turn_is_not_lost),
        cmocka_unit_test(ctrl_c_at_any_instant_is_counted_once_and_ends_nothing),
        cmocka_unit_test(text_is_shown_and_not_obeyed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
