/* cli_test.c - the programs as a person or a script meets them: arguments in, text and exit code
 * out. The model is the shipped one. */
#include <jansson.h>
#include <sys/resource.h>

#include "programs.h"

#define DOC  TEST_MODELS "/../docs/cli.md"
#define TINY TEST_FIXTURES "/qwen36-tiny-a"

/* ---- arguments ----------------------------------------------------------------------------- */

/* A command line, what it answers and how it ends. */
typedef struct usage_case {
    const char *program, *args[8], *env;
    int code;
    const char *err; // part of stderr
} usage_case;

static const usage_case usage_cases[] = {
    {"coli",
     {"rnu", "x"},
     NULL,
     2,
     "coli: unknown command \"rnu\"\nhint: did you mean `coli run`?\n"},
    {"coli", {"tokenise"}, NULL, 2, "did you mean `coli tokenize`?"},
    {"coli",
     {"run", "--tmep", "1", "x"},
     NULL,
     2,
     "coli: unknown option --tmep\nhint: did you mean --temp?\n"},
    {"coli", {"run", "-no-think", "x"}, NULL, 2, "did you mean --no-think?"},
    {"coli", {"run", "--thread=2", "x"}, NULL, 2, "did you mean --threads?"},
    {"coli", {"--tmep", "run"}, NULL, 2, "did you mean --temp?"},
    {"coli", {"chat", "--group", "32"}, NULL, 2, "hint: it belongs to `coli plan`, `coli convert`"},
    {"coli",
     {"run", "--temp", "nan", "x"},
     NULL,
     2,
     "--temp: expected a number from 0 to 100, found \"nan\""},
    {"coli", {"run", "--temp", "inf", "x"}, NULL, 2, "found \"inf\""},
    {"coli", {"run", "--temp", "0.5x", "x"}, NULL, 2, "found \"0.5x\""},
    {"coli", {"run", "--temp", "", "x"}, NULL, 2, "found \"\""},
    {"coli", {"run", "--temp", "0x1", "x"}, NULL, 2, "found \"0x1\""},
    {"coli", {"run", "--temp", "-0.1", "x"}, NULL, 2, "found \"-0.1\""},
    {"coli", {"run", "--top-p", "1.01", "x"}, NULL, 2, "from 0.001 to 1, found \"1.01\""},
    {"coli", {"run", "--top-k", "4294967297", "x"}, NULL, 2, "whole number"},
    {"coli", {"run", "--top-k", "2.5", "x"}, NULL, 2, "found \"2.5\""},
    {"coli", {"run", "--threads", "-1", "x"}, NULL, 2, "found \"-1\""},
    {"coli", {"run", "--threads", " 1", "x"}, NULL, 2, "found \" 1\""},
    {"coli", {"run", "--seed", "18446744073709551616", "x"}, NULL, 2, "0 to 18446744073709551615"},
    {"coli", {"run", "-n", "many", "x"}, NULL, 2, "-n: expected a whole number"},
    {"coli",
     {"run", "--isa", "avx", "x"},
     NULL,
     2,
     "expected scalar, avx2, avxvnni, avx512, amx, neon or i8mm, found \"avx\"\nhint: did you mean "
     "avx2?"},
    {"coli", {"run", "--no-think=maybe", "x"}, NULL, 2, "expected yes or no"},
    {"coli", {"run", "--system"}, NULL, 2, "--system needs a value"},
    {"coli", {"run", "--system", "--no-think"}, NULL, 2, "write --system=--no-think"},
    {"coli", {"run", "--model", "", "x"}, NULL, 2, "--model: expected a path, found \"\""},
    {"coli", {"info", ""}, NULL, 2, "the path of the model is empty"},
    {"coli", {"run", "--ctx", "1048577", "x"}, NULL, 2, "from 0 to 1048576"},
    {"coli", {"run", "--ctx", "5000", "x"}, NULL, 2, "--ctx: the model was made for at most 4096"},
    {"coli",
     {"run", "x"},
     "CTX=99999",
     2,
     "environment variable CTX: the model was made for at most 4096 tokens, found 99999"},
    {"coli", {"run"}, NULL, 2, "the prompt is empty"},
    {"coli", {"run", "  "}, NULL, 2, "the prompt is empty"},
    {"coli", {"info", "a", "b"}, NULL, 2, "unexpected argument \"b\""},
    {"coli", {"info", "a", "--model", "b"}, NULL, 2, "not both"},
    {"coli", {"convert", "a"}, NULL, 2, "too few arguments for convert [options] SRC OUT"},
    {"coli", {"render"}, NULL, 2, "--jsonl is missing"},
    {"coli", {"tokenize", "--jsonl", "x"}, NULL, 2, "reads standard input"},
    {"coli", {"help", "chta"}, NULL, 2, "did you mean `coli help chat`?"},
    {"coli", {"run", "x"}, "COLI_TEMP=hot", 2, "environment variable COLI_TEMP: expected a number"},
    {"coli", {"run", "x"}, "COLI_MODEL=/nonexistent", 2, "the path comes from COLI_MODEL"},
    {"coli", {"info", "/nonexistent"}, NULL, 2, "coli: /nonexistent/"},
    {"coli", {"verify", "/nonexistent"}, NULL, 2, "coli: /nonexistent/"},
    {"coli", {"info", TINY}, NULL, 2, "`coli convert " TINY " OUT` makes a container"},
    {"coli",
     {"convert", "/nonexistent", "/nonexistent-out"},
     NULL,
     2,
     "coli: /nonexistent: No such file or directory\n"},
    {"coli", {"convert", MODEL "/model.coli", "/nonexistent-out"}, NULL, 2, "is no GGUF file"},
    {"coli", {"convert", "", "x"}, NULL, 2, "the path SRC is empty"},
    {"coli", {"convert", TINY, ""}, NULL, 2, "the path OUT is empty"},
    {"coli", {"convert", TINY, "/nonexistent/x"}, NULL, 2, "/nonexistent/ is not there"},
    {"coli", {"convert", TINY, "/dev/null/x"}, NULL, 2, "/dev/null/ is no"},
    {"coli", {"convert", MODEL, "/proc/nowhere"}, NULL, 2, "it is a container already"},
    {"coli",
     {"convert", TEST_FIXTURES "/gguf", "/proc/nowhere"},
     NULL,
     2,
     "there is a GGUF file in it"},
    {"coli", {"pack", MODEL, ""}, NULL, 2, "pack: the path FILE is empty"},
    {"coli", {"pack", MODEL, "x/"}, NULL, 2, "x/: expected the name of a file"},
    {"coli", {"unpack", MODEL "/model.coli", ""}, NULL, 2, "unpack: the path DIR is empty"},
    {"coli", {"imatrix", "", "x"}, NULL, 2, "imatrix: the path OUT is empty"},
    {"coli", {"imatrix", "x/", "x"}, NULL, 2, "x/: expected the name of a file"},
    {"coli", {"imatrix", "/nonexistent/x", "x"}, NULL, 2, "/nonexistent/ is not there"},
    {"coli", {"synth", ""}, NULL, 2, "synth: the path OUT is empty"},
    {"coli", {"convert", TINY, "/proc/nowhere", "--recipe", "."}, NULL, 2, "coli: .: "},
    {"coli", {"convert", TINY, "/proc/nowhere", "--recipe", "/dev/null"}, NULL, 2, "/dev/null"},
    {"coli", {"convert", TINY, "/proc/nowhere", "--imatrix", "."}, NULL, 2, "coli: .: "},
    {"coli", {"convert", TINY, "/proc/nowhere", "--imatrix", "/dev/null"}, NULL, 2, "/dev/null"},
    {"coli",
     {"convert", TINY, "/proc/nowhere", "--experts", "INT4"},
     NULL,
     2,
     "--experts: expected int4"},
    {"coli",
     {"convert", TINY, "/proc/nowhere", "--trunk", "int8-g65-f16"},
     NULL,
     2,
     "--trunk: expected int4, int8, bf16, f32 or, in full, int{4,8}-{g64,g32,row}-{f16,f32}, found "
     "\"int8-g65-f16\""},
    {"coli",
     {"convert", TINY, "/proc/nowhere", "--trunk", ""},
     NULL,
     2,
     "--trunk: expected a format"},
    {"coli",
     {"convert", TINY, "/proc/nowhere", "--recipe", "tiny"},
     NULL,
     2,
     "recipe \"tiny\": expected small, balanced, exact or a file that is there"},
    {"coli",
     {"convert", TINY, "/proc/nowhere", "--recipe", "small", "--group", "32"},
     NULL,
     2,
     "--group 32 beside --recipe"},
    {"coli",
     {"convert", TINY, "/proc/nowhere", "--imatrix", MODEL "/config.json"},
     NULL,
     2,
     "config.json: no imatrix file"},
    {"coli", {"imatrix", "x"}, NULL, 2, "too few arguments for imatrix [options] OUT TEXTS"},
    {"coli", {"imatrix", MODEL, "x"}, NULL, 2, "already exists"},
    {"coli", {"imatrix", "/proc/nowhere", "/nonexistent"}, NULL, 2, "coli: /nonexistent"},
    {"coli",
     {"imatrix", "/proc/nowhere", MODEL "/config.json"},
     NULL,
     2,
     "coli: " MODEL "/config.json"},
    {"coli", {"info", "/etc/passwd"}, NULL, 2, "Not a directory"},
    {"coli", {"info", "/"}, NULL, 2, "coli: /model.coli"},
    {"coli", {"tokenize", "--tokenizer", "/", "x"}, NULL, 2, "coli: /: not a regular file"},
    {"coli",
     {"convert", TINY, "/proc/nowhere", "--group", "32", "--experts", "int4-g64-f16"},
     NULL,
     2,
     "--group 32 and a format in full, int4-g64-f16"},
    {"coli",
     {"convert", TINY, "/proc/nowhere", "--group", "64", "--trunk", "int8-row-f16"},
     NULL,
     2,
     "--group 64 and a format in full, int8-row-f16"},
    {"coli",
     {"convert", TINY, "/proc/nowhere", "--group=row", "--experts", "f32", "--trunk", "bf16"},
     NULL,
     2,
     "--group row is for int4 and int8, found --experts f32 --trunk bf16"},
    {"coli",
     {"convert", TINY, "/proc/nowhere", "--group", "32", "--trunk", "int5"},
     NULL,
     2,
     "int5"},
    {"coli", {"tokenize", "--tokenizer", "/nonexistent", "x"}, NULL, 2, "/nonexistent"},
    {"qwen36", {NULL}, NULL, 2, "give one of"},
    {"qwen36", {"--ids", "a", "--ppl", "b"}, NULL, 2, "give only one of"},
    {"qwen36", {"--ppl", "a", "--dump-logits", "b"}, NULL, 2, "does not go with"},
    {"qwen36", {"--ppl", "a", "-n", "1"}, NULL, 2, "-n does not go with --ppl"},
    {"qwen36", {"--ppl", "a", "--stop"}, NULL, 2, "--stop does not go with --ppl"},
    {"qwen36", {"--teacher-force", "a", "-n1"}, NULL, 2, "-n does not go with --teacher-force"},
    {"qwen36", {"--ids", "a", "--dump-logits", "-"}, NULL, 2, "a dump is a file"},
    {"qwen36", {"--model", MODEL, "--ids", "/nonexistent"}, NULL, 2, "/nonexistent: No such file"},
    {"qwen36", {"--model", MODEL, "--ppl", "/dev/null"}, NULL, 2, "there is no text in it"},
    {"qwen36", {"--model", MODEL, "--prompt-file", "/dev/null"}, NULL, 2, "the text is empty"},
};

