/* store_fault.c - experts that cannot be read, and a model.coli that becomes shorter: the turn fails with a
 * message that says what, the session is at its beginning, and the process lives. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "digest.h"

#include "libcoli/src/base/child.h"
#include "libcoli/src/moe/store.h"

enum { N_FEED = 20, N_TOKEN = 6, N_VOCAB = 320 };

static char *model_dir;
static int32_t prompt[N_FEED];
static float want[(N_TOKEN + 1) * N_VOCAB];

/* -- a disk that misbehaves -------------------------------------------------------------------- */

static coli__sys real;
static atomic_int n_read, fail_at, fail_code; // fail_code 0: the read finds nothing
static size_t most_bytes;                     // of one read; 0: any number

static ptrdiff_t bad_pread(int fd, void *bytes, size_t n, uint64_t offset)
{
    if (atomic_fetch_add(&n_read, 1) + 1 == atomic_load(&fail_at)) {
        errno = atomic_load(&fail_code);
        return errno ? -1 : 0;
    }
    return real.pread(fd, bytes, most_bytes && n > most_bytes ? most_bytes : n, offset);
}

static void disk(int at, int code, size_t most)
{
    atomic_store(&n_read, 0);
    atomic_store(&fail_at, at);
    atomic_store(&fail_code, code);
    most_bytes = most;
    coli__sys_calls.pread = bad_pread;
}

static int restore(void **state)
{
    (void)state;
    coli__sys_calls = real;
    return 0;
}

/* -- runs -------------------------------------------------------------------------------------- */

static coli_model *open_model(const char *dir, uint32_t n_slot)
{
    const coli_model_opts opts = {
        .struct_size = sizeof opts, .n_threads = 2, .backend = "none", .ram_experts = n_slot};
    coli_model *m;
    T_OK(coli_model_open(dir, &opts, &m));
    return m;
}

/* The prompt, then the likeliest tokens; logits after each. */
static coli_status run(coli_session *s, float *out)
{
    coli_status status = coli_session_feed(s, prompt, N_FEED);
    for (uint32_t i = 0; status == COLI_OK; i++) {
        float *logits = out + i * N_VOCAB;
        memcpy(logits, coli_session_logits(s), N_VOCAB * sizeof *out);
        if (i == N_TOKEN) break;
        int32_t id = 0;
        for (int32_t v = 1; v < N_VOCAB; v++)
            if (logits[v] > logits[id]) id = v;
        status = coli_session_feed(s, &id, 1);
    }
    return status;
}

static coli_store_stats stats_of(const coli_model *m)
{
    coli_store_stats s = {.struct_size = sizeof s};
    T_OK(coli_model_get_store_stats(m, &s));
    return s;
}

/* Every read of a run fails once: the turn fails, or it was a guess and nobody hears of it.  The next turn
 * is as if nothing had been. */
static void each_read_fails(uint32_t n_slot, int code, const char *text)
{
    float got[(N_TOKEN + 1) * N_VOCAB];
    coli_model *m = open_model(model_dir, n_slot);
    coli_session *s = world_session(m, 64, 8);
    disk(0, 0, 0);
    T_OK(run(s, got));
    const int n = atomic_load(&n_read);
    coli_session_destroy(s);
    coli_model_close(m);
    T_TRUE(n > 50);
    uint32_t n_failed = 0, n_unheard = 0;
    for (int at = 1; at <= n; at += 1 + n / 20) {
        m = open_model(model_dir, n_slot);
        s = world_session(m, 64, 8);
        disk(at, code, 0);
        const coli_status status = run(s, got);
        if (status != COLI_OK) {
            n_failed++;
            T_EQ(status, COLI_E_IO);
            static const char *const parts[] = {"model.coli", "layer ", "expert "};
            for (int i = 0; i < 3; i++) T_TRUE(strstr(coli_error_message(), parts[i]) != NULL);
            T_TRUE(strstr(coli_error_message(), text) != NULL);
            T_EQ(coli_session_pos(s), 0);
            T_TRUE(coli_session_logits(s) == NULL);
            T_OK(run(s, got));
        } else if (stats_of(m).n_read_failed > 0) {
            n_unheard++;
        }
        T_MEM(got, want, sizeof got);
        T_TRUE(coli__store_is_sound(m->store));
        coli_session_destroy(s);
        coli_model_close(m);
    }
    print_message("    %d reads; %u runs failed, %u did not hear of it\n", n, n_failed, n_unheard);
    T_TRUE(n_failed > 0);
}

