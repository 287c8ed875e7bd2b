/* convert_kill.c - a conversion that is killed, at any instant, and the one that comes after it: it goes
 * on or begins anew, says which, and makes the container that an undisturbed one makes.
 *
 * Instants are chosen twice over.  By number: before, in the middle of and behind every system call
 * that leaves something on the disk.  And by the clock, 50 of them, wherever that is. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "micro.h"

#include "coli/coli.h"
#include "libcoli/src/model/convert_job.h"

static const char *src, *out, *partial, *partial_journal, *partial_model, *whole;
static const char *kill_experts = "int4"; // of the conversions that are killed
static char notes[1 << 14];
static coli__sys real;

static void take_note(void *user, const char *line)
{
    (void)user;
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s|", line);
}

static coli_status convert_to(const char *to, const char *experts)
{
    const coli__convert_args args = {.src = src,
                                     .out = to,
                                     .describe = coli__engine_describe,
                                     .n_thread = 2,
                                     .tell_bytes = 1,
                                     .note = take_note,
                                     .experts = micro_format(experts),
                                     .trunk = micro_format("int8")};
    notes[0] = 0;
    return coli__convert(&args);
}

/* What is killed here is a process, not the machine: what was written is there. */
static int no_fsync(int fd)
{
    (void)fd;
    return 0;
}

static int setup(void **state)
{
    if (micro_setup(state)) return 1;
    micro m;
    micro_init(&m, MICRO_CONFIG(6, ""), 21, MICRO_SINGLE);
    src = micro_write(&m, micro_path("src"));
    micro_finish(&m);
    micro_text(micro_path("src/chat_template.jinja"), "x");
    micro_text(micro_path("src/tokenizer.json"), "{}");
    out = micro_path("out");
    partial = micro_path("out.partial");
    partial_journal = micro_path("out.partial/" COLI_JOB_FILE);
    partial_model = micro_path("out.partial/model.coli");
    whole = micro_path("whole");
    coli__sys_calls.fsync = no_fsync;
    real = coli__sys_calls;
    T_OK(convert_to(whole, "int4"));
    return 0;
}

/* Every file of two directories. */
static void same_dirs(const char *a, const char *b, const char *when)
{
    char **names[2];
    size_t n[2];
    const char *dirs[2] = {a, b};
    for (int i = 0; i < 2; i++) T_OK(coli__dir_list(dirs[i], &names[i], &n[i]));
    if (n[0] != n[1]) fail_msg("%s: %zu files, expected %zu", when, n[0], n[1]);
    for (size_t i = 0; i < n[0]; i++) {
        char paths[2][600];
        for (int k = 0; k < 2; k++)
            snprintf(paths[k], sizeof paths[k], "%s/%s", dirs[k], names[k][i]);
        coli__buf x = micro_read(paths[0]), y = micro_read(paths[1]);
        if (strcmp(names[0][i], names[1][i]) != 0 || x.n_bytes != y.n_bytes ||
            (x.n_bytes && memcmp(x.data, y.data, x.n_bytes) != 0))
            fail_msg("%s: %s is not the file of an undisturbed conversion", when, names[0][i]);
        coli__buf_finish(&x);
        coli__buf_finish(&y);
    }
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < n[k]; i++) coli__free(names[k][i]);
        coli__free(names[k]);
    }
}

/* -- killing ----------------------------------------------------------------------------------- */

static uint64_t n_call, kill_at; // two instants for a call: before it and, where it can be, in it

static bool at(uint64_t instant)
{
    return instant == kill_at;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
}

static ptrdiff_t write_or_die(int fd, const void *bytes, size_t n_bytes)
{
    const uint64_t call = n_call++;
    if (at(2 * call)) die();
    if (at(2 * call + 1)) {
        real.write(fd, bytes, n_bytes / 2);
        die();
    }
    return real.write(fd, bytes, n_bytes);
}

static int fsync_or_die(int fd)
{
    (void)fd;
    if (at(2 * n_call++)) die();
    return 0;
}

static int close_or_die(int fd)
{
    if (at(2 * n_call++)) die();
    return real.close(fd);
}

static int rename_or_die(const char *from, const char *to)
{
    const uint64_t call = n_call++;
    if (at(2 * call)) die();
    const int result = real.rename(from, to);
    if (at(2 * call + 1)) die();
    return result;
}