T_TEST(what_makes_no_sense_is_refused_with_one_line_and_a_hint)
{
    T_BEGIN;
    for (size_t i = 0; i < sizeof usage_cases / sizeof *usage_cases; i++) {
        const usage_case *c = &usage_cases[i];
        outcome o = run_with(c->program, "", 0, c->env ? LIST(c->env) : NULL, c->args);
        EXPECT(o, o.code == c->code);
        EXPECT(o, has(o.err, c->err));
        EXPECT(o, o.n_out == 0);
        size_t n_line = 0; // the error and at most one hint; the banner of qwen36 may come first
        for (const char *at = o.err; (at = strchr(at, '\n')); at++) n_line++;
        EXPECT(o, n_line <= (strcmp(c->program, "qwen36") == 0 ? 3u : 2u));
        forget(&o);
    }
}

T_TEST(version_and_help_go_to_stdout)
{
    T_BEGIN;
    static const struct {
        const char *program, *args[3], *out;
    } cases[] = {
        {"coli", {"--version"}, "coli 0."},
        {"qwen36", {"--version"}, "qwen36 0."},
        {"coli", {"--help"}, "commands:"},
        {"coli", {"help"}, "commands:"},
        {"coli", {"run", "--help"}, "usage: coli run"},
        {"coli", {"--help", "run"}, "usage: coli run"},
        {"coli", {"help", "run"}, "examples:"},
        {"coli", {"run", "-h"}, "usage: coli run"},
        {"qwen36", {"--help"}, "examples:"},
        {"coli", {"help", "environment"}, "COLI_MODEL"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = run_with(cases[i].program, "", 0, NULL, cases[i].args);
        EXPECT(o, o.code == 0 && o.n_err == 0 && has(o.out, cases[i].out));
        forget(&o);
    }
}

/* ---- what comes from elsewhere ------------------------------------------------------------- */

/* No byte that a terminal obeys: no control character but the newline, none of the second set, and
 * none of that set as a terminal without UTF-8 sees it. */
static bool is_calm(const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if ((*at < 0x20 && *at != '\n') || *at == 0x7F) return false;
        if (*at >= 0x80 && *at < 0xA0 && (at == (const unsigned char *)text || at[-1] < 0x80))
            return false;
        if (*at == 0xC2 && at[1] < 0xA0) return false;
    }
    return true;
}