T_TEST(each_read_has_an_error)
{
    T_BEGIN;
    each_read_fails(1, EIO, strerror(EIO));
    each_read_fails(5, EIO, strerror(EIO));
}

T_TEST(each_read_finds_the_end_of_the_file)
{
    T_BEGIN;
    each_read_fails(3, 0, "shorter");
}

T_TEST(short_and_interrupted_reads_go_on)
{
    T_BEGIN;
    float got[(N_TOKEN + 1) * N_VOCAB];
    coli_model *m = open_model(model_dir, 2);
    coli_session *s = world_session(m, 64, 8);
    disk(7, EINTR, 4096);
    T_OK(run(s, got));
    T_MEM(got, want, sizeof got);
    const coli_store_stats stats = stats_of(m);
    T_EQ(stats.n_read_failed, 0);
    T_TRUE(stats.n_read > 0 && (uint64_t)atomic_load(&n_read) > stats.n_read);
    coli_session_destroy(s);
    coli_model_close(m);
}

/* A system that opens a file for direct reads and then does not do any. */
T_TEST(without_direct_reads_the_cache_is_used)
{
    T_BEGIN;
    float got[(N_TOKEN + 1) * N_VOCAB];
    coli_model *m = open_model(model_dir, 2);
    if (!stats_of(m).is_direct) print_message("    this file system has no direct reads\n");
    coli_session *s = world_session(m, 64, 8);
    disk(1, EINVAL, 0);
    if (stats_of(m).is_direct) T_OK(run(s, got));
    T_TRUE(!stats_of(m).is_direct);
    coli_session_reset(s);
    disk(0, 0, 0);
    T_OK(run(s, got));
    T_MEM(got, want, sizeof got);
    T_EQ(stats_of(m).n_read_failed, 0);
    coli_session_destroy(s);
    coli_model_close(m);
}

static ptrdiff_t no_pread(int fd, void *bytes, size_t n, uint64_t offset)
{
    (void)fd, (void)bytes, (void)n, (void)offset;
    atomic_fetch_add(&n_read, 1);
    errno = EIO;
    return -1;
}

/* Wait for this many reads to fail, and a moment for what their threads do then. */
static void wait_for_reads(int n)
{
    while (atomic_load(&n_read) < n) usleep(200);
    usleep(20000);
}

/* The message is about the expert that is needed, not about a guess that failed after it. */
T_TEST(each_failure_has_its_own_message)
{
    T_BEGIN;
    coli_model *m = open_model(model_dir, 4);
    const coli__ct_experts *layer = coli__container_experts(m->container, 1);
    disk(0, 0, 0);
    coli__sys_calls.pread = no_pread;
    T_TRUE(coli__store_ask(m->store, layer, 3));
    wait_for_reads(1);
    coli__store_guess(m->store, layer, (const int32_t[]){5}, 1);
    wait_for_reads(2);
    T_FAILS(coli__store_collect(m->store, true), COLI_E_IO, "expert 3");
    T_EQ(stats_of(m).n_read_failed, 2);
    T_TRUE(coli__store_is_sound(m->store));
    T_TRUE(coli__store_ask(m->store, layer, 7));
    wait_for_reads(3);
    coli_model_close(m); // with a failure that nobody has heard of
}

/* -- memory and threads ------------------------------------------------------------------------ */

