/* chat_terminal.c - `coli chat` as a person at a terminal meets it: keys in, screen out. */
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>

#include "programs.h"

typedef struct terminal {
    int fd;
    pid_t pid;
    char seen[1 << 16];
    size_t n_seen, n_taken; // what wait_for has already gone past
} terminal;

static void start(terminal *t, const char *const *env, const char *const *args)
{
    *t = (terminal){0};
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    t->pid = forkpty(&t->fd, NULL, NULL, &size);
    if (t->pid == 0) {
        alarm(TIMEOUT_S);
        become("coli", args, env);
    }
    T_GE(t->pid, 0);
}

/* Read what comes next; when nothing does, fail for want of `what`. */
static bool read_on(terminal *t, const char *what)
{
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    const int ready = poll(&p, 1, 1000 * TIMEOUT_S);
    const ssize_t n =
        ready > 0 ? read(t->fd, t->seen + t->n_seen, sizeof t->seen - 1 - t->n_seen) : -1;
    if (n > 0) {
        t->n_seen += (size_t)n;
        return true;
    }
    print_error("the terminal never showed %s; it showed\n%s\n", what, t->seen);
    kill(t->pid, SIGKILL);
    _fail(__FILE__, __LINE__);
    return false;
}

/* Read until the terminal has shown `text` (after what was waited for before). */
static void wait_for(terminal *t, const char *text)
{
    const char *at;
    while (!(at = strstr(t->seen + t->n_taken, text)))
        if (!read_on(t, text)) return;
    t->n_taken = (size_t)(at - t->seen) + strlen(text);
}

/* Read until so many bytes came after what was waited for. */
static void wait_for_bytes(terminal *t, size_t n)
{
    while (t->n_seen - t->n_taken < n)
        if (!read_on(t, "more")) return;
}