T_TEST(no_file_and_no_name_drives_the_terminal)
{
    T_BEGIN;
    /* a title, a bell, a fake line; CSI in both spellings, DEL; a letter that stays */
#define HOSTILE "\033]0;x\007\ncoli: fine\t\xC2\x9B\x31m\x7F\xC3\xA9"
#define SHOWN   "␛]0;x␇␊coli: fine␉�1m␡é"
    const char *dir = scratch_path("hostile"), *config = scratch_path("hostile/config.json");
    const char *json =
        "{\"model_type\": \"\\u001b]0;x\\u0007\\ncoli: fine\\t\\u009b1m\\u007f\\u00e9\"}";
    T_EQ(mkdir(dir, 0700), 0);
    spill(config, json, strlen(json));
    outcome o = RUN("coli", "", "convert", dir, scratch_path("never"));
    EXPECT(o, o.code == 2 && is_calm(o.err) && has(o.err, SHOWN));
    EXPECT(o, strchr(o.err, '\n') == o.err + o.n_err - 1);
    forget(&o);

    /* names: of a command, an option, a file, a variable */
    o = RUN("coli", "", HOSTILE);
    EXPECT(o, o.code == 2 && is_calm(o.err) && has(o.err, SHOWN));
    forget(&o);
    o = RUN("coli", "", "run", "--" HOSTILE);
    EXPECT(o, o.code == 2 && is_calm(o.err) && has(o.err, SHOWN));
    forget(&o);
    o = RUN("coli", "", "info", "/nonexistent/" HOSTILE "\x9B");
    EXPECT(o, o.code == 2 && is_calm(o.err) && has(o.err, SHOWN "�"));
    forget(&o);
    o = run_with("coli", "", 0, LIST("COLI_" HOSTILE "=1"), LIST("info", MODEL));
    EXPECT(o, o.code == 0 && is_calm(o.err) && has(o.err, SHOWN " is not a variable"));
    forget(&o);
    o = RUN("coli", ":x" HOSTILE "\n", "chat", "--model", MODEL);
    EXPECT(o, is_calm(o.err));
    forget(&o);

    /* tables are for the eye; JSON says the same with other bytes */
    const char *line = "{\"text\": \"Hi.\", \"topic\": \"\\u001b[31m\\u009b\"}\n";
    o = RUN("qwen36", line, "--model", MODEL, "--ppl", "-");
    EXPECT(o, o.code == 0 && is_calm(o.out) && has(o.out, "1 ␛[31m�") && has(o.out, "\ntopic"));
    forget(&o);
    o = RUN("coli", "", "tokenize", "--model", MODEL, "a" HOSTILE);
    EXPECT(o, o.code == 0 && is_calm(o.out) && has(o.out, "\\u007F"));
    forget(&o);
    o = RUN("coli", "{\"text\": \"\\u009b\\u007f\\u00e9\"}\n", "tokenize", "--model", MODEL,
            "--jsonl");
    EXPECT(o, o.code == 0 && has(o.out, "\"decoded\": \"\\u009B\\u007Fé\"}\n"));
    forget(&o);
}

T_TEST(a_directory_may_have_any_name)
{
    T_BEGIN;
    const char *dir = scratch_path("h\xFF\033[31m");
    T_EQ(symlink(MODEL, dir), 0);
    outcome o = RUN("coli", "", "info", "--settings", dir);
    EXPECT(o, o.code == 0 && is_calm(o.out) && has(o.out, "/h�␛[31m\n"));
    forget(&o);
    o = RUN("coli", "", "verify", dir);
    EXPECT(o, o.code == 0 && is_calm(o.out) && is_calm(o.err) && has(o.out, "/h�␛[31m: all"));
    forget(&o);
    o = RUN("coli", "", "info", "--json", "--settings", dir);
    EXPECT(o, o.code == 0);
    json_error_t error;
    json_t *root = json_loads(o.out, 0, &error);
    const char *shown = json_string_value(json_object_get(root, "directory"));
    EXPECT(o, shown && has(shown, "/h�\033[31m"));
    json_decref(root);
    forget(&o);
}

T_TEST(coli_alone_explains_itself_and_fails)
{
    T_BEGIN;
    outcome o = run_with("coli", "", 0, NULL, LIST(NULL));
    EXPECT(o, o.code == 2 && o.n_out == 0 && has(o.err, "commands:"));
    forget(&o);
}

T_TEST(input_without_an_end_is_refused)
{
    T_BEGIN;
    static const struct {
        const char *program, *args[5], *err;
    } cases[] = {
        {"coli", {"run", "-"}, "standard input: expected at most 256 MiB, found more\n"},
        {"coli", {"tokenize"}, "standard input: expected at most 256 MiB, found more\n"},
        {"coli",
         {"render", "--jsonl"},
         "standard input: line 1: expected at most 256 MiB, found more\n"},
        {"coli", {"chat"}, "standard input: line 1: expected at most 256 MiB, found more\n"},
        {"qwen36",
         {"--model", MODEL, "--ids", "-"},
         "standard input: expected at most 32 MiB, found more\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = run_from(cases[i].program, "/dev/zero", NULL, cases[i].args);
        EXPECT(o, o.code == 2 && o.n_out == 0 && has(o.err, cases[i].err));
        forget(&o);
    }
}

/* As run_from, with one of the standard streams closed; what it would have had is "". */
static outcome run_without(int fd, const char *program, const char *const *args)
{
    const char *paths[] = {"/dev/null", scratch_path("out"), scratch_path("err")};
    outcome o = {0};
    spill(paths[1], "", 0);
    spill(paths[2], "", 0);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(TIMEOUT_S);
        for (int i = 0; i < 3; i++) open_as(i, paths[i], i ? O_WRONLY : O_RDONLY);
        close(fd);
        become(program, args, NULL);
    }
    o.code = exit_code(pid);
    o.out = slurp(paths[1], &o.n_out);
    o.err = slurp(paths[2], &o.n_err);
    return o;
}

T_TEST(a_closed_stream_is_nobody_elses_file)
{
    T_BEGIN;
    const char *out = scratch_path("unheard");
    outcome o = run_without(2, "coli", LIST("convert", TINY, out));
    EXPECT(o, o.code == 0);
    forget(&o);
    o = RUN("coli", "", "verify", out);
    EXPECT(o, o.code == 0);
    forget(&o);
    o = run_without(0, "coli", LIST("chat", "--model", MODEL));
    EXPECT(o, o.code == 0 && o.n_out == 0 && !has(o.err, "Bad file"));
    forget(&o);
    o = run_without(1, "coli", LIST("tokenize", "--model", MODEL, "Hi"));
    EXPECT(o, o.code == 1 && has(o.err, "cannot write to stdout: Bad file descriptor\n"));
    forget(&o);
}

T_TEST(a_full_disk_is_called_by_its_name)
{
    T_BEGIN;
    const char *ids = scratch_path("few.json"), *text = scratch_path("few.jsonl");
    spill(ids, "[1, 2, 3]", 9);
    spill(text, "{\"text\": \"Hi.\"}\n", 16);
    const char *const *args[] = {LIST("tokenize", "--model", MODEL, "hi"),
                                 LIST("info", MODEL),
                                 LIST("help", "run"),
                                 LIST("run", "--no-think", "--model", MODEL, "hi"),
                                 LIST("--model", MODEL, "--teacher-force", ids),
                                 LIST("--model", MODEL, "--ids", ids),
                                 LIST("--model", MODEL, "--ppl", text),
                                 LIST("--model", MODEL, "--ppl", text, "--json")};
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        const char *err = scratch_path("err");
        const pid_t pid = fork();
        if (pid == 0) {
            alarm(TIMEOUT_S);
            open_as(1, "/dev/full", O_WRONLY);
            open_as(2, err, O_WRONLY | O_CREAT | O_TRUNC);
            become(i < 4 ? "coli" : "qwen36", args[i], NULL);
        }
        outcome o = {.code = exit_code(pid), .out = calloc(1, 1)};
        o.err = slurp(err, &o.n_err);
        EXPECT(o, o.code == 1 && has(o.err, "cannot write to stdout: No space left on device\n"));
        forget(&o);
    }
}