T_TEST(nothing_is_allocated_per_token)
{
    T_BEGIN;
    float got[(N_TOKEN + 1) * N_VOCAB];
    coli_model *m = open_model(model_dir, 3);
    coli_session *s = world_session(m, 64, 8);
    T_OK(run(s, got)); // the first call may set up what the system keeps for a thread
    coli_session_reset(s);
    const uint64_t before = coli__alloc_count();
    T_OK(run(s, got));
    T_EQ(coli__alloc_count() - before, 0);
    T_TRUE(stats_of(m).n_read > 0);
    coli_session_destroy(s);
    coli_model_close(m);
}

T_TEST(opening_without_memory_leaves_nothing)
{
    T_BEGIN;
    const coli_model_opts opts = {
        .struct_size = sizeof opts, .n_threads = 2, .backend = "none", .ram_experts = 2};
    for (uint64_t nth = 1;; nth++) {
        coli_model *m;
        const uint64_t before = coli__alloc_count();
        coli__alloc_fail_at(nth);
        const coli_status status = coli_model_open(model_dir, &opts, &m);
        coli__alloc_fail_at(0);
        if (status == COLI_OK) coli_model_close(m);
        if (coli__alloc_count() - before < nth) break;
        if (status != COLI_OK) T_EQ(status, COLI_E_NOMEM);
    }
}

static void *one_of_two(void *arg)
{
    float got[(N_TOKEN + 1) * N_VOCAB];
    coli_session *s = world_session(arg, 64, 8);
    for (int i = 0; i < 3; i++) {
        T_OK(run(s, got));
        T_MEM(got, want, sizeof got);
        coli_session_reset(s);
    }
    coli_session_destroy(s);
    return NULL;
}

T_TEST(two_sessions_at_a_time)
{
    T_BEGIN;
    coli_model *m = open_model(model_dir, 3);
    pthread_t other;
    T_EQ(pthread_create(&other, NULL, one_of_two, m), 0);
    one_of_two(m);
    pthread_join(other, NULL);
    T_TRUE(coli__store_is_sound(m->store));
    coli_model_close(m);
}

/* -- heat -------------------------------------------------------------------------------------- */

/* A run without devices learns, and the next one keeps what it learned in memory. */
T_TEST(pins_are_learned)
{
    T_BEGIN;
    char *path = world_path(world_scratch(), "learned.heat");
    coli_model_opts opts = {.struct_size = sizeof opts,
                            .n_threads = 2,
                            .backend = "none",
                            .ram_experts = 6,
                            .heat = path,
                            .pin_bytes = 1 << 20};
    float got[(N_TOKEN + 1) * N_VOCAB];
    uint64_t n_miss[2];
    for (int i = 0; i < 2; i++) {
        coli_model *m;
        T_OK(coli_model_open(model_dir, &opts, &m));
        coli_session *s = world_session(m, 64, 8);
        T_OK(run(s, got));
        T_MEM(got, want, sizeof got);
        const coli_store_stats stats = stats_of(m);
        T_EQ(stats.n_pinned, i == 0 ? 0 : 3 * m->shape.n_moe_layer); // half of the slots
        n_miss[i] = stats.n_miss;
        coli_session_destroy(s);
        coli_model_close(m);
    }
    T_TRUE(n_miss[1] < n_miss[0]);
    coli_heat *heat;
    coli_heat_info info = {.struct_size = sizeof info};
    T_OK(coli_heat_open(path, &heat));
    T_OK(coli_heat_get_info(heat, &info));
    T_EQ(info.n_token, 2 * N_TOKEN);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < info.n_layer * info.n_expert; i++) sum += info.counts[i];
    T_TRUE(sum > 0);
    coli_heat_close(heat);
    free(path);
}

/* The last thing that is said while a model is opened: its file is whole no longer. */
static void cut_the_model(void *user, const char *line)
{
    coli__buf whole = {0};
    T_TRUE(strncmp(line, "RAM: ", 5) == 0);
    T_OK(coli__file_read(user, 1 << 28, &whole));
    T_EQ(truncate(user, (off_t)whole.n_bytes - 1), 0);
    coli__buf_finish(&whole);
}

