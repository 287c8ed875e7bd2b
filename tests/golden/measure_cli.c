/* measure_cli.c - what the programs tell about a run, as a script meets it: recorded routing. */
#include <jansson.h>

#include "coli/coli.h"
#include "programs.h"

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

/* -- recorded routing -------------------------------------------------------------------------- */

T_TEST(run_records_what_replay_reads)
{
    T_BEGIN;
    const char *trace = scratch_path("run");
    outcome o = RUN("coli", "", "run", "--no-think", "--temp", "0", "--model", MODEL, "--trace",
                    trace, "What is 17 + 25?");
    EXPECT(o, o.code == 0);
    T_STR(o.out, "17 + 25 = 42\n");
    EXPECT(o, has(o.err, "run: the routing of 1 prompt\n"));
    forget(&o);
    o = RUN("coli", "", "replay", trace, "--policy", "prefill", "--residency", "50%");
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "1 prompts, 8 layers, 6 of 64 experts per token; 24 prompt and 10 answer "
                         "tokens"));
    forget(&o);
    o = RUN("coli", "", "run", "--model", MODEL, "--trace", trace, "Hi"); // not over it
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "run.json: already exists"));
    EXPECT(o, !*o.out);
    forget(&o);
}

T_TEST(chat_records_every_turn)
{
    T_BEGIN;
    const char *trace = scratch_path("chat.safetensors");
    outcome o = RUN("coli", "Hello!\nWhat is 17 + 25?\n:quit\n", "chat", "--no-think", "--temp",
                    "0", "--model", MODEL, "--trace", trace);
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.err, "the routing of 2 prompts\n"));
    forget(&o);
    size_t n;
    char *text = slurp(scratch_path("chat.json"), &n);
    json_t *list = json_loads(text, 0, NULL);
    free(text);
    T_EQ(json_array_size(list), 2);
    const json_t *second = json_array_get(list, 1);
    T_STR(json_string_value(json_object_get(second, "name")), "p001");
    const json_int_t rows = json_integer_value(json_object_get(second, "rows")),
                     prompt = json_integer_value(json_object_get(second, "prompt"));
    T_EQ(rows - prompt, 10); // the first turn's rows are not in it
    T_LE(prompt, 40);
    json_decref(list);
}

T_TEST(qwen36_records_what_it_makes)
{
    T_BEGIN;
    const char *trace = scratch_path("ids");
    outcome o = RUN("qwen36", "[1, 85, 2, 7, 300]", "--model", MODEL, "--ids", "-", "-n", "4",
                    "--dump-routing", trace);
    EXPECT(o, o.code == 0);
    forget(&o);
    o = RUN("coli", "", "replay", trace, "--policy", "prefill", "--residency", "50%");
    EXPECT(o, has(o.out, "5 prompt and 3 answer tokens")); // the last one is not fed
    forget(&o);
    o = RUN("qwen36", "[1, 85]", "--model", MODEL, "--ids", "-", "-n", "1", "--dump-routing",
            scratch_path("one"));
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.err, "nothing of this answer was recorded"));
    T_TRUE(!is_there(scratch_path("one.json")));
    forget(&o);
    o = RUN("qwen36", "[1, 85]", "--model", MODEL, "--teacher-force", "-", "--dump-routing", trace);
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "--dump-routing does not go with --teacher-force"));
    forget(&o);
    o = RUN("qwen36", "[1, 85]", "--model", MODEL, "--ids", "-", "-n", "3", "--dump-routing",
            "/nonexistent/x");
    EXPECT(o, o.code == 2); // before any token
    EXPECT(o, has(o.err, "/nonexistent/x.safetensors: cannot create") && !*o.out);
    forget(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_records_what_replay_reads),
        cmocka_unit_test(chat_records_every_turn),
        cmocka_unit_test(qwen36_records_what_it_makes),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