T_TEST(what_cannot_be_read_is_no_end_of_file)
{
    T_BEGIN;
    static const struct {
        const char *program, *args[5];
    } cases[] = {
        {"coli", {"tokenize", "--jsonl"}},
        {"coli", {"tokenize"}},
        {"coli", {"render", "--jsonl"}},
        {"coli", {"chat"}},
        {"coli", {"run", "-"}},
        {"qwen36", {"--model", MODEL, "--ppl", "-"}},
        {"qwen36", {"--model", MODEL, "--ids", "-"}},
        {"qwen36", {"--model", MODEL, "--prompt-file", "-"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = run_from(cases[i].program, "/", NULL, cases[i].args);
        EXPECT(o, o.code == 2 && o.n_out == 0);
        EXPECT(o, has(o.err, ": standard input: Is a directory\n"));
        forget(&o);
    }
    outcome o = RUN("qwen36", "", "--model", MODEL, "--ppl", "/");
    EXPECT(o, o.code == 2 && has(o.err, "qwen36: /: Is a directory\n"));
    forget(&o);
}

/* ---- variables and documentation ----------------------------------------------------------- */

T_TEST(variables_that_do_nothing_are_named_once)
{
    T_BEGIN;
    outcome o = run_with("coli", "", 0,
                         LIST("PIN_GB=1", "PIN=x", "ROUTE_J=1", "COLI_MODLE=x", "QT_FOO=1",
                              "ROUTER=1", "COLI_MODEL=" MODEL),
                         LIST("info"));
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.err, "coli: warning: PIN is known but has no effect yet\n"));
    EXPECT(o, has(o.err, "COLI_MODLE is not a variable that coli knows; did you mean COLI_MODEL?"));
    EXPECT(o, has(o.err, "QT_FOO is not a variable"));
    EXPECT(o, !has(o.err, "ROUTE_J") && !has(o.err, "ROUTER") && !has(o.err, "COLI_MODEL is"));
    EXPECT(o, strstr(strstr(o.err, "PIN is") + 1, "PIN is") == NULL); // once
    forget(&o);
}

/* The words of `text` that start like an option or look like a variable, one after another. */
static const char *next_name(const char *text, const char *first, const char *rest, char *name,
                             size_t cap)
{
    for (; *text; text++) {
        const size_t n = strspn(text, rest);
        if (n >= 2 && strchr(first, *text) && n < cap) {
            memcpy(name, text, n);
            name[n] = 0;
            return text + n;
        }
        if (n) text += n - 1;
    }
    return NULL;
}

/* docs/cli.md has `name` in code marks, alone or in front of its argument. */
static bool documented(const char *doc, const char *name)
{
    char quoted[96];
    snprintf(quoted, sizeof quoted, "`%s`", name);
    if (has(doc, quoted)) return true;
    snprintf(quoted, sizeof quoted, "`%s ", name);
    return has(doc, quoted);
}

T_TEST(the_manual_is_complete)
{
    T_BEGIN;
    size_t n;
    char *doc = slurp(DOC, &n);
    static const char *const topics[] = {"chat",  "run",         "info",    "convert",  "verify",
                                         "synth", "bench",       "backend", "tokenize", "render",
                                         "help",  "environment", "plan",    "doctor",   "report",
                                         "pack",  "unpack"};
    int n_option = 0, n_variable = 0;
    char name[80];
    for (size_t i = 0; i <= sizeof topics / sizeof *topics; i++) {
        const bool qwen36 = i == sizeof topics / sizeof *topics;
        outcome o = qwen36 ? RUN("qwen36", "", "--help") : RUN("coli", "", "help", topics[i]);
        EXPECT(o, o.code == 0);
        const char *options = strstr(o.out, "\noptions:\n");
        for (const char *at = options; at && (at = strstr(at, "\n  -"));) {
            at += 3;
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " \n"), at);
            if (!documented(doc, name)) fail_msg("docs/cli.md lacks the option %s", name);
            n_option++;
        }
        if (!qwen36 && strcmp(topics[i], "environment") == 0) {
            for (const char *at = o.out; (at = strstr(at, "\n  "));) {
                at += 3;
                snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " \n"), at);
                if (!documented(doc, name)) fail_msg("docs/cli.md lacks the variable %s", name);
                n_variable++;
            }
            /* and the other way round: no variable in the manual that the program does not know */
            const char *at = strstr(doc, "## Environment");
            assert_non_null(at);
            while ((at = next_name(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
                                   "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789", name, sizeof name)))
                if (at[0] == '`' && at[-(long)strlen(name) - 1] == '`' && !has(o.out, name))
                    fail_msg("docs/cli.md has the variable %s, coli does not", name);
        }
        if (!qwen36) {
            snprintf(name, sizeof name, "coli %s", topics[i]);
            EXPECT(o, has(doc, strcmp(topics[i], "environment") ? name : "coli help environment"));
        }
        forget(&o);
    }
    T_GE(n_option, 60);
    T_GE(n_variable, 29);
    free(doc);
}

/* ---- text ---------------------------------------------------------------------------------- */

/* `found` has a line for each of `expected`, equal to it without the members `asked`.  A line with
 * an error is only asked for one.  Returns how many lines there are. */
static int compare_lines(char *expected, char *found, const char *const *asked)
{
    int n_line = 0;
    for (; *expected && *found; n_line++) {
        json_error_t error;
        char *expected_end = strchr(expected, '\n'), *found_end = strchr(found, '\n');
        assert_non_null(expected_end);
        assert_non_null(found_end);
        /* big numbers stand in what was asked, which is not compared: they may lose digits here */
        const size_t flags = JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL;
        json_t *e = json_loadb(expected, (size_t)(expected_end - expected), flags, &error);
        json_t *f = json_loadb(found, (size_t)(found_end - found), flags, &error);
        assert_non_null(e);
        assert_non_null(f);
        for (int i = 0; asked[i]; i++) json_object_del(e, asked[i]);
        const bool same =
            json_object_get(e, "error") ? json_object_get(f, "error") != NULL : json_equal(e, f);
        if (!same) fail_msg("line %d: %.*s", n_line + 1, (int)(found_end - found), found);
        json_decref(e);
        json_decref(f);
        expected = expected_end + 1;
        found = found_end + 1;
    }
    T_EQ(*expected, 0);
    T_EQ(*found, 0);
    return n_line;
}

T_TEST(tokenize_jsonl_equals_the_fixture)
{
    T_BEGIN;
    size_t n;
    char *fixture = slurp(TEST_FIXTURES "/tokenizer/hummingbird/strings.jsonl", &n);
    outcome o = run_with("coli", fixture, n, NULL, LIST("tokenize", "--jsonl", "--model", MODEL));
    EXPECT(o, o.code == 0 && o.n_err == 0);
    T_GE(compare_lines(fixture, o.out, LIST("text")), 400);
    free(fixture);
    forget(&o);
}

T_TEST(render_jsonl_equals_the_fixture)
{
    T_BEGIN;
    static const char *const files[] = {TEST_FIXTURES "/chat/qwen36.jsonl",
                                        TEST_FIXTURES "/chat/qwen35.jsonl"};
    for (int i = 0; i < 2; i++) {
        size_t n;
        char *fixture = slurp(files[i], &n);
        outcome o = run_with("coli", fixture, n, NULL, LIST("render", "--jsonl"));
        EXPECT(o, o.code == 0 && o.n_err == 0);
        T_GE(compare_lines(fixture, o.out, LIST("template", "messages", "options")), 30);
        free(fixture);
        forget(&o);
    }
}