T_TEST(an_open_that_fails_leaves_the_heat_alone)
{
    T_BEGIN;
    char *path = world_path(world_scratch(), "kept.heat"),
         *dir = world_container(TEST_FIXTURES "/qwen36-tiny-a", "cut", "int4", "int8"),
         *weights = world_path(dir, "model.coli");
    coli_model_opts opts = {
        .struct_size = sizeof opts, .backend = "none", .ram_experts = 6, .heat = path};
    float got[(N_TOKEN + 1) * N_VOCAB];
    coli_model *m;
    T_OK(coli_model_open(dir, &opts, &m));
    coli_session *s = world_session(m, 64, 8);
    T_OK(run(s, got));
    coli_session_destroy(s);
    coli_model_close(m);
    coli__buf learned = {0}, left = {0};
    T_OK(coli__file_read(path, 1 << 20, &learned));
    opts.note = cut_the_model;
    opts.user = weights;
    T_FAILS(coli_model_open(dir, &opts, &m), COLI_E_IO, "became shorter");
    T_OK(coli__file_read(path, 1 << 20, &left));
    T_EQ(left.n_bytes, learned.n_bytes);
    T_MEM(left.data, learned.data, learned.n_bytes);
    coli__buf_finish(&learned);
    coli__buf_finish(&left);
    free(path);
    free(dir);
    free(weights);
}

/* -- a file that becomes shorter --------------------------------------------------------------- */

/* What became of a child.  They are run before cmocka, whose own handlers would stand in the way of what
 * is tried here. */
typedef struct outcome {
    coli__child_event event;
    char message[COLI__CHILD_MESSAGE + 1]; // what was wrong
    char death[64];
} outcome;

static outcome shrunk, foreign_handled, foreign_default;

static void run_child(coli__child_fn fn, void *ctx, outcome *out)
{
    enum { SILENT_S = 60 };
    coli__child *child;
    size_t n = 0;
    out->event = COLI__CHILD_SILENT;
    if (coli__child_start(fn, ctx, 16, &child) != COLI_OK) return;
    char message[COLI__CHILD_MESSAGE];
    while ((out->event = coli__child_wait(child, SILENT_S * 1000000000ull, message, &n)) ==
           COLI__CHILD_SAID) {
        memcpy(out->message, message, n);
        out->message[n] = 0;
    }
    if (out->event == COLI__CHILD_DIED)
        snprintf(out->death, sizeof out->death, "%s", coli__child_death(child));
    coli__child_destroy(child);
}

static void say(coli__child *self, const char *text)
{
    coli__child_say(self, text, strlen(text));
}

static void shrink(coli__child *self, void *ctx)
{
    const char *dir = ctx;
    char path[512];
    snprintf(path, sizeof path, "%s/model.coli", dir);
    const coli_model_opts opts = {.struct_size = sizeof opts, .n_threads = 2, .backend = "none"};
    coli_model *m = NULL;
    coli_session *s = NULL;
    if (coli_model_open(dir, &opts, &m) != COLI_OK || coli_session_create(m, NULL, &s) != COLI_OK ||
        coli_session_feed(s, prompt, N_FEED) != COLI_OK)
        say(self, coli_error_message());
    if (truncate(path, 20000) != 0) say(self, "it cannot be cut");
    for (int i = 0; i < 2; i++) { // also later
        const coli_status status = coli_session_feed(s, prompt, N_FEED);
        if (status != COLI_E_IO || !strstr(coli_error_message(), "became shorter"))
            say(self, status == COLI_OK ? "no error" : coli_error_message());
        if (coli_session_pos(s) != 0) say(self, "the session is not at its beginning");
    }
    coli_session_destroy(s);
    coli_model_close(m);
    if (coli_model_open(dir, &opts, &m) == COLI_OK) say(self, "it could be opened again");
}

