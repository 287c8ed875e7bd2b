/* options_test.c - what the options and variables about devices come to. */
#include "coli/coli.h"
#include "options.h"
#include "t.h"
#include "terminal.h"

static app_settings seen;
static bool called;

static int keep(const app_settings *s)
{
    seen = *s;
    called = true;
    return APP_OK;
}

static const app_command commands[] = {{.name = "run",
                                        .bit = APP_RUN,
                                        .synopsis = "",
                                        .summary = "",
                                        .examples = "",
                                        .max_arg = 1,
                                        .run = keep},
                                       {.name = "backend",
                                        .bit = APP_BACKEND,
                                        .synopsis = "",
                                        .summary = "",
                                        .examples = "",
                                        .max_arg = 2,
                                        .run = keep}};
static const app_program program = {
    .name = "coli", .summary = "", .commands = commands, .n_command = 2};

static const char *const variables[] = {
    "COLI_BACKEND", "COLI_CUDA", "COLI_VULKAN",    "COLI_BACKEND_PATH", "COLI_BACKEND_OPTIONS",
    "COLI_FAKE",    "COLI_GPUS", "CUDA_EXPERT_GB", "VK_EXPERT_GB",      "QT_PREFILL_REPLAN"};

/* `coli ARGS` with the variables ENV ("NAME=value ..."), and no other of ours. */
static int run(const char *env, const char *args)
{
    char words[512], *argv[16] = {(char *)(uintptr_t) "coli"};
    int argc = 1;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    snprintf(words, sizeof words, "%s", env);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        char *value = strchr(word, '=');
        *value = 0;
        setenv(word, value + 1, 1);
    }
    static char kept[512]; // settings point into it
    snprintf(kept, sizeof kept, "%s", args);
    for (char *word = strtok(kept, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    called = false;
    const int code = app_main(&program, argc, argv);
    T_EQ(called, code == APP_OK);
    return code;
}

T_TEST(vram)
{
    T_BEGIN;
    static const struct {
        const char *text;
        uint32_t unit;
        double amount;
    } good[] = {
        {"auto", COLI_VRAM_AUTO, 0},
        {"0", COLI_VRAM_BYTES, 0},
        {"8", COLI_VRAM_BYTES, 8.0 * (1 << 30)},
        {"8GiB", COLI_VRAM_BYTES, 8.0 * (1 << 30)},
        {"12GB", COLI_VRAM_BYTES, 12e9},
        {"0.5GB", COLI_VRAM_BYTES, 5e8},
        {"500MiB", COLI_VRAM_BYTES, 500.0 * (1 << 20)},
        {"500MB", COLI_VRAM_BYTES, 5e8},
        {"1TiB", COLI_VRAM_BYTES, 0x1p40},
        {"1TB", COLI_VRAM_BYTES, 1e12},
        {"0%", COLI_VRAM_PERCENT, 0},
        {"12.5%", COLI_VRAM_PERCENT, 12.5},
        {"100%", COLI_VRAM_PERCENT, 100},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char args[64];
        snprintf(args, sizeof args, "run --vram %s", good[i].text);
        T_EQ(run("", args), APP_OK);
        T_STR(seen.vram.text, good[i].text);
        T_EQ(seen.vram.unit, good[i].unit);
        T_TRUE(seen.vram.amount == good[i].amount);
    }
    static const char *const bad[] = {"-1",    "8G",  "8gib", "8Gi",        "100.1%",
                                      "1.2.3", "GiB", "1e9",  "8KB",        "all",
                                      "nan%",  "8%%", "0x8",  "2000000TiB", "AUTO"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char args[64];
        snprintf(args, sizeof args, "run --vram=%s", bad[i]);
        T_EQ(run("", args), APP_BAD);
    }
    T_EQ(run("", "run"), APP_OK);
    T_EQ(seen.vram.unit, COLI_VRAM_AUTO);
}

T_TEST(devices)
{
    T_BEGIN;
    static const char *const good[] = {"0", "0,2", "10,11,12"}, *const bad[] = {"-1",  ",",    "0,",
                                                                                ",0",  "0,,1", "a",
                                                                                "0;1", "0-2"};
    for (size_t i = 0; i < 3; i++) {
        char args[64];
        snprintf(args, sizeof args, "run --devices %s", good[i]);
        T_EQ(run("COLI_GPUS=7", args), APP_OK);
        T_STR(seen.devices, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char args[64];
        snprintf(args, sizeof args, "run --devices=%s", bad[i]);
        T_EQ(run("", args), APP_BAD);
        snprintf(args, sizeof args, "COLI_GPUS=%s", bad[i]);
        T_EQ(run(args, "run"), APP_BAD);
    }
    T_EQ(run("COLI_GPUS=3,1", "run"), APP_OK);
    T_STR(seen.devices, "3,1");
}

T_TEST(which_backend)
{
    T_BEGIN;
    static const struct {
        const char *env, *args, *backend, *variable; // variable NULL: the command line, or nobody
    } cases[] = {
        {"", "run", NULL, NULL},
        {"", "run --backend vulkan", "vulkan", NULL},
        {"COLI_BACKEND=./x.so", "run", "./x.so", "COLI_BACKEND"},
        {"COLI_CUDA=1", "run", "cuda", "COLI_CUDA"},
        {"COLI_CUDA=1x", "run", "cuda", "COLI_CUDA"},
        {"COLI_CUDA=0", "run", "none", "COLI_CUDA"},
        {"COLI_CUDA=", "run", NULL, NULL},
        {"COLI_VULKAN=1", "run", "vulkan", "COLI_VULKAN"},
        {"COLI_CUDA=0 COLI_VULKAN=1", "run", "vulkan", "COLI_VULKAN"},
        {"COLI_CUDA=1 COLI_VULKAN=0", "run", "cuda", "COLI_CUDA"},
        {"COLI_CUDA=1 COLI_VULKAN=1", "run", "cuda", "COLI_CUDA"},
        {"COLI_CUDA=1 COLI_BACKEND=none", "run", "none", "COLI_BACKEND"},
        {"COLI_CUDA=1 COLI_BACKEND=fake", "run --backend vulkan", "vulkan", NULL},
        {"COLI_CUDA=0", "run --backend cuda", "cuda", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        T_EQ(run(cases[i].env, cases[i].args), APP_OK);
        T_STR(seen.backend ? seen.backend : "-", cases[i].backend ? cases[i].backend : "-");
        const app_variable *v = seen.variable[APP_OPT_BACKEND];
        T_STR(v ? v->name : "-", cases[i].variable ? cases[i].variable : "-");
        T_EQ(app_given(&seen, APP_OPT_BACKEND), cases[i].backend != NULL);
    }
    T_EQ(run("COLI_CUDA=yes", "run"), APP_BAD);
    T_EQ(run("", "run --backend="), APP_BAD);
}

T_TEST(variables_of_one_backend)
{
    T_BEGIN;
    T_EQ(run("COLI_CUDA=1 CUDA_EXPERT_GB=6 VK_EXPERT_GB=7", "run"), APP_OK);
    T_STR(seen.vram.text, "6");
    T_EQ(run("CUDA_EXPERT_GB=6 VK_EXPERT_GB=7", "run --backend ./y/coli_vulkan.so"), APP_OK);
    T_STR(seen.vram.text, "7");
    T_EQ(run("CUDA_EXPERT_GB=6 VK_EXPERT_GB=7", "run"), APP_OK);
    T_EQ(app_given(&seen, APP_OPT_VRAM), false);
    T_EQ(run("COLI_CUDA=1 CUDA_EXPERT_GB=auto", "run --vram 50%"), APP_OK);
    T_STR(seen.vram.text, "50%");
    T_EQ(run("COLI_CUDA=1 CUDA_EXPERT_GB=much", "run"), APP_BAD);

    T_EQ(run("COLI_FAKE=devices=2 COLI_BACKEND_PATH=/a", "run --backend fake"), APP_OK);
    T_STR(seen.backend_options, "devices=2");
    T_STR(seen.backend_path, "/a");
    T_EQ(run("COLI_FAKE=devices=2", "run --backend cuda"), APP_OK);
    T_TRUE(seen.backend_options == NULL);
    T_EQ(run("COLI_FAKE=devices=2 COLI_BACKEND_OPTIONS=x", "run --backend fake"), APP_OK);
    T_STR(seen.backend_options, "x");
    T_EQ(run("COLI_FAKE=devices=2", "backend info fake"), APP_OK);
    T_STR(seen.backend_options, "devices=2");
    T_EQ(run("COLI_FAKE=devices=2", "backend info"), APP_OK);
    T_TRUE(seen.backend_options == NULL);
}

/* The command line has the last word, also where it says no. */
T_TEST(yes_or_no)
{
    T_BEGIN;
    T_EQ(run("QT_PREFILL_REPLAN=1", "run"), APP_OK);
    T_EQ(seen.replan, true);
    T_EQ(run("QT_PREFILL_REPLAN=1", "run --replan=no"), APP_OK);
    T_EQ(seen.replan, false);
    T_EQ(run("QT_PREFILL_REPLAN=0", "run --replan"), APP_OK);
    T_EQ(seen.replan, true);
    T_EQ(run("", "run --replan=yes"), APP_OK);
    T_EQ(seen.replan, true);
    T_EQ(run("", "run --no-pilot=no"), APP_OK);
    T_EQ(seen.no_pilot, false);
    T_EQ(run("", "run --no-pilot=yes"), APP_OK);
    T_EQ(seen.no_pilot, true);
    T_EQ(run("", "run --replan="), APP_BAD);
    T_EQ(run("", "run --replan=1"), APP_BAD);
    T_EQ(run("QT_PREFILL_REPLAN=no", "run"), APP_BAD);
}

T_TEST(names_of_backends)
{
    T_BEGIN;
    T_TRUE(app_is_backend("cuda", "cuda"));
    T_TRUE(app_is_backend("/x/coli_cuda.so", "cuda"));
    T_TRUE(app_is_backend("x\\coli_cuda.dll", "cuda"));
    T_TRUE(!app_is_backend(NULL, "cuda"));
    T_TRUE(!app_is_backend("cuda2", "cuda"));
    T_TRUE(!app_is_backend("coli_cuda.so", "cuda"));
    T_TRUE(!app_is_backend("/x/coli_cuda2.so", "cuda"));
    T_TRUE(!app_is_backend("/cuda", "cuda"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vram),          cmocka_unit_test(devices),
        cmocka_unit_test(which_backend), cmocka_unit_test(variables_of_one_backend),
        cmocka_unit_test(yes_or_no),     cmocka_unit_test(names_of_backends),
    };
    app_terminal_init("coli");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