T_TEST(tokenize_a_bad_line_stands_in_its_place)
{
    T_BEGIN;
    outcome o = RUN("coli", "{\"text\": \"\"}\n\nnonsense\n[1]\n{\"txt\": 1}\n{\"text\": \" \"}\n",
                    "tokenize", "--jsonl", "--model", MODEL);
    EXPECT(o, o.code == 2);
    EXPECT(o, strncmp(o.out, "{\"ids\": [], \"decoded\": \"\"}\n{\"error\": \"line 3, column ",
                      50) == 0);
    EXPECT(o, has(o.out, "{\"error\": \"line 4: expected a JSON object\"}\n"));
    EXPECT(o, has(o.out,
                  "{\"error\": \"line 5: expected an object with the string \\\"text\\\"\"}\n"));
    EXPECT(o, strcmp(o.out + o.n_out - 37, "}\n{\"ids\": [229], \"decoded\": \" \"}\n") != 0 &&
                  has(o.out, "}\n{\"ids\": [229], \"decoded\": \" \"}\n"));
    forget(&o);
}

T_TEST(tokenize_text_shows_ids_and_pieces)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "tokenize", "--tokenizer", MODEL "/tokenizer.json", "a<|im_end|>");
    EXPECT(o, o.code == 0 && strcmp(o.out, "      73  \"a\"\n       2  \"<|im_end|>\"\n") == 0);
    forget(&o);
    o = RUN("coli", "a<|im_end|>", "tokenize", "--plain", "--tokenizer", MODEL "/tokenizer.json");
    EXPECT(o, o.code == 0 && has(o.out, "      73  \"a\"\n") && !has(o.out, "       2  "));
    forget(&o);
    o = RUN("coli", "", "tokenize", "--tokenizer", MODEL "/tokenizer.json", "a\xff");
    EXPECT(o, o.code == 2 && has(o.err, "UTF-8"));
    forget(&o);
    /* bytes of a character that is in several tokens, and text that looks like them */
    o = RUN("coli", "", "tokenize", "--model", MODEL, "✓");
    EXPECT(o,
           o.code == 0 && has(o.err, "3 tokens, 3 bytes\n") &&
               strcmp(o.out, "     167  \"<E2>\"\n     259  \"<9C>\"\n     250  \"<93>\"\n") == 0);
    forget(&o);
    o = RUN("coli", "", "tokenize", "--tokenizer", MODEL "/tokenizer.json", "\xEF\xBF\xBD");
    EXPECT(o, o.code == 0 && has(o.out, "\"<EF>") && !has(o.out, "�"));
    forget(&o);
    o = RUN("coli", "", "tokenize", "--model", MODEL, "a");
    EXPECT(o, o.code == 0 && has(o.err, "1 token, 1 byte\n"));
    forget(&o);
}

T_TEST(render_refusals_are_results)
{
    T_BEGIN;
    outcome o = RUN(
        "coli",
        "{\"template\": \"3.6\", \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n"
        "{\"template\": \"3.6\", \"messages\": [{\"role\": \"developer\", \"content\": \"Hi\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}],"
        " \"options\": {\"enable_thinking\": false}}\n",
        "render", "--jsonl");
    EXPECT(o, o.code == 0 && o.n_err == 0);
    EXPECT(
        o,
        has(o.out,
            "{\"text\": \"<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\"}\n"
            "{\"error\": \""));
    EXPECT(o, has(o.out, "<think>\\n\\n</think>\\n\\n\"}\n"));
    forget(&o);
    o = RUN(
        "coli",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"x\": 99999999999999999999]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": 99999999999999999999}}\n"
        "[99999999999999999999]\n{\"messages\": [1, 1\n",
        "render", "--jsonl");
    int n_error = 0;
    for (const char *at = o.out; (at = strstr(at, "{\"error\": ")); at++) n_error++;
    EXPECT(o, o.code == 2 && n_error == 4);
    forget(&o);
    o = RUN("coli", "{\"messages\": \n{\"template\": 3}\n{}\n", "render", "--jsonl");
    EXPECT(o, o.code == 2 && has(o.out, "{\"error\": \"line 1"));
    EXPECT(o, has(o.out, "\"line 2: \\\"template\\\": expected a string") &&
                  has(o.out, "\"line 3: expected an object with \\\"messages\\\""));
    forget(&o);
    o = RUN("coli", "{\"messages\": 4}\n", "render", "--jsonl");
    EXPECT(o, o.code == 2 && has(o.out, "{\"error\": \"line 1: messages: "));
    forget(&o);
}

/* ---- answers ------------------------------------------------------------------------------- */

T_TEST(run_answers_on_stdout_and_the_rest_on_stderr)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "run", "--no-think", "--temp", "0", "--model", MODEL,
                    "What is the capital of France?");
    EXPECT(o, o.code == 0 && has(o.out, "Paris") && o.out[o.n_out - 1] == '\n');
    EXPECT(o, has_footer(o.err, NULL) && !has(o.err, "\033"));
    forget(&o);
    /* options after the prompt, words without quotes, the prompt on stdin, the default model */
    o = RUN("coli", "", "run", "What", "is", "17", "+", "25?", "--no-think", "--temp=0");
    EXPECT(o, o.code == 0 && has(o.out, "42"));
    outcome p = RUN("coli", "What is 17 + 25?\n", "run", "--no-think", "--temp", "0");
    EXPECT(p, p.code == 0 && strcmp(o.out, p.out) == 0);
    forget(&p);
    p = RUN("coli", "What is 17 + 25?", "run", "-", "--no-think", "--temp", "0", "--threads", "1",
            "--isa", "scalar", "--chunk", "3");
    EXPECT(p, p.code == 0 && strcmp(o.out, p.out) == 0);
    forget(&p);
    forget(&o);
    o = RUN("coli", "a\0b", "run", "-");
    forget(&o);
    o = run_with("coli", "a\0b", 3, NULL, LIST("run", "-"));
    EXPECT(o, o.code == 2 && has(o.err, "NUL"));
    forget(&o);
}

T_TEST(thinking_that_does_not_show_is_no_answer)
{
    T_BEGIN;
    outcome o =
        RUN("coli", "", "run", "-n", "2", "--model", MODEL, "What is the capital of France?");
    EXPECT(o, o.code == 1 && o.n_out == 0);
    EXPECT(o, has(o.err, "thinking took all 2 tokens: there is no answer\nhint: a larger -n"));
    forget(&o);
}

/* Very hot, the model babbles where it should think, and does not find the end in a few tokens. */
#define BABBLE "--temp", "100", "--top-k", "0", "--top-p", "1", "--seed", "1"

T_TEST(run_thinks_on_stderr_and_says_when_nothing_else_came)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "run", "--temp", "0", "--model", MODEL, "What is 17 + 25?");
    EXPECT(o, o.code == 0 && has(o.out, "42") && !has(o.out, "think>") && o.out[0] != '\n');
    forget(&o);
    o = RUN("coli", "", "run", BABBLE, "-n", "20", "--model", MODEL, "What is 17 + 25?");
    EXPECT(o, o.code == 1 && o.n_out == 0 && has_footer(o.err, NULL) && o.n_err > 150);
    EXPECT(o, has(o.err, "thinking took all 20 tokens: there is no answer\nhint: a larger -n"));
    forget(&o);
    o = RUN("coli", "", "run", "--temp", "0", "-n", "2", "--no-think", "--model", MODEL,
            "What is 17 + 25?");
    EXPECT(o, o.code == 0 && o.n_out > 0 && has(o.err, "2 tok · ") &&
                  has(o.err, "stopped after 2 tokens"));
    forget(&o);
    o = RUN("coli", "", "run", "--ctx", "8", "--model", MODEL, "What is 17 + 25?");
    EXPECT(o, o.code == 1 && has(o.err, "context of 8") && has(o.err, "hint: --ctx"));
    forget(&o);
    /* no hint where the model goes no further */
    char *text = calloc(1, 40001);
    assert_non_null(text);
    for (int i = 0; i < 8000; i++) memcpy(text + 5 * (size_t)i, "word ", 5);
    o = RUN("coli", text, "run", "--model", MODEL, "-");
    EXPECT(o, o.code == 1 && has(o.err, "context of 4096") && !has(o.err, "hint: "));
    free(text);
    forget(&o);
}