T_TEST(a_file_that_becomes_shorter_is_an_error)
{
    T_BEGIN;
    T_STR(shrunk.message, "");
    T_STR(shrunk.death, "");
    T_EQ(shrunk.event, COLI__CHILD_DONE);
}

/* A page behind the end of a file that is nobody's but the host program's. */
static volatile char *page_without_file(void)
{
    char path[] = "/tmp/coli-store-fault-XXXXXX";
    const int fd = mkstemp(path);
    unlink(path);
    volatile char *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return page;
}

static sigjmp_buf jump;

static void host_handler(int signal_number)
{
    (void)signal_number;
    siglongjmp(jump, 1);
}

static void touch_foreign(coli__child *self, void *ctx)
{
    const bool has_handler = *(const bool *)ctx;
    signal(SIGBUS, has_handler ? host_handler : SIG_DFL);
    const coli_model_opts opts = {.struct_size = sizeof opts, .backend = "none"};
    coli_model *m;
    if (coli_model_open(model_dir, &opts, &m) != COLI_OK) say(self, coli_error_message());
    if (sigsetjmp(jump, 1) == 0) {
        (void)*page_without_file();
        say(self, "nothing happened");
    }
    coli_model_close(m);
}

T_TEST(other_bus_errors_are_the_hosts)
{
    T_BEGIN;
    T_STR(foreign_handled.message, "");
    T_EQ(foreign_handled.event, COLI__CHILD_DONE);
    T_STR(foreign_default.message, "");
    T_EQ(foreign_default.event, COLI__CHILD_DIED);
    T_STR(foreign_default.death, strsignal(SIGBUS));
}

static void run_children(void)
{
    char *dir = world_path(world_scratch(), "shrinks"), command[700];
    snprintf(command, sizeof command, "cp -r '%s' '%s'", model_dir, dir);
    if (system(command) == 0) run_child(shrink, dir, &shrunk);
    bool has_handler = true;
    run_child(touch_foreign, &has_handler, &foreign_handled);
    has_handler = false;
    run_child(touch_foreign, &has_handler, &foreign_default);
    free(dir);
}

static int setup(void **state)
{
    (void)state;
    real = coli__sys_calls;
    coli_model *m = open_model(model_dir, 0);
    T_EQ(m->shape.n_vocab, N_VOCAB);
    coli_session *s = world_session(m, 64, 8);
    T_OK(run(s, want));
    coli_store_stats stats = stats_of(m);
    T_TRUE(!stats.is_limited);
    T_EQ(stats.n_hit + stats.n_miss + stats.n_read, 0);
    coli_session_destroy(s);
    coli_model_close(m);
    return 0;
}

static int teardown(void **state)
{
    free(model_dir);
    return world_teardown(state);
}

int main(void)
{
    model_dir = world_container(TEST_FIXTURES "/qwen36-tiny-a", "tiny", "int4", "int8");
    digest_prompt(N_VOCAB, prompt, N_FEED);
    run_children();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(each_read_has_an_error, restore),
        cmocka_unit_test_teardown(each_read_finds_the_end_of_the_file, restore),
        cmocka_unit_test_teardown(short_and_interrupted_reads_go_on, restore),
        cmocka_unit_test_teardown(without_direct_reads_the_cache_is_used, restore),
        cmocka_unit_test_teardown(each_failure_has_its_own_message, restore),
        cmocka_unit_test(nothing_is_allocated_per_token),
        cmocka_unit_test(opening_without_memory_leaves_nothing),
        cmocka_unit_test(two_sessions_at_a_time),
        cmocka_unit_test(pins_are_learned),
        cmocka_unit_test(an_open_that_fails_leaves_the_heat_alone),
        cmocka_unit_test(a_file_that_becomes_shorter_is_an_error),
        cmocka_unit_test(other_bus_errors_are_the_hosts)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
