/* backend_cli.c - `coli backend`, and the options about devices, as people meet them. */
#include <jansson.h>

#include "programs.h"

#define PLUGIN(name) TEST_PLUGINS "/coli_" name ".so"
#define PATH         "--backend-path=" TEST_PLUGINS

typedef struct usage_case {
    const char *args[10];
    const char *env;
    const char *err;
} usage_case;

static const usage_case usage_cases[] = {
    {{"backend"}, NULL, "too few arguments for backend "},
    {{"backend", "lst"}, NULL, "backend: expected list, info or check, found \"lst\""},
    {{"backend", "list", "a", "b"}, NULL, "unexpected argument \"b\""},
    {{"backend", "list", "--backend", "x"}, NULL, "hint: it belongs to `coli chat`"},
    {{"backend", "list", "--backend-path", "lib"}, NULL, "\"lib\" is relative; expected absolute"},
    {{"backend", "list", "coli_x.so"}, NULL, "hint: a file is written with its directory: ./coli"},
    {{"backend", "info", "/nonexistent/x.so"}, NULL, "backend /nonexistent/x.so cannot be used"},
    {{"run", "--vram", "8G", "x"},
     NULL,
     "--vram: expected auto, a share like 50%, or a size like 8GiB, 12GB or 500MiB, found \"8G\""},
    {{"run", "--vram", "101%", "x"}, NULL, "found \"101%\""},
    {{"run", "--replan-with", "tail,x", "x"},
     NULL,
     "--replan-with: expected one or more of tail, prior, cost, online or hold, each once, with "
     "commas between, found \"tail,x\""},
    {{"run", "--replan-with", "tail,tail", "x"}, NULL, "found \"tail,tail\""},
    {{"run", "--home", "row", "x"}, NULL, "expected expert or layer, found \"row\""},
    {{"run", "--devices", "0,", "x"}, NULL, "--devices: expected numbers of devices like 0 or 0,2"},
    {{"run", "x"}, "COLI_CUDA=yes", "environment variable COLI_CUDA: expected 1 or 0"},
    {{"run", "x"}, "COLI_GPUS=all", "environment variable COLI_GPUS: expected numbers"},
    {{"run", "--backend", "coli_x.so", "x"}, NULL, "written with its directory: ./coli_x.so"},
    {{"convert", "a", "b", "--vram", "1"}, NULL, "it belongs to `coli chat`, `coli run`"},
};

T_TEST(what_makes_no_sense_is_refused)
{
    T_BEGIN;
    for (size_t i = 0; i < sizeof usage_cases / sizeof *usage_cases; i++) {
        const usage_case *c = &usage_cases[i];
        outcome o = run_with("coli", "", 0, c->env ? LIST(c->env) : NULL, c->args);
        EXPECT(o, o.code == 2);
        EXPECT(o, has(o.err, c->err));
        forget(&o);
    }
}

T_TEST(list_shows_what_is_wrong)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "backend", "list", PATH);
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "today      " PLUGIN("today") "\n  interface 1.1, for tests\n  without "
                                                       "tensor_overwrite, "));
    EXPECT(o, has(o.out, "data       " PLUGIN("data") "\n  symbols: exported, but no functions: "
                                                      "coli_backend_open; "));
    EXPECT(o, has(o.out, "?          " PLUGIN("unresolved") "\n  library: the system cannot load"));
    EXPECT(o, !has(o.out, "device "));
    forget(&o);

    o = RUN("coli", "", "backend", "list", PATH, "unresolved");
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.out, "library: the system cannot load it: "));
    EXPECT(o, has(o.out, "file: no such file")); // the other places
    EXPECT(o, has(o.err, "coli: backend unresolved cannot be used\nhint: `coli backend list`"));
    forget(&o);
    o = RUN("coli", "", "backend", "list", PLUGIN("newest"));
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "newest     " PLUGIN("newest") "\n  interface 1.9, for tests\n"));
    forget(&o);
}