T_TEST(the_same_seed_gives_the_same_answer)
{
    T_BEGIN;
    outcome a = RUN("coli", "", "run", "--temp", "1.5", "--seed", "7", "-n", "40", "--no-think",
                    "Tell me a story.");
    outcome b =
        run_with("coli", "", 0, LIST("COLI_TEMP=1.5", "SEED=7", "NGEN=40", "COLI_ISA=scalar"),
                 LIST("run", "--no-think", "--threads", "1", "Tell me a story."));
    outcome c = RUN("coli", "", "run", "--temp", "1.5", "--seed", "8", "-n", "40", "--no-think",
                    "Tell me a story.");
    EXPECT(a, a.code == 0 && strcmp(a.out, b.out) == 0);
    EXPECT(c, strcmp(a.out, c.out) != 0);
    forget(&a);
    forget(&b);
    forget(&c);
}

T_TEST(piped_chat_answers_line_by_line)
{
    T_BEGIN;
    outcome o = RUN("coli", "What is the capital of France?\n\nWhat is 17 + 25?\r\n", "chat",
                    "--no-think", "--temp", "0", "--model", MODEL);
    EXPECT(o, o.code == 0 && has(o.out, "Paris") && has(o.out, "42") && !has(o.out, "> ") &&
                  !has(o.out, "\033"));
    EXPECT(o, has(o.err, "hummingbird · 22.2 M weights"));
    /* the second turn computes what is new, not the conversation */
    unsigned first = 0, second = 0;
    EXPECT(o, has_footer(o.err, &first));
    EXPECT(o, has_footer(strstr(o.err, "TTFT") + 5, &second));
    EXPECT(o, second < first + 16);
    forget(&o);
    o = RUN("coli", ":hlep\n", "chat");
    EXPECT(o, o.code == 2 && has(o.err, "unknown command :hlep\nhint: did you mean :help?"));
    forget(&o);
    o = RUN("coli", "Hello!\n:reset\n::reset\n:-)\n:quit\nHello!\n", "chat", "--no-think", "--temp",
            "0");
    EXPECT(o, o.code == 0 && has(o.err, "forgotten"));
    int n_answer = 0;
    for (const char *at = o.err; (at = strstr(at, "TTFT")); at++) n_answer++;
    EXPECT(o, n_answer == 3);
    forget(&o);
    o = RUN("coli", "Hello!\n", "chat", "--ctx", "6");
    EXPECT(o, o.code == 1 && has(o.err, "hint: :reset"));
    forget(&o);
}

T_TEST(a_reader_that_goes_away_is_no_error_message)
{
    T_BEGIN;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const char *err = scratch_path("err");
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(TIMEOUT_S);
        close(ends[0]);
        dup2(ends[1], 1);
        close(ends[1]);
        open_as(2, err, O_WRONLY | O_CREAT | O_TRUNC);
        become("coli", LIST("run", "--no-think", "Tell me a story.", "--model", MODEL), NULL);
    }
    close(ends[0]);
    close(ends[1]);
    T_EQ(exit_code(pid), 256 + SIGPIPE);
    size_t n;
    char *text = slurp(err, &n);
    T_STR(text, "");
    free(text);
}

/* A program whose input is a pipe, and what it has said so far on stdout and stderr. */
typedef struct talk {
    pid_t pid;
    int to, from;
    char said[4096];
    size_t n;
} talk;

static void talk_begin(talk *t, const char *program, const char *const *args)
{
    int in[2], out[2];
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    *t = (talk){.to = in[1], .from = out[0]};
    t->pid = fork();
    if (t->pid == 0) {
        alarm(TIMEOUT_S / 4);
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(out[1], 2);
        for (int i = 0; i < 2; i++) {
            close(in[i]);
            close(out[i]);
        }
        become(program, args, NULL);
    }
    close(in[0]);
    close(out[1]);
}

static void talk_until(talk *t, const char *text)
{
    while (!has(t->said, text)) {
        const ssize_t n = read(t->from, t->said + t->n, sizeof t->said - 1 - t->n);
        if (n <= 0) fail_msg("it never said \"%s\" but \"%s\"", text, t->said);
        t->n += (size_t)n;
    }
}

T_TEST(ctrl_c_ends_a_program_that_waits_for_input)
{
    T_BEGIN;
    static const struct {
        const char *program, *args[7], *input, *answer;
    } cases[] = {
        {"qwen36", {"--model", MODEL, "--prompt-file", "-"}, "", " · context "},
        {"qwen36", {"--model", MODEL, "--ids", "-"}, "[1,", " · context "},
        {"qwen36",
         {"--model", MODEL, "--threads", "2", "--ppl", "-"},
         "{\"text\": \"Hello there.\"}\n",
         "ppl "},
        {"coli", {"chat", "--no-think", "--temp", "0"}, "Hello!\n", "TTFT"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        talk t;
        talk_begin(&t, cases[i].program, cases[i].args);
        const size_t n = strlen(cases[i].input);
        T_EQ(write(t.to, cases[i].input, n), n);
        talk_until(&t, cases[i].answer);
        kill(t.pid, SIGINT); // and its input stays open
        T_EQ(exit_code(t.pid), 130);
        close(t.to);
        close(t.from);
    }
}

/* The widest line of a text, in characters. */
static size_t widest(const char *text)
{
    size_t most = 0, n = 0;
    for (; *text; text++) {
        if (((unsigned char)*text & 0xC0) != 0x80) n++;
        if (*text == '\n') n = 0;
        if (n > most) most = n;
    }
    return most;
}

T_TEST(chat_fits_a_terminal)
{
    T_BEGIN;
    outcome o = RUN("coli", ":help\n", "chat", "--model", MODEL);
    EXPECT(o, o.code == 0 && has(o.err, "Ctrl-C stops an answer"));
    EXPECT(o, widest(o.err) <= 80);
    forget(&o);
}

/* ---- models -------------------------------------------------------------------------------- */

T_TEST(info_tells_what_a_model_is)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "info", MODEL);
    EXPECT(o, o.code == 0 && has(o.out, "22.2 M in all") && has(o.out, "8 layers") &&
                  has(o.out, "<|im_end|>"));
    forget(&o);
    o = run_with("coli", "", 0, LIST("CTX=2048", "NUCLEUS=0.5"),
                 LIST("info", "--json", "--settings", "--temp", "0", "--model", MODEL));
    EXPECT(o, o.code == 0);
    json_error_t error;
    json_t *root = json_loads(o.out, 0, &error);
    EXPECT(o, json_integer_value(json_object_get(root, "n_expert")) == 64);
    EXPECT(o, json_string_length(json_object_get(root, "identity")) == 32);
    EXPECT(o, json_array_size(json_object_get(root, "stop_tokens")) == 2);
    static const char *const expected[][3] = {{"ctx", "2048", "CTX"},
                                              {"top-p", "0.5", "NUCLEUS"},
                                              {"temp", "0", "command line"},
                                              {"top-k", "20", "model"},
                                              {"seed", "0", "default"}};
    const json_t *settings = json_object_get(root, "settings");
    size_t n_found = 0;
    for (size_t i = 0; i < json_array_size(settings); i++)
        for (size_t k = 0; k < 5; k++) {
            const json_t *s = json_array_get(settings, i);
            if (strcmp(json_string_value(json_object_get(s, "name")), expected[k][0]) != 0)
                continue;
            T_STR(json_string_value(json_object_get(s, "value")), expected[k][1]);
            T_STR(json_string_value(json_object_get(s, "from")), expected[k][2]);
            n_found++;
        }
    T_EQ(n_found, 5);
    json_decref(root);
    forget(&o);
    char system[6000];
    memset(system, 'x', sizeof system - 1);
    system[sizeof system - 1] = 0;
    o = RUN("coli", "", "info", "--json", "--settings", "--system", system, "--model", MODEL);
    EXPECT(o, o.code == 0 && has(o.out, system));
    forget(&o);
    o = RUN("coli", "", "info", "--settings", "--system", system, "--model", MODEL);
    EXPECT(o, o.code == 0 && has(o.out, system));
    forget(&o);
}