/* Run fn in a process of its own; false when it was killed, by itself or after so many ns. */
static bool survives(void (*fn)(void), uint64_t after_ns)
{
    const pid_t child = fork();
    T_TRUE(child >= 0);
    if (child == 0) {
        fn();
        _exit(0);
    }
    if (after_ns) {
        const struct timespec t = {(time_t)(after_ns / 1000000000), (long)(after_ns % 1000000000)};
        nanosleep(&t, NULL);
        kill(child, SIGKILL);
    }
    int result;
    T_EQ(waitpid(child, &result, 0), child);
    if (!WIFSIGNALED(result) && !(WIFEXITED(result) && WEXITSTATUS(result) == 0))
        fail_msg("the child ended with %d", result);
    if (WIFSIGNALED(result)) T_EQ(WTERMSIG(result), SIGKILL);
    return !WIFSIGNALED(result);
}

static void convert_and_maybe_die(void)
{
    coli__sys_calls.write = write_or_die;
    coli__sys_calls.fsync = fsync_or_die;
    coli__sys_calls.close = close_or_die;
    coli__sys_calls.rename = rename_or_die;
    if (convert_to(out, kill_experts) != COLI_OK) _exit(1);
}

/* So that the clock meets it while it writes, and not only while it opens the source. */
static ptrdiff_t write_slowly(int fd, const void *bytes, size_t n_bytes)
{
    const struct timespec t = {0, 200000};
    nanosleep(&t, NULL);
    return real.write(fd, bytes, n_bytes);
}

static void convert_slowly(void)
{
    coli__sys_calls.write = write_slowly;
    if (convert_to(out, "int4") != COLI_OK) _exit(1);
}

/* -- what is found ----------------------------------------------------------------------------- */

typedef struct count {
    int n, killed, went_on, anew, from_nothing, complete;
} count;

static void tell(const count *n)
{
    print_message("%d went on, %d began anew, %d from nothing, %d were complete\n", n->went_on,
                  n->anew, n->from_nothing, n->complete);
}

/* Nobody takes what is there for a model: either it is told what it is, or it is the whole one. */
static void check_what_is_left(const char *when)
{
    coli__container *c;
    const coli_status status = coli__container_open(partial, &c);
    if (status == COLI_OK) {
        const coli_status right = coli__container_verify(c, coli__engine_describe, NULL, NULL);
        if (right != COLI_OK) fail_msg("%s: opens, but: %s", when, coli_error_message());
        coli__container_close(c);
        return;
    }
    if (coli__job_is_in(partial) && !strstr(coli_error_message(), "not finished"))
        fail_msg("%s: %s", when, coli_error_message());
}

/* The next conversion, after one that was killed. */
static void check_next(const char *when, count *n)
{
    if (coli__path_exists(out)) { // it was killed when all was done
        T_FAILS(convert_to(out, "int4"), COLI_E_EXISTS, "already exists");
        coli__file_remove(micro_path("out/" COLI_JOB_FILE));
        same_dirs(whole, out, when);
        coli__dir_remove(out);
        n->complete++;
        return;
    }
    check_what_is_left(when);
    if (convert_to(out, "int4") != COLI_OK) fail_msg("%s: %s", when, coli_error_message());
    same_dirs(whole, out, when);
    if (coli__path_exists(partial)) fail_msg("%s: OUT.partial is still there", when);
    coli__dir_remove(out);
    if (strstr(notes, "going on with"))
        n->went_on++;
    else if (strstr(notes, "beginning anew"))
        n->anew++;
    else
        n->from_nothing++;
}

