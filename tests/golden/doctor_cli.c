/* doctor_cli.c - `coli doctor` and `coli report`: what they look at, when coli cannot be used, and that a
 * report tells nobody who wrote it; `coli pack`, `verify` and `unpack` as people type them. */
#include <jansson.h>
#include <strings.h>

#include "json_out.h"
#include "programs.h"

/* ---- doctor -------------------------------------------------------------------------------- */

/* The first check of that name; NULL: none. */
static json_t *check_of(json_t *root, const char *what)
{
    const json_t *checks = json_object_get(root, "checks");
    for (size_t i = 0; i < json_array_size(checks); i++) {
        json_t *check = json_array_get(checks, i);
        if (strcmp(json_text_at(check, "what"), what) == 0) return check;
    }
    return NULL;
}

T_TEST(a_sound_machine)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "doctor", "--backend", "none");
    EXPECT(o, o.code == 0 && !*o.err);
    EXPECT(o, strncmp(o.out, "ok       coli           ", 24) == 0);
    EXPECT(o, has(o.out, " model          ") && has(o.out, "hummingbird: 0.01 GB"));
    EXPECT(o, !has(o.out, "problem "));
    forget(&o);
    o = RUN("coli", "", "doctor", "--backend", "none", "--json", MODEL);
    EXPECT(o, o.code == 0);
    json_t *root = json_of(&o);
    T_TRUE(json_is_true(json_object_get(root, "usable")));
    static const char *const names[] = {"coli",          "processor",  "threads", "memory",
                                        "control group", "huge pages", "backend", "terminal",
                                        "history",       "model",      "room",    "disk"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *check = check_of(root, names[i]);
        if (!check) fail_msg("no check of %s", names[i]);
        const char *level = json_text_at(check, "level");
        T_TRUE(strcmp(level, "ok") == 0 || strcmp(level, "note") == 0);
        T_TRUE(*json_text_at(check, "text"));
        // what is not as it should be comes with what to do
        if (strcmp(level, "ok") != 0) T_TRUE(json_is_string(json_object_get(check, "advice")));
    }
    json_decref(root);
    forget(&o);
}

/* The first problem: what it is about, words of its text and of what to do. */
static void expect_problem(const char *what, const char *text, const char *advice,
                           const char *const *args)
{
    outcome o = run_with("coli", "", 0, NULL, args);
    EXPECT(o, o.code == 1);
    json_t *root = json_of(&o), *found = NULL;
    T_TRUE(json_is_false(json_object_get(root, "usable")));
    const json_t *checks = json_object_get(root, "checks");
    for (size_t i = 0; i < json_array_size(checks); i++) {
        json_t *check = json_array_get(checks, i);
        if (strcmp(json_text_at(check, "level"), "problem") == 0 && !found) found = check;
    }
    EXPECT(o, found != NULL);
    T_STR(json_text_at(found, "what"), what);
    EXPECT(o, has(json_text_at(found, "text"), text));
    EXPECT(o, has(json_text_at(found, "advice"), advice));
    json_decref(root);
    forget(&o);
}

T_TEST(what_makes_it_unusable)
{
    T_BEGIN;
    expect_problem("model", "/nonexistent", "name a directory that is there",
                   LIST("doctor", "--json", "/nonexistent"));
    expect_problem("room", "one expert of each layer", "`coli plan`",
                   LIST("doctor", "--json", "--backend", "none", "--ram", "8MB"));
    expect_problem("heat file", "not there", "--heat-readonly",
                   LIST("doctor", "--json", "--backend", "none", "--heat", "/nonexistent/x/heat"));
    expect_problem("backend", "nosuch cannot be used: /", "`coli backend list`",
                   LIST("doctor", "--json", "--backend", "nosuch"));
    expect_problem("backend", "coli_nosuch.so: file: no such file", "--backend none",
                   LIST("doctor", "--json", "--backend", "nosuch"));
    expect_problem("model", "99999 tokens", "without --ctx",
                   LIST("doctor", "--json", "--backend", "none", "--ctx", "99999"));
    expect_problem("model", ".gguf", "`coli convert ",
                   LIST("doctor", "--json", TEST_FIXTURES "/gguf/tiny-00001-of-00003.gguf"));
    // a container that is damaged
    const char *dir = scratch_path("damaged");
    char command[512], path[200];
    snprintf(command, sizeof command, "cp -r '%s' '%s'", MODEL, dir);
    T_EQ(system(command), 0);
    snprintf(path, sizeof path, "%s/chat.json", dir);
    spill(path, "{}", 2);
    expect_problem("model", "chat.json", "`coli verify`",
                   LIST("doctor", "--json", "--backend", "none", dir));
}

/* The model is looked at without the backend that cannot be used; a directory that has the rights and takes
 * no file is not called good. */