T_TEST(convert_verify_and_measure_a_tiny_model)
{
    T_BEGIN;
    const char *out = scratch_path("tiny");
    outcome o = RUN("coli", "", "convert", TINY, out, "--experts", "f32", "--trunk", "f32");
    EXPECT(o, o.code == 0 && o.n_out == 0 && has(o.err, "is complete"));
    forget(&o);
    o = RUN("coli", "", "convert", TINY, out);
    EXPECT(o, o.code == 2 && has(o.err, out) && has(o.err, "hint: "));
    forget(&o);
    o = RUN("coli", "", "verify", out);
    EXPECT(o, o.code == 0 && has(o.out, "all is well"));
    forget(&o);
    const char *rows = scratch_path("rows");
    o = RUN("coli", "", "convert", TINY, rows, "--group", "row", "--experts", "int8");
    EXPECT(o, o.code == 0);
    forget(&o);
    o = RUN("coli", "", "info", rows);
    EXPECT(o, o.code == 0 && has(o.out, "int8-row"));
    forget(&o);

    /* ids in, ids out; teacher forcing agrees with them; the dump has their rows */
    o = RUN("qwen36", "[1, 2, 3]", "--model", out, "--ids", "-", "-n", "5");
    EXPECT(o, o.code == 0 && has_footer(o.err, NULL));
    int made[5];
    EXPECT(o, sscanf(o.out, "[%d, %d, %d, %d, %d]\n", made, made + 1, made + 2, made + 3,
                     made + 4) == 5);
    char all[128];
    snprintf(all, sizeof all, "{\"ids\": [1, 2, 3, %d, %d, %d, %d, %d]}", made[0], made[1], made[2],
             made[3], made[4]);
    forget(&o);
    const char *dump = scratch_path("dump.safetensors");
    o = RUN("qwen36", all, "--model", out, "--teacher-force", "-", "--dump-logits", dump, "--chunk",
            "3");
    EXPECT(o, o.code == 0);
    json_error_t error;
    json_t *root = json_loads(o.out, 0, &error);
    const json_t *argmax = json_object_get(root, "argmax");
    EXPECT(o, json_array_size(argmax) == 8);
    for (size_t i = 0; i < 5; i++) T_EQ(json_integer_value(json_array_get(argmax, 2 + i)), made[i]);
    json_decref(root);
    forget(&o);
    size_t n;
    char *file = slurp(dump, &n);
    T_TRUE(has(file + 8, "\"logits\":{\"dtype\":\"F32\",\"shape\":[8,320]"));
    T_TRUE(has(file + 8, "\"expert_ids\":{\"dtype\":\"I32\",\"shape\":[8,8,4]"));
    T_TRUE(has(file + 8, "\"expert_w\":{\"dtype\":\"F32\",\"shape\":[8,8,4]"));
    o = RUN("qwen36", all, "--model", out, "--ids", "-", "--dump-logits", scratch_path("again"));
    EXPECT(o, o.code == 0);
    forget(&o);
    size_t n_again;
    char *again = slurp(scratch_path("again"), &n_again);
    T_EQ(n, n_again);
    T_MEM(file, again, n); // chunks of 3 or all at once: every row in its place
    free(again);
    free(file);

    o = RUN("qwen36", all, "--model", out, "--ids", "-", "--dump-logits", dump);
    EXPECT(o, o.code == 2 && has(o.err, "already exists"));
    forget(&o);

    static const char *const bad[][2] = {{"", "column"},
                                         {"{}", "expected a JSON array"},
                                         {"[]", "empty"},
                                         {"[1, 320]", "id 1: expected"},
                                         {"[-1]", "found -1"},
                                         {"[1.5]", "found 1.5"},
                                         {"[\"a\"]", "found \"a\""},
                                         {"[1, 2", "column"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o = RUN("qwen36", bad[i][0], "--model", out, "--ids", "-");
        EXPECT(o, o.code == 2 && has(o.err, bad[i][1]));
        forget(&o);
    }
    o = RUN("qwen36", "[1, 2, 3]", "--model", out, "--ids", "-", "--ctx", "2");
    EXPECT(o, o.code == 1 && has(o.err, "3 tokens do not fit the context of 2"));
    forget(&o);
}

/* A checkpoint like TINY whose weights are `byte` all over. */
static const char *checkpoint_of(int byte)
{
    const char *dir = scratch_path("checkpoint"),
               *file = scratch_path("checkpoint/model.safetensors");
    if (mkdir(dir, 0700) != 0) assert_int_equal(errno, EEXIST);
    size_t n;
    char *config = slurp(TINY "/config.json", &n);
    spill(scratch_path("checkpoint/config.json"), config, n);
    free(config);
    char *weights = slurp(TINY "/model.safetensors", &n);
    uint64_t n_header;
    memcpy(&n_header, weights, sizeof n_header);
    memset(weights + 8 + n_header, byte, n - 8 - n_header);
    spill(file, weights, n);
    free(weights);
    return dir;
}

T_TEST(bad_weights_are_a_bad_file)
{
    T_BEGIN;
    const char *out = scratch_path("nan");
    outcome o = RUN("coli", "", "convert", checkpoint_of(0xFF), out); // NaN in every format
    EXPECT(o, o.code == 2 && o.n_out == 0 && access(out, F_OK) != 0);
    forget(&o);
    const char *config = "{\"model_type\": \"x\"}";
    spill(scratch_path("checkpoint/config.json"), config, strlen(config));
    o = RUN("coli", "", "convert", scratch_path("checkpoint"), out);
    EXPECT(o, o.code == 2 && has(o.err, "/checkpoint/config.json: model_type x"));
    forget(&o);
}

T_TEST(a_file_that_may_not_grow_ends_convert_in_order)
{
    T_BEGIN;
    const char *out = scratch_path("large"), *err = scratch_path("err");
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(TIMEOUT_S);
        open_as(2, err, O_WRONLY | O_CREAT | O_TRUNC);
        const struct rlimit limit = {.rlim_cur = 100 << 10, .rlim_max = 100 << 10};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(126);
        become("coli", LIST("convert", TINY, out), NULL);
    }
    outcome o = {.code = exit_code(pid), .out = calloc(1, 1)};
    o.err = slurp(err, &o.n_err);
    EXPECT(o, o.code == 1 && has(o.err, "File too large\n"));
    forget(&o);
    T_TRUE(access(out, F_OK) != 0);
    T_TRUE(access(scratch_path("large.partial"), F_OK) != 0);
}