T_TEST(info_shows_devices)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "backend", "info", PATH, "probe");
    EXPECT(o, o.code == 0);
    EXPECT(o,
           has(o.out, "  device 0   Probe, simulated, 3.2 GB\n    driver   none 1.0\n    uuid     "
                      "00-01\n    formats  int8-g64-f16, int4-g64-f16\n"));
    forget(&o);
    o = RUN("coli", "", "backend", "info", PATH, "probe", "--backend-options", "unusable");
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.out, "    unusable it is only a probe\n"));
    forget(&o);
    o = RUN("coli", "", "backend", "info", PATH, "probe", "--backend-options", "none");
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.out, "  device: no device: no device is plugged in\n"));
    forget(&o);
    /* What a driver calls its device cannot drive the terminal. */
    o = RUN("coli", "", "backend", "info", PATH, "probe", "--backend-options", "strange");
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "    driver   a b ?\n"));
    forget(&o);
}

static json_t *find_file(json_t *array, const char *file)
{
    size_t i;
    json_t *entry;
    json_array_foreach(array, i,
                       entry) if (strcmp(json_string_value(json_object_get(entry, "file")), file) ==
                                  0) return entry;
    fail_msg("no %s", file);
    return NULL;
}

T_TEST(json)
{
    T_BEGIN;
    for (int info = 0; info < 2; info++) {
        outcome o = RUN("coli", "", "backend", info ? "info" : "list", "--json", PATH);
        EXPECT(o, o.code == 0);
        json_t *array = json_loads(o.out, 0, NULL);
        EXPECT(o, json_is_array(array));
        const json_t *good = find_file(array, PLUGIN("probe")), *device;
        T_STR(json_string_value(json_object_get(good, "stage")), "ready");
        T_TRUE(json_is_null(json_object_get(good, "reason")));
        T_STR(json_string_value(json_object_get(good, "name")), "probe");
        T_STR(json_string_value(json_object_get(good, "lacks")), "");
        T_EQ(json_integer_value(json_object_get(good, "abi_minor")), 1);
        const json_t *bad = find_file(array, PLUGIN("data"));
        T_STR(json_string_value(json_object_get(bad, "stage")), "symbols");
        T_TRUE(json_is_string(json_object_get(bad, "reason")));
        const json_t *devices = json_object_get(good, "devices");
        T_EQ(devices != NULL, info);
        if (info) {
            device = json_array_get(devices, 0);
            T_STR(json_string_value(json_object_get(device, "kind")), "simulated");
            T_EQ(json_integer_value(json_object_get(device, "mem_total")), (int64_t)3 << 30);
            T_TRUE(json_is_null(json_object_get(device, "unusable")));
            T_EQ(json_array_size(json_object_get(bad, "devices")), 0);
        }
        json_decref(array);
        forget(&o);
    }
}

#define ASK "--no-think", "--temp", "0", "What is 17 + 25?"

/* Whatever age the plugin has, the answer is that of the processor. */
T_TEST(old_and_new_plugins_compute_the_same)
{
    T_BEGIN;
    outcome cpu = RUN("coli", "", "run", "--backend", "none", ASK);
    EXPECT(cpu, cpu.code == 0 && cpu.n_out > 0);
    static const char *const plugins[] = {PLUGIN("oldest"), PLUGIN("today"), PLUGIN("newest")};
    static const char *const shares[] = {"0%", "50%", "1MiB", "100%"};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++) {
            outcome o = RUN("coli", "", "run", "--backend", plugins[i], "--vram", shares[k],
                            "--place", "all", ASK);
            EXPECT(o, o.code == 0);
            T_STR(o.out, cpu.out);
            forget(&o);
        }
    outcome o = run_with("coli", "What is 17 + 25?\n", 17, LIST("COLI_BACKEND=oldest"),
                         LIST("chat", PATH, "--vram=100%", "--no-think", "--temp", "0"));
    EXPECT(o, o.code == 0);
    T_STR(o.out, cpu.out);
    EXPECT(o, has(o.err, "oldest 0: Small: 512 of 512 experts"));
    forget(&o);
    forget(&cpu);
}