T_TEST(what_can_still_be_told)
{
    T_BEGIN;
    outcome o = run_with("coli", "", 0, LIST("HOME=/proc/nohome"),
                         LIST("doctor", "--backend", "nosuch", MODEL));
    EXPECT(o, o.code == 1 && has(o.out, "hummingbird: 0.01 GB") && has(o.out, " room "));
    EXPECT(o, !has(o.out, "/proc can be written"));
    forget(&o);
}

/* Something that is no library where backends are: a note with the loader's reason, not a problem, unless
 * it was asked for. */
T_TEST(the_loaders_reasons)
{
    T_BEGIN;
    const char *dir = scratch_path("plugins");
    T_EQ(mkdir(dir, 0700), 0);
    char path[200];
    snprintf(path, sizeof path, "%s/coli_odd.so", dir);
    spill(path, "no library", 10);
    outcome o = RUN("coli", "", "doctor", "--json", "--backend-path", dir);
    EXPECT(o, o.code == 0);
    json_t *root = json_of(&o);
    bool found = false;
    const json_t *checks = json_object_get(root, "checks");
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *check = json_array_get(checks, i);
        if (!has(json_text_at(check, "text"), "coli_odd.so")) continue;
        T_STR(json_text_at(check, "level"), "note");
        EXPECT(o, has(json_text_at(check, "text"), " cannot be used: library: "));
        found = true;
    }
    EXPECT(o, found);
    json_decref(root);
    forget(&o);
}

/* ---- report -------------------------------------------------------------------------------- */

T_TEST(a_report_says_what_is_needed)
{
    T_BEGIN;
    outcome o = run_with("coli", "", 0, LIST("CTX=2048"),
                         LIST("report", "--backend", "none", "--kv", "f32", "it", "broke"));
    EXPECT(o, o.code == 0 && !*o.err);
    EXPECT(o, strncmp(o.out, "coli ", 5) == 0);
    EXPECT(o, has(o.out, "\n  build      ") && has(o.out, "\n  processor  "));
    EXPECT(o, has(o.out, "\nbackends: "));
    EXPECT(o, has(o.out, "\n  identity   f007df13"));
    EXPECT(o, has(o.out, "\n  shape      8 layers, width 192; 64 experts of width 64, 6 used;"));
    EXPECT(o, has(o.out, "\n  fits       everything: "));
    EXPECT(o, has(o.out, "  --ctx 2048 (CTX)\n") && has(o.out, "  --kv f32 (command line)\n"));
    EXPECT(o, has(o.out, "\nerror\n  it broke\n"));
    forget(&o);
    o = RUN("coli", "", "report", "--backend", "none", "", " "); // no words are no error
    EXPECT(o, o.code == 0 && !has(o.out, "error"));
    forget(&o);
    o = RUN("coli", "", "report", "--model", "/nonexistent/model");
    EXPECT(o, o.code == 0 && has(o.out, "\n  cannot be opened: .../model"));
    forget(&o);
}

/* None of them, anywhere, in any case of letters. */
static void expect_absent(const outcome *o, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = o->out; *at; at++)
        if (strncasecmp(at, word, n) == 0) {
            show(o);
            fail_msg("a report tells \"%s\"", word);
        }
}

T_TEST(a_report_is_nobodys)
{
    T_BEGIN;
    char host[256] = "", error[700], heat[300];
    T_EQ(gethostname(host, sizeof host - 1), 0);
    const char *home = scratch; // what the program is told
    snprintf(
        error, sizeof error,
        "coli: %s/models/secret/model.coli: by Mallory-Q on %s, C:\\Users\\mallory-q\\x\\y.coli, "
        "/home/trudy/work/z.coli:",
        home, host);
    snprintf(heat, sizeof heat, "%s/private/heat.bin", home);
    outcome o = run_with("coli", "", 0,
                         LIST("USER=mallory-q", "LOGNAME=mallory-q", "COLI_MODEL=" MODEL,
                              "COLI_BACKEND=none", "XDG_STATE_HOME=/srv/mallory-q/state"),
                         LIST("report", "--heat", heat, "--heat-readonly", error));
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "  --heat .../heat.bin (command line)\n"));
    expect_absent(&o, "private");
    EXPECT(o, has(o.out, "  --model .../hummingbird (COLI_MODEL)\n"));
    EXPECT(o, has(o.out, "by (user) on "));
    EXPECT(o, has(o.out, ".../z.coli"));
    expect_absent(&o, home);
    expect_absent(&o, "mallory-q");
    expect_absent(&o, "trudy");
    expect_absent(&o, "/home/");
    expect_absent(&o, TEST_MODELS);
    if (strlen(host) >= 3) expect_absent(&o, host);
    forget(&o);
}