/* What a kill leaves says what it is; who names the OUT that never came is told where it got to. */
T_TEST(an_unfinished_conversion_says_so)
{
    T_BEGIN;
    const char *dir = scratch_path("half.partial"), *none = scratch_path("half");
    T_EQ(mkdir(dir, 0777), 0);
    spill(scratch_path("half.partial/unfinished.txt"), "", 0);
    spill(scratch_path("half.partial/model.coli"), "", 0);
    outcome o = RUN("coli", "", "chat", "--model", dir);
    EXPECT(o, o.code == 2 && has(o.err, "half.partial: is a conversion that was not finished"));
    EXPECT(o, has(o.err, "hint: `coli convert` with the same SRC, OUT (without .partial)"));
    forget(&o);
    o = RUN("coli", "", "info", none);
    EXPECT(o, o.code == 2 && has(o.err, "half.partial is a conversion that was not finished"));
    forget(&o);
    o = RUN("coli", "", "convert", TINY, none);
    EXPECT(o, o.code == 0 && access(dir, F_OK) != 0);
    forget(&o);
}

T_TEST(a_continuation_that_the_context_cuts_says_so)
{
    T_BEGIN;
    outcome o =
        RUN("qwen36", "[1, 2, 3]", "--model", MODEL, "--ids", "-", "--ctx", "8", "-n", "20");
    EXPECT(o, o.code == 0 && has(o.err, "stopped: the context of 8 tokens is full\nhint: --ctx"));
    forget(&o);
    o = RUN("qwen36", "[1, 2, 3]", "--model", MODEL, "--ids", "-", "--ctx", "8", "-n", "6");
    EXPECT(o, o.code == 0 && !has(o.err, "stopped"));
    forget(&o);
}

T_TEST(what_was_not_scored_has_no_perplexity)
{
    T_BEGIN;
    const char *nothing = "{\"text\": \"\", \"topic\": \"t\"}\n";
    outcome o = RUN("qwen36", nothing, "--model", MODEL, "--ppl", "-");
    EXPECT(o, o.code == 0 && has(o.out, " 0 tokens  nll -  ppl -\n") && has(o.err, "1 text in"));
    forget(&o);
    o = RUN("qwen36", nothing, "--model", MODEL, "--ppl", "-", "--json");
    EXPECT(o, o.code == 0 && has(o.out, "\"all\": {\"tokens\": 0, \"nll\": null, \"ppl\": null}"));
    forget(&o);
    o = RUN("qwen36", "[1]", "--model", MODEL, "--teacher-force", "-");
    EXPECT(o, o.code == 0 && has(o.out, "\"scored\": 0, \"nll\": null"));
    forget(&o);
    char *text = calloc(1, 40100);
    assert_non_null(text);
    size_t n = (size_t)sprintf(text, "{\"text\": \"a\"}\n{\"text\": \"");
    for (int i = 0; i < 8000; i++, n += 5) memcpy(text + n, "word ", 5);
    strcpy(text + n, "\"}\n");
    o = RUN("qwen36", text, "--model", MODEL, "--ppl", "-");
    EXPECT(o, o.code == 1 && has(o.err, "qwen36: standard input: line 2: ") && !has(o.err, "hint"));
    free(text);
    forget(&o);
}

T_TEST(perplexity_by_topic)
{
    T_BEGIN;
    const char *text = "{\"topic\": \"a\", \"text\": \"Hello there.\"}\n{\"topic\": \"b\", "
                       "\"text\": \"Hello there.\"}\n"
                       "{\"topic\": \"a\", \"text\": \"H\"}\n{\"text\": \"\"}\n";
    outcome o = RUN("qwen36", text, "--model", MODEL, "--ppl", "-", "--json");
    EXPECT(o, o.code == 0);
    json_error_t error;
    json_t *root = json_loads(o.out, 0, &error);
    const json_t *topics = json_object_get(root, "topics"), *all = json_object_get(root, "all");
    const json_t *a = json_object_get(topics, "a"), *b = json_object_get(topics, "b");
    EXPECT(o, json_integer_value(json_object_get(all, "tokens")) ==
                  2 * json_integer_value(json_object_get(b, "tokens")));
    EXPECT(o, json_real_value(json_object_get(a, "nll")) ==
                  json_real_value(json_object_get(b, "nll")));
    EXPECT(o, json_real_value(json_object_get(b, "nll")) > 0);
    EXPECT(o, json_array_size(json_object_get(root, "texts")) == 4);
    json_decref(root);
    forget(&o);
    o = RUN("qwen36", "{\"text\": \"a\"}\n{\"txt\": 1}\n", "--model", MODEL, "--ppl", "-");
    EXPECT(o, o.code == 2 && has(o.err, "standard input: line 2: expected the string \"text\""));
    forget(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_makes_no_sense_is_refused_with_one_line_and_a_hint),
        cmocka_unit_test(version_and_help_go_to_stdout),
        cmocka_unit_test(no_file_and_no_name_drives_the_terminal),
        cmocka_unit_test(a_directory_may_have_any_name),
        cmocka_unit_test(coli_alone_explains_itself_and_fails),
        cmocka_unit_test(input_without_an_end_is_refused),
        cmocka_unit_test(a_closed_stream_is_nobody_elses_file),
        cmocka_unit_test(a_full_disk_is_called_by_its_name),
        cmocka_unit_test(what_cannot_be_read_is_no_end_of_file),
        cmocka_unit_test(variables_that_do_nothing_are_named_once),
        cmocka_unit_test(the_manual_is_complete),
        cmocka_unit_test(tokenize_jsonl_equals_the_fixture),
        cmocka_unit_test(render_jsonl_equals_the_fixture),
        cmocka_unit_test(tokenize_a_bad_line_stands_in_its_place),
        cmocka_unit_test(tokenize_text_shows_ids_and_pieces),
        cmocka_unit_test(render_refusals_are_results),
        cmocka_unit_test(run_answers_on_stdout_and_the_rest_on_stderr),
        cmocka_unit_test(run_thinks_on_stderr_and_says_when_nothing_else_came),
        cmocka_unit_test(thinking_that_does_not_show_is_no_answer),
        cmocka_unit_test(the_same_seed_gives_the_same_answer),
        cmocka_unit_test(piped_chat_answers_line_by_line),
        cmocka_unit_test(a_reader_that_goes_away_is_no_error_message),
        cmocka_unit_test(ctrl_c_ends_a_program_that_waits_for_input),
        cmocka_unit_test(chat_fits_a_terminal),
        cmocka_unit_test(info_tells_what_a_model_is),
        cmocka_unit_test(convert_verify_and_measure_a_tiny_model),
        cmocka_unit_test(bad_weights_are_a_bad_file),
        cmocka_unit_test(a_file_that_may_not_grow_ends_convert_in_order),
        cmocka_unit_test(an_unfinished_conversion_says_so),
        cmocka_unit_test(a_continuation_that_the_context_cuts_says_so),
        cmocka_unit_test(what_was_not_scored_has_no_perplexity),
        cmocka_unit_test(perplexity_by_topic),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