static void type(terminal *t, const char *keys)
{
    T_EQ(write(t->fd, keys, strlen(keys)), strlen(keys));
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

static int end(terminal *t)
{
    for (;;) { // a child that cannot write cannot end
        const ssize_t n = read(t->fd, t->seen + t->n_seen, sizeof t->seen - 1 - t->n_seen);
        if (n <= 0) break;
        t->n_seen += (size_t)n;
    }
    close(t->fd);
    return exit_code(t->pid);
}

T_TEST(typed_chat)
{
    T_BEGIN;
    static terminal t;
    char variable[128], history[128];
    snprintf(variable, sizeof variable, "XDG_STATE_HOME=%s/state", scratch);
    snprintf(history, sizeof history, "%s/state/coli/history", scratch);
    start(&t, LIST(variable), LIST("chat", "--temp", "0", "--model", MODEL));
    wait_for(&t, "hummingbird · ");
    wait_for(&t, "\033[?2004h");
    wait_for(&t, "> ");
    type(&t, "What is 17 + 25?\r");
    wait_for(&t, "42");
    wait_for(&t, " tok · ");
    wait_for(&t, "> ");
    /* three lines at once are one message */
    type(&t, "\033[200~What is\r17 + 25?\rThanks.\n\033[201~");
    wait_for(&t, "Thanks.");
    type(&t, "\r");
    wait_for(&t, " tok · ");
    wait_for(&t, "> ");
    type(&t, "Ciao, Jörg! 日本\r");
    wait_for(&t, " tok · ");
    wait_for(&t, "> ");
    T_EQ(count(t.seen, "TTFT"), 3);
    /* Ctrl-C drops a line, then warns, then leaves */
    type(&t, "never sent");
    wait_for(&t, "never sent");
    type(&t, "\003");
    wait_for(&t, "> ");
    type(&t, "\003");
    wait_for(&t, "Ctrl-C again leaves");
    wait_for(&t, "> ");
    type(&t, ":hepl\r");
    wait_for(&t, "did you mean :help?");
    wait_for(&t, "> ");
    type(&t, "\003");
    wait_for(&t, "Ctrl-C again leaves");
    wait_for(&t, "> ");
    type(&t, "\003");
    T_EQ(end(&t), 130);

    struct stat st;
    T_EQ(stat(history, &st), 0);
    T_EQ(st.st_mode & 0777, 0600);
    size_t n;
    char *lines = slurp(history, &n);
    T_TRUE(has(lines, "What\\040is\\01217\\040+\\04025?\\012Thanks.\n")); // as libedit writes it
    T_TRUE(!has(lines, "never"));
    free(lines);

    /* the next conversation finds the last line with one key; Ctrl-D leaves */
    start(&t, LIST(variable, "NO_COLOR=1"),
          LIST("chat", "--no-think", "--temp", "0", "--model", MODEL));
    wait_for(&t, "> ");
    type(&t, "\033[A");
    wait_for(&t, ":hepl");
    type(&t, "\033[A");
    wait_for(&t, "Jörg! 日本");
    type(&t, "\003");
    wait_for(&t, "> ");
    type(&t, "\004");
    T_EQ(end(&t), 0);
    T_TRUE(!has(t.seen, "\033[2m"));
}

T_TEST(ctrl_c_stops_the_answer_and_keeps_the_conversation)
{
    T_BEGIN;
    static terminal t;
    /* hot sampling without an end: it goes on until it is stopped */
    start(&t, NULL,
          LIST("chat", "--no-history", "--temp", "100", "--top-k", "0", "--top-p", "1", "--seed",
               "2", "--model", MODEL));
    wait_for(&t, "> ");
    type(&t, "Tell me a story.\r");
    wait_for(&t, "\n");
    wait_for(&t, "\033[2m"); // it thinks, dimmed
    type(&t, "\003");
    wait_for(&t, "\033[0m");
    wait_for(&t, " tok · "); // how far it came
    wait_for(&t, "stopped");
    wait_for(&t, "> ");
    type(&t, ":reset\r");
    wait_for(&t, "forgotten");
    wait_for(&t, "> ");
    type(&t, ":quit\r");
    T_EQ(end(&t), 0);
}

/* An answer that goes on until it is stopped. */
static void start_babbling(terminal *t)
{
    start(t, NULL,
          LIST("chat", "--no-history", "--temp", "100", "--top-k", "0", "--top-p", "1", "--seed",
               "2", "--model", MODEL));
    wait_for(t, "> ");
    type(t, "Tell me a story.\r");
    wait_for(t, "\033[2m"); // it thinks, dimmed
    wait_for_bytes(t, 200);
}

T_TEST(ctrl_c_twice_during_an_answer_leaves)
{
    T_BEGIN;
    static terminal t;
    /* as fast as fingers are (the system makes one signal of two at the same moment), and the second
     * when the prompt is there again */
    for (int slowly = 0; slowly < 2; slowly++) {
        start_babbling(&t);
        type(&t, "\003");
        if (slowly) {
            wait_for(&t, "stopped");
            wait_for(&t, "> ");
        } else {
            usleep(5000);
        }
        type(&t, "\003");
        T_EQ(end(&t), 130);
        T_TRUE(!has(t.seen, "again leaves"));
    }
    /* much later it is the first of two */
    start_babbling(&t);
    type(&t, "\003");
    wait_for(&t, "stopped");
    wait_for(&t, "> ");
    usleep(2100 * 1000);
    type(&t, "\003");
    wait_for(&t, "again leaves");
    wait_for(&t, "> ");
    type(&t, "\003");
    T_EQ(end(&t), 130);
}

T_TEST(two_chats_share_a_history)
{
    T_BEGIN;
    static terminal one, two;
    char variable[128], history[128];
    snprintf(variable, sizeof variable, "XDG_STATE_HOME=%s/shared", scratch);
    snprintf(history, sizeof history, "%s/shared/coli/history", scratch);
    const char *const *args = LIST("chat", "--model", MODEL);
    start(&one, LIST(variable), args);
    start(&two, LIST(variable), args);
    wait_for(&one, "> ");
    wait_for(&two, "> ");
    for (int i = 0; i < 2; i++) {
        type(&one, i ? ":one2\r" : ":one1\r");
        wait_for(&one, "hint: ");
        wait_for(&one, "> ");
        type(&two, i ? ":two2\r" : ":two1\r");
        wait_for(&two, "hint: ");
        wait_for(&two, "> ");
    }
    type(&two, "\004");
    T_EQ(end(&two), 0);
    type(&one, "\004");
    T_EQ(end(&one), 0);
    size_t n;
    char *lines = slurp(history, &n);
    T_TRUE(has(lines, ":one1\n:two1\n:one2\n:two2\n"));
    free(lines);

    /* what something else wrote there stays */
    static const char precious[] = "not to be lost\n";
    spill(history, precious, strlen(precious));
    start(&one, LIST(variable), args);
    wait_for(&one, "not a history of this program");
    wait_for(&one, "> ");
    type(&one, ":lost\r");
    wait_for(&one, "> ");
    type(&one, "\004");
    T_EQ(end(&one), 0);
    T_EQ(count(one.seen, "not remembered"), 1);
    lines = slurp(history, &n);
    T_STR(lines, precious);
    free(lines);
}

T_TEST(ctrl_c_ends_a_run)
{
    T_BEGIN;
    static terminal t;
    start(&t, NULL,
          LIST("run", "--temp", "100", "--top-k", "0", "--top-p", "1", "--seed", "1", "--model",
               MODEL, "Hi"));
    wait_for(&t, "\033[2m");
    type(&t, "\003");
    T_EQ(end(&t), 130);
    T_TRUE(has(t.seen, "stopped"));
}

/* Until the program has read every key: what comes next, it meets where it is now. */
static void wait_until_read(const terminal *t)
{
    const int keys = open(ptsname(t->fd), O_RDWR | O_NOCTTY);
    assert_true(keys >= 0);
    for (int left = 1; left > 0; usleep(1000)) assert_int_equal(ioctl(keys, FIONREAD, &left), 0);
    close(keys);
}

T_TEST(ctrl_c_leaves_a_paste_that_never_ends)
{
    T_BEGIN;
    static terminal t;
    start(&t, NULL, LIST("chat", "--no-history", "--no-think", "--temp", "0", "--model", MODEL));
    wait_for(&t, "> ");
    type(&t, "\033[200~lost and\rforgotten");
    wait_until_read(&t);
    type(&t, "\003");
    wait_for(&t, "> ");
    type(&t, "What is 17 + 25?\r");
    wait_for(&t, "42");
    wait_for(&t, " tok · ");
    wait_for(&t, "> ");
    type(&t, "\004");
    T_EQ(end(&t), 0);
    T_TRUE(!has(t.seen, "forgotten"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(typed_chat),
        cmocka_unit_test(ctrl_c_stops_the_answer_and_keeps_the_conversation),
        cmocka_unit_test(ctrl_c_twice_during_an_answer_leaves),
        cmocka_unit_test(two_chats_share_a_history),
        cmocka_unit_test(ctrl_c_ends_a_run),
        cmocka_unit_test(ctrl_c_leaves_a_paste_that_never_ends),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