/* Directories, however a path is written; what stays of the text. */
T_TEST(a_report_has_no_directories)
{
    T_BEGIN;
    static const struct {
        const char *error, *shown;
    } cases[] = {
        {"coli: /mnt/Acme/model.coli: torn", "coli: .../model.coli: torn"},
        {"at /mnt/John Acme/Acme Project/model.coli: torn", "at .../model.coli: torn"},
        {"at /mnt/John Acme: torn", "at ...: torn"},
        {"at C:\\Users\\Jane Acme\\Models\\acme\\a.coli: torn", "at .../a.coli: torn"},
        {"at C:/Users/Jane Acme/a.coli", "at .../a.coli"},
        {"no \u2018/data/clients/acme/x\u2019 there", "no \u2018.../x\u2019 there"},
        {"no \u201C/srv/A Acme Z/b c/x y\u201D there", "no \u201C.../x y\u201D there"},
        {"no '/mnt/John Acme' there", "no '...' there"},
        {"no '/mnt/John Acme/b/my x' there", "no '.../my x' there"},
        {"no 'Acme Work/x' there", "no '.../x' there"},
        {"in ~/Work/ClientAcme/model (it)", "in .../model (it)"},
        {"in \\\\acme\\share\\dir\\x.coli", "in .../x.coli"},
        {"in file:///mnt/acme/y/x.coli", "in file:.../x.coli"},
        {"in ./acme/b and ..\\acme\\x", "in .../b and .../x"},
        {"in acme/b", "in .../b"},
        {"in /mnt/Acme, Inc. (old)/b/x.coli: torn", "x.coli: torn"},
        {"in A=/mnt/acme/b/x:/mnt/acme/b/y", "in A=.../x:.../y"},
        {"(/mnt/acme/b/x) can't", "(.../x) can't"},
        {"1.5 GB/s, 3 tok/s, I/O, 3/8, w/ x", "1.5 GB/s, 3 tok/s, I/O, 3/8, w/ x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = RUN("coli", "", "report", "--model", "/nonexistent", "--backend", "none",
                        cases[i].error);
        char line[300];
        snprintf(line, sizeof line, "%s\n", cases[i].shown);
        EXPECT(o, o.code == 0 && has(o.out, line));
        expect_absent(&o, "acme");
        expect_absent(&o, "jane");
        expect_absent(&o, "john");
        forget(&o);
    }
}

/* ---- packs --------------------------------------------------------------------------------- */

T_TEST(packs_on_the_command_line)
{
    T_BEGIN;
    const char *file = scratch_path("demo.tar"), *dir = scratch_path("hummingbird");
    outcome o = RUN("coli", "", "pack", MODEL, file);
    EXPECT(o, o.code == 0 && !*o.out && has(o.err, "demo.tar is complete\n"));
    forget(&o);
    o = RUN("coli", "", "verify", file);
    EXPECT(o, o.code == 0 && has(o.out, "demo.tar: all is well\n"));
    forget(&o);
    // tar opens it, and what it takes out is a container
    char command[512];
    snprintf(command, sizeof command, "tar xf '%s' -C '%s'", file, scratch);
    T_EQ(system(command), 0);
    o = RUN("coli", "", "verify", dir);
    EXPECT(o, o.code == 0);
    forget(&o);
    o = RUN("coli", "", "unpack", file, dir);
    EXPECT(o, o.code == 2 && has(o.err, "hummingbird: already exists\nhint: "));
    forget(&o);
    const char *other = scratch_path("other");
    o = RUN("coli", "", "unpack", file, other);
    EXPECT(o, o.code == 0);
    forget(&o);
    o = RUN("coli", "", "run", "--model", other, "--backend", "none", "--no-think", "--temp", "0",
            "What is 17 + 25?");
    EXPECT(o, o.code == 0 && has(o.out, "42"));
    forget(&o);
    T_EQ(truncate(file, 5000000), 0);
    o = RUN("coli", "", "verify", file);
    EXPECT(o, o.code == 2 && has(o.err, "demo.tar: at ") && has(o.err, "the file has "));
    forget(&o);
    o = RUN("coli", "", "unpack", file, scratch_path("torn"));
    EXPECT(o, o.code == 2 && access(scratch_path("torn"), F_OK) != 0);
    forget(&o);
    o = RUN("coli", "", "pack", "/nonexistent", scratch_path("no.tar"));
    EXPECT(o, o.code == 2 && has(o.err, "/nonexistent"));
    forget(&o);
    o = RUN("coli", "", "pack", MODEL);
    EXPECT(o, o.code == 2);
    forget(&o);
    o = RUN("coli", "", "pack", MODEL, "-");
    EXPECT(o, o.code == 2 && has(o.err, "a pack is a file, not a stream\nhint: ./- is"));
    forget(&o);
    o = RUN("coli", "", "unpack", "-", other);
    EXPECT(o, o.code == 2 && has(o.err, "unpack: a pack is a file, not a stream\n"));
    forget(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_machine),
        cmocka_unit_test(what_makes_it_unusable),
        cmocka_unit_test(what_can_still_be_told),
        cmocka_unit_test(the_loaders_reasons),
        cmocka_unit_test(a_report_says_what_is_needed),
        cmocka_unit_test(a_report_is_nobodys),
        cmocka_unit_test(a_report_has_no_directories),
        cmocka_unit_test(packs_on_the_command_line),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