T_TEST(what_was_asked_for_and_cannot_be_used_is_an_error)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "run", "--backend", "nothing", PATH, ASK);
    EXPECT(o, o.code == 2);
    EXPECT(o, o.n_out == 0);
    EXPECT(o, has(o.err, "coli: backend nothing cannot be used:\n  " PLUGIN(
                             "nothing") ": file: no such file\n  "));
    EXPECT(o, has(o.err, "\nhint: `coli backend list` shows what there is; --backend none"));
    forget(&o);
    o = RUN("coli", "", "info", "--backend", PLUGIN("data"));
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "  " PLUGIN("data") ": symbols: exported, but no functions: "));
    forget(&o);
    o = RUN("coli", "", "run", "--backend", PLUGIN("probe"), ASK);
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "a probe does not open"));
    forget(&o);
    o = RUN("coli", "", "run", "--backend", PLUGIN("today"), "--devices", "3", ASK);
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "device 3: there are 1"));
    forget(&o);
    /* Nobody asked: simulated devices and those of the processor are left alone. */
    o = RUN("coli", "", "chat", PATH, "--no-think");
    EXPECT(o, o.code == 0);
    EXPECT(o, !has(o.err, "experts,"));
    forget(&o);
}

/* What is on a device is said; lists are refused with what is expected. */
T_TEST(where_the_trunk_is)
{
    T_BEGIN;
    outcome o = run_with("coli", "", 0, LIST("COLI_PLACE=shexp=0:2"),
                         LIST("run", "--backend", PLUGIN("today"), "-n", "1", ASK));
    EXPECT(o, has(o.err,
                  "trunk: 2 of 8 shexp on device 0; lmhead, 6 dnproj, 6 dnout, 2 attnproj, 6 of 8 "
                  "shexp on the processor: as asked\n"));
    forget(&o);
    o = run_with("coli", "", 0, LIST("COLI_PLACE=lmhead=0"),
                 LIST("run", "--backend", PLUGIN("today"), "--place", "off", "-n", "1", ASK));
    EXPECT(o, !has(o.err, "trunk: "));
    forget(&o);
    o = run_with("coli", "", 0, LIST("COLI_TRUNK_PROBE=0"), LIST("info", "--settings"));
    EXPECT(o, has(o.out, "  --no-trunk-probe     on                           COLI_TRUNK_PROBE\n"));
    forget(&o);
    o = run_with("coli", "", 0, LIST("COLI_TRUNK_PROBE=off"), LIST("info", "--settings"));
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "environment variable COLI_TRUNK_PROBE: expected 1 or 0, found \"off\""));
    forget(&o);
    o = RUN("coli", "", "run", "--place", "lmhead=gpu", ASK);
    EXPECT(o, o.code == 2);
    EXPECT(o,
           has(o.err,
               "coli: place: expected auto, off, all, or up to 8 items with commas between them: "
               "NAME=cpu, NAME=DEVICE, "));
    EXPECT(o, has(o.err, "; found \"lmhead=gpu\" in \"lmhead=gpu\"\n"));
    forget(&o);
}

T_TEST(settings_say_where_they_are_from)
{
    T_BEGIN;
    outcome o = run_with("coli", "", 0, LIST("COLI_CUDA=0", "COLI_GPUS=1,2", "CUDA_EXPERT_GB=3"),
                         LIST("info", "--settings", "--vram", "12GB"));
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "  --backend            none                         COLI_CUDA\n"));
    EXPECT(o, has(o.out, "  --devices            1,2                          COLI_GPUS\n"));
    EXPECT(o, has(o.out, "  --vram               12GB                         command line\n"));
    EXPECT(o, has(o.out, "  --place              auto                         default\n"));
    forget(&o);
    o = run_with("coli", "", 0, LIST("CUDA_EXPERT_GB=3"), LIST("info", "--settings"));
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.err, "warning: CUDA_EXPERT_GB has no effect without --backend cuda\n"));
    EXPECT(o, has(o.out, "  --vram               auto, what is free less 1 GiB default\n"));
    forget(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_makes_no_sense_is_refused),
        cmocka_unit_test(list_shows_what_is_wrong),
        cmocka_unit_test(info_shows_devices),
        cmocka_unit_test(json),
        cmocka_unit_test(old_and_new_plugins_compute_the_same),
        cmocka_unit_test(what_was_asked_for_and_cannot_be_used_is_an_error),
        cmocka_unit_test(where_the_trunk_is),
        cmocka_unit_test(settings_say_where_they_are_from),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