T_TEST(killed_at_every_call)
{
    T_BEGIN;
    count n = {0};
    for (kill_at = 0;; kill_at++) {
        char when[64];
        snprintf(when, sizeof when, "killed at instant %" PRIu64, kill_at);
        n_call = 0;
        if (survives(convert_and_maybe_die, 0)) {
            if (coli__path_exists(out)) coli__dir_remove(out);
            if (kill_at % 2 == 0) break; // odd ones are in a call, which not every call has
            continue;
        }
        check_next(when, &n);
    }
    tell(&n);
    T_GE(n.went_on, 50);
    T_GE(n.from_nothing, 2);
    T_GE(n.complete, 1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static count by_clock;

T_PROP(killed_at_fifty_instants, 50)
{
    static uint64_t shortest = UINT64_MAX; // that an undisturbed one takes
    for (int i = 0; i < 5 && by_clock.n == 0; i++) {
        const uint64_t begin = now_ns();
        T_TRUE(survives(convert_slowly, 0));
        const uint64_t took = now_ns() - begin;
        if (took < shortest) shortest = took;
        coli__dir_remove(out);
    }
    by_clock.n++;
    const uint64_t after = 1 + t_u64(&rng) % shortest;
    char when[64];
    snprintf(when, sizeof when, "killed %" PRIu64 " us after its start", after / 1000);
    if (survives(convert_slowly, after)) {
        same_dirs(whole, out, when);
        coli__dir_remove(out);
    } else {
        by_clock.killed++;
        check_next(when, &by_clock);
    }
}

T_TEST(the_clock_met_it_at_work)
{
    T_BEGIN;
    tell(&by_clock);
    if (!getenv("T_SEED")) T_GE(by_clock.killed, 10);
}

/* Killed again and again, it arrives. */
T_TEST(killed_all_the_time)
{
    T_BEGIN;
    for (kill_at = 40; !coli__path_exists(out); kill_at += 3) {
        n_call = 0;
        survives(convert_and_maybe_die, 0);
        T_LE(kill_at, 2000);
    }
    coli__file_remove(micro_path("out/" COLI_JOB_FILE));
    same_dirs(whole, out, "killed all the time");
    coli__dir_remove(out);
}

/* -- what may not be gone on with -------------------------------------------------------------- */

/* Leave a conversion of which about half is told. */
static void leave_half(void)
{
    kill_at = 2 * 60;
    n_call = 0;
    T_TRUE(!survives(convert_and_maybe_die, 0));
    T_TRUE(coli__job_is_in(partial));
}

T_TEST(other_formats_begin_anew)
{
    T_BEGIN;
    leave_half();
    T_OK(convert_to(out, "int8"));
    T_TRUE(strstr(notes, "beginning anew: ") != NULL);
    T_TRUE(strstr(notes, "\"experts int4-g64-f16\" then, \"experts int8-g64-f16\" now") != NULL);
    const char *plain = micro_path("int8");
    T_OK(convert_to(plain, "int8"));
    same_dirs(plain, out, "other formats");
    coli__dir_remove(out);
    coli__dir_remove(plain);
}

/* A recipe that comes to other formats is another conversion; one that does not is the same. */
T_TEST(another_recipe_begins_anew)
{
    T_BEGIN;
    static const char *const texts[] = {"experts int4\ntrunk int8\n",
                                        "experts.down int8 layers 1\n"};
    for (int i = 0; i < 2; i++) {
        coli__recipe *r;
        T_OK(coli__recipe_parse("r", texts[i], strlen(texts[i]), &r));
        leave_half();
        const coli__convert_args args = {.src = src,
                                         .out = out,
                                         .describe = coli__engine_describe,
                                         .n_thread = 2,
                                         .note = take_note,
                                         .recipe = r,
                                         .experts = micro_format("int4"),
                                         .trunk = micro_format("int8")};
        notes[0] = 0;
        T_OK(coli__convert(&args));
        T_TRUE((strstr(notes, "beginning anew: ") != NULL) == (i == 1));
        coli__recipe_close(r);
        if (i == 0) same_dirs(whole, out, "the same formats");
        coli__dir_remove(out);
    }
}

static void flip(const char *path, long offset)
{
    FILE *f = fopen(path, "r+b");
    T_TRUE(f != NULL);
    T_EQ(fseek(f, offset, offset < 0 ? SEEK_END : SEEK_SET), 0);
    const int byte = fgetc(f);
    T_TRUE(byte != EOF);
    T_EQ(fseek(f, -1, SEEK_CUR), 0);
    fputc(byte ^ 1, f);
    T_EQ(fclose(f), 0);
}

T_TEST(a_changed_source_begins_anew)
{
    T_BEGIN;
    leave_half();
    const char *weights = micro_path("src/model.safetensors");
    flip(weights, -1);
    T_OK(convert_to(out, "int4"));
    T_TRUE(strstr(notes, "beginning anew: model.safetensors was changed since ") != NULL);
    const char *plain = micro_path("changed");
    T_OK(convert_to(plain, "int4"));
    same_dirs(plain, out, "changed source");
    coli__dir_remove(out);
    coli__dir_remove(plain);
    flip(weights, -1);
}

/* A byte of what was written, of what is told of it, or the whole file: nothing of it is used. */
T_TEST(what_was_damaged_begins_anew)
{
    T_BEGIN;
    const char *model = micro_path("out.partial/model.coli");
    const char *journal = micro_path("out.partial/" COLI_JOB_FILE);
    for (int i = 0; i < 4; i++) {
        leave_half();
        coli__file_stamp stamp;
        T_OK(coli__file_look(model, &stamp));
        if (i == 0) flip(model, 9000); // weights, behind the head
        if (i == 1) T_EQ(truncate(model, 9000), 0);
        if (i == 2) coli__file_remove(model);
        if (i == 3) flip(journal, 300); // the facts
        T_OK(convert_to(out, "int4"));
        if (!strstr(notes, "beginning anew: ")) fail_msg("%d: %s", i, notes);
        same_dirs(whole, out, "damaged");
        coli__dir_remove(out);
    }
    leave_half(); // the last line of the journal is torn: the ones before it hold
    coli__file_stamp stamp;
    T_OK(coli__file_look(journal, &stamp));
    T_EQ(truncate(journal, (off_t)stamp.n_bytes - 5), 0);
    T_OK(convert_to(out, "int4"));
    T_TRUE(strstr(notes, "going on with ") != NULL);
    same_dirs(whole, out, "torn journal");
    coli__dir_remove(out);
}

T_TEST(two_conversions_exclude_each_other)
{
    T_BEGIN;
    leave_half();
    int lock;
    T_OK(coli__lock_take(micro_path("out.partial/" COLI_JOB_FILE), &lock));
    T_FAILS(convert_to(out, "int4"), COLI_E_EXISTS, "another conversion is writing it now");
    T_TRUE(coli__job_is_in(partial));
    coli__lock_give(lock);
    T_OK(convert_to(out, "int4"));
    T_TRUE(strstr(notes, "going on with ") != NULL);
    coli__dir_remove(out);
}

/* Something happens the moment before the directory gets its last name. */
static void (*before_rename)(void);

static int rename_later(const char *from, const char *to)
{
    coli__sys_calls = real;
    before_rename();
    return real.rename(from, to);
}

static void another_comes(void)
{
    T_FAILS(convert_to(out, "int8"), COLI_E_EXISTS, "another conversion is writing it now");
}

T_TEST(none_comes_between_the_end_and_the_name)
{
    T_BEGIN;
    before_rename = another_comes;
    coli__sys_calls.rename = rename_later;
    T_OK(convert_to(out, "int4"));
    same_dirs(whole, out, "another conversion at the end");
    T_TRUE(!coli__path_exists(partial));
    coli__dir_remove(out);
}

static void name_is_taken(void)
{
    T_EQ(mkdir(out, 0777), 0);
}

/* Somebody who gets the lock as soon as it is free: what he puts there then stays. */
static int close_and_come(int fd)
{
    const int result = real.close(fd);
    static int lock;
    if (coli__path_exists(partial) && coli__lock_take(partial_journal, &lock) == COLI_OK) {
        coli__sys_calls = real;
        micro_text(partial_model, "his");
        coli__lock_give(lock);
    }
    return result;
}

static bool refuse(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)user, (void)what, (void)done, (void)total;
    return false;
}

T_TEST(what_others_put_there_is_not_removed)
{
    T_BEGIN;
    coli__sys_calls.close = close_and_come;
    const coli__convert_args args = {.src = src,
                                     .out = out,
                                     .describe = coli__engine_describe,
                                     .n_thread = 2,
                                     .progress = refuse,
                                     .experts = micro_format("int4"),
                                     .trunk = micro_format("int8")};
    T_EQ(coli__convert(&args), COLI_E_CANCELLED); // the message is that of whoever asked last
    T_TRUE(coli__sys_calls.close == real.close);  // he came
    coli__sys_calls = real;
    coli__buf text = micro_read(partial_model);
    T_EQ(text.n_bytes, 3);
    coli__buf_finish(&text);
    coli__dir_remove(partial);
}

T_TEST(a_name_that_is_taken_at_the_end)
{
    T_BEGIN;
    before_rename = name_is_taken;
    coli__sys_calls.rename = rename_later;
    T_FAILS(convert_to(out, "int4"), COLI_E_EXISTS, "what is done stays in ");
    coli__dir_remove(out);
    T_OK(convert_to(out, "int4"));
    same_dirs(whole, out, "a taken name");
    coli__dir_remove(out);
}

/* Two at once, of two kinds, again and again: one of them makes all of it, the other one says why not.  The
 * disk takes its time, so that they meet everywhere. */
static int fsync_slowly(int fd)
{
    (void)fd;
    const struct timespec t = {0, 100000};
    nanosleep(&t, NULL);
    return 0;
}

typedef struct rival {
    const char *experts;
    coli_status status;
} rival;

static void *compete(void *arg)
{
    rival *r = arg;
    const coli__convert_args args = {.src = src,
                                     .out = out,
                                     .describe = coli__engine_describe,
                                     .n_thread = 1,
                                     .tell_bytes = 1,
                                     .experts = micro_format(r->experts),
                                     .trunk = micro_format("int8")};
    do r->status = coli__convert(&args);
    while (r->status == COLI_E_EXISTS && !coli__path_exists(out));
    return NULL;
}

T_TEST(of_two_rivals_one_is_complete)
{
    T_BEGIN;
    const char *const dirs[2] = {whole, micro_path("whole8")};
    T_OK(convert_to(dirs[1], "int8"));
    int n_won[2] = {0};
    coli__sys_calls.fsync = fsync_slowly;
    for (int round = 0; round < 40; round++) {
        rival rivals[2] = {{.experts = "int4"}, {.experts = "int8"}};
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            T_EQ(pthread_create(&threads[i], NULL, compete, &rivals[(i + round) % 2]), 0);
        for (int i = 0; i < 2; i++) T_EQ(pthread_join(threads[i], NULL), 0);
        const int winner = rivals[0].status == COLI_OK ? 0 : 1;
        n_won[winner]++;
        T_EQ(rivals[winner].status, COLI_OK);
        T_EQ(rivals[!winner].status, COLI_E_EXISTS);
        same_dirs(dirs[winner], out, "two rivals");
        T_TRUE(!coli__path_exists(partial));
        coli__dir_remove(out);
    }
    coli__sys_calls = real;
    print_message("%d and %d were complete\n", n_won[0], n_won[1]);
    coli__dir_remove(dirs[1]);
}

/* -- what is not ours --------------------------------------------------------------------------- */

T_TEST(files_of_others_stay)
{
    T_BEGIN;
    T_EQ(mkdir(partial, 0777), 0);
    micro_text(partial_journal, "buy milk\n");
    micro_text(micro_path("out.partial/thesis"), "all of it");
    T_FAILS(convert_to(out, "int4"), COLI_E_EXISTS, "is not what an unfinished conversion leaves");
    coli__buf list = micro_read(partial_journal);
    T_EQ(list.n_bytes, 9);
    coli__buf_finish(&list);
    coli__dir_remove(partial);

    leave_half(); // beside what is ours: it goes along
    micro_text(micro_path("out.partial/thesis"), "all of it");
    T_OK(convert_to(out, "int8"));
    T_TRUE(strstr(notes, "beginning anew: ") != NULL);
    coli__buf thesis = micro_read(micro_path("out/thesis"));
    T_EQ(thesis.n_bytes, 9);
    coli__buf_finish(&thesis);
    coli__dir_remove(out);
}

/* The line of the journal that says how this program packs. */
static void packing_of(const char *experts, char line[64])
{
    kill_experts = experts;
    leave_half();
    kill_experts = "int4";
    coli__buf text = micro_read(partial_journal);
    const char *at = strstr(text.data, "\npacking ");
    T_TRUE(at != NULL && strstr(at + 1, "\npacking ") == NULL);
    snprintf(line, 64, "%.40s", at + 1);
    coli__buf_finish(&text);
    coli__dir_remove(partial);
}

/* Whatever is asked for, a recipe may lead to all formats. */
T_TEST(all_ways_of_packing_are_facts)
{
    T_BEGIN;
    char lines[2][64];
    packing_of("int4", lines[0]);
    packing_of("int8", lines[1]);
    T_STR(lines[0], lines[1]);
}

/* A crash behind the renaming leaves a journal in a whole container: it opens, and what is wrong with it
 * later is said. */
T_TEST(a_journal_too_many)
{
    T_BEGIN;
    T_OK(convert_to(out, "int4"));
    micro_text(micro_path("out/" COLI_JOB_FILE), "This directory is what a conversion left");
    coli__container *c;
    T_OK(coli__container_open(out, &c));
    coli__container_close(c);
    flip(micro_path("out/model.coli"), 40);
    T_FAILS(coli__container_open(out, &c), COLI_E_FORMAT, "checksum");
    flip(micro_path("out/model.coli"), 40);
    micro_text(micro_path("out/config.json"), "{}");
    T_FAILS(coli__container_open(out, &c), COLI_E_FORMAT, "config.json: is not the file");
    coli__file_remove(micro_path("out/config.json"));
    T_FAILS(coli__container_open(out, &c), COLI_E_NOTFOUND, "config.json");
    coli__file_remove(micro_path("out/model.coli"));
    T_FAILS(coli__container_open(out, &c), COLI_E_FORMAT, "was not finished");
    coli__dir_remove(out);
}

/* -- the disk ---------------------------------------------------------------------------------- */

static uint64_t room;

static int little_room(const char *dir, uint64_t *n_bytes)
{
    T_STR(dir, micro_path(""));
    *n_bytes = room;
    return 0;
}

T_TEST(the_disk_is_asked_first)
{
    T_BEGIN;
    coli__file_stamp stamp;
    T_OK(coli__file_look(micro_path("whole/model.coli"), &stamp));
    coli__sys_calls.disk_free = little_room;
    room = stamp.n_bytes / 2;
    T_FAILS(convert_to(out, "int4"), COLI_E_LIMIT, "GB are needed there, ");
    T_TRUE(!coli__path_exists(out) && !coli__path_exists(partial));
    room = stamp.n_bytes - 1; // never less than it takes
    T_FAILS(convert_to(out, "int4"), COLI_E_LIMIT, "GB are needed there, ");
    room = stamp.n_bytes * 2;
    T_OK(convert_to(out, "int4"));
    coli__dir_remove(out);
    leave_half(); // what is there already need not be found
    coli__file_stamp left;
    T_OK(coli__file_look(micro_path("out.partial/model.coli"), &left));
    room = stamp.n_bytes * 2 - left.n_bytes;
    T_OK(convert_to(out, "int4"));
    coli__dir_remove(out);
    coli__sys_calls = real;
}

/* The disk is full when something is told already: that stays. */
static uint64_t n_write, full_at;

static ptrdiff_t write_until_full(int fd, const void *bytes, size_t n_bytes)
{
    if (++n_write < full_at) return real.write(fd, bytes, n_bytes);
    errno = ENOSPC;
    return -1;
}

T_TEST(a_full_disk_keeps_what_is_told)
{
    T_BEGIN;
    coli__sys_calls.write = write_until_full;
    full_at = 40;
    n_write = 0;
    T_FAILS(convert_to(out, "int4"), COLI_E_IO, "what is done stays in ");
    coli__sys_calls = real;
    T_TRUE(coli__job_is_in(partial));
    T_OK(convert_to(out, "int4"));
    T_TRUE(strstr(notes, "going on with ") != NULL);
    same_dirs(whole, out, "full disk");
    coli__dir_remove(out);
}

/* Whatever request for memory fails: what was told is still there, and the next one goes on. */
T_TEST(memory_may_run_out_while_going_on)
{
    T_BEGIN;
    uint64_t nth = 1;
    for (coli_status status = COLI_E_NOMEM; status != COLI_OK; nth++) {
        if (!coli__job_is_in(partial)) leave_half();
        coli__alloc_fail_at(nth);
        status = convert_to(out, "int4");
        coli__alloc_fail_at(0);
        if (status == COLI_OK) break;
        if (status != COLI_E_NOMEM || !coli__job_is_in(partial))
            fail_msg("request %" PRIu64 ": %s", nth, coli_error_message());
    }
    T_GE(nth, 100);
    T_TRUE(strstr(notes, "going on with ") != NULL);
    same_dirs(whole, out, "little memory");
    coli__dir_remove(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_every_call),
        cmocka_unit_test(killed_at_fifty_instants),
        cmocka_unit_test(the_clock_met_it_at_work),
        cmocka_unit_test(killed_all_the_time),
        cmocka_unit_test(other_formats_begin_anew),
        cmocka_unit_test(another_recipe_begins_anew),
        cmocka_unit_test(a_changed_source_begins_anew),
        cmocka_unit_test(what_was_damaged_begins_anew),
        cmocka_unit_test(two_conversions_exclude_each_other),
        cmocka_unit_test(none_comes_between_the_end_and_the_name),
        cmocka_unit_test(what_others_put_there_is_not_removed),
        cmocka_unit_test(a_name_that_is_taken_at_the_end),
        cmocka_unit_test(of_two_rivals_one_is_complete),
        cmocka_unit_test(files_of_others_stay),
        cmocka_unit_test(all_ways_of_packing_are_facts),
        cmocka_unit_test(a_journal_too_many),
        cmocka_unit_test(the_disk_is_asked_first),
        cmocka_unit_test(a_full_disk_keeps_what_is_told),
        cmocka_unit_test(memory_may_run_out_while_going_on),
    };
    return cmocka_run_group_tests(tests, setup, micro_teardown);
}
