/* measure_cli.c - what the programs tell about a run, as a script meets it: recorded routing, figures
 * as JSON. */
#include "coli/coli.h"
#include "json_out.h"

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

/* -- figures ----------------------------------------------------------------------------------- */

T_TEST(run_as_json)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "run", "--temp", "0", "--model", MODEL, "--backend", "none",
                    "--json", "What is 17 + 25?");
    EXPECT(o, o.code == 0);
    json_t *root = json_of(&o);
    EXPECT(o, !has(o.err, "= 42")); // the answer is in the object alone
    T_STR(json_text_at(root, "answer"), "17 + 25 = 42");
    T_STR(json_text_at(root, "stop"), "token");
    T_TRUE(json_is_string(json_object_get(root, "thinking")));
    T_EQ(json_number_at(root, "n_prompt"), json_number_at(root, "n_prefill"));
    const double n = json_number_at(root, "n_generated"),
                 decode_s = json_number_at(root, "decode_s");
    T_FLE(fabs(json_number_at(root, "ms_per_token") - decode_s * 1e3 / (n - 1)), 1e-9);
    T_FLE(fabs(json_number_at(root, "tok_s") - (n - 1) / decode_s), 1e-6 * n / decode_s);
    T_FLE(json_number_at(root, "moe_ms_per_token"), json_number_at(root, "ms_per_token"));
    T_TRUE(json_number_at(root, "moe_ms_per_token") > 0 &&
           json_number_at(root, "prefill_moe_s") > 0);
    T_FLE(json_number_at(root, "prefill_moe_s"), json_number_at(root, "prefill_s"));
    T_FLE(json_number_at(root, "prefill_s"), json_number_at(root, "ttft_s"));
    T_TRUE(json_number_at(root, "wait_ms_per_token") == 0 &&
           json_number_at(root, "prefill_wait_s") == 0);
    T_EQ(json_array_size(json_object_get(root, "devices")), 0);
    T_TRUE(json_is_null(json_object_get(root, "vram")));
    json_decref(root);
    forget(&o);
    o = RUN("coli", "", "run", "--model", MODEL, "--json", "-n", "3", "What is 17 + 25?");
    EXPECT(o, o.code == 1); // thinking took all
    root = json_of(&o);
    T_STR(json_text_at(root, "stop"), "length");
    T_STR(json_text_at(root, "answer"), "");
    json_decref(root);
    forget(&o);
}

#ifdef TEST_FAKE
/* Two launches of 2 ms in each of 8 layers are waited for, and counted as waiting. */
T_TEST(run_as_json_with_a_device)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "run", "--temp", "0", "--no-think", "--model", MODEL, "--backend",
                    TEST_FAKE, "--vram", "50%", "--backend-options", "real=1 kernel=2ms",
                    "--replan", "--json", "What is 17 + 25?");
    EXPECT(o, o.code == 0);
    json_t *root = json_of(&o);
    T_STR(json_text_at(root, "answer"), "17 + 25 = 42");
    T_FGE(json_number_at(root, "wait_ms_per_token"), 20);
    T_FLE(json_number_at(root, "wait_ms_per_token"), json_number_at(root, "moe_ms_per_token"));
    T_FLE(json_number_at(root, "moe_ms_per_token"), json_number_at(root, "ms_per_token"));
    T_FGE(json_number_at(root, "prefill_wait_s"), 0.020);
    T_EQ(json_number_at(root, "vram.experts"), 256);
    T_EQ(json_number_at(root, "vram.experts_total"), 512);
    const double hits = json_number_at(root, "vram.decode_hits"),
                 misses = json_number_at(root, "vram.decode_misses");
    T_EQ(hits + misses,
         (json_number_at(root, "n_generated")) * 8 * 6); // the stop token is sampled, not fed
    T_FLE(fabs(json_number_at(root, "vram.decode_hit_rate") - hits / (hits + misses)), 1e-12);
    T_GE(json_number_at(root, "vram.replan_planned"), json_number_at(root, "vram.replan_done"));
    T_GE(json_number_at(root, "vram.swaps"), json_number_at(root, "vram.replan_done"));
    const json_t *devices = json_object_get(root, "devices");
    T_EQ(json_array_size(devices), 1);
    T_STR(json_text_at(json_array_get(devices, 0), "backend"), "fake");
    T_EQ(json_number_at(json_array_get(devices, 0), "experts"), 256);
    T_TRUE(json_is_null(json_object_get(json_array_get(devices, 0), "lost")));
    json_decref(root);
    forget(&o);
}

T_TEST(bench_tells_of_devices)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "bench", "--model", MODEL, "--backend", TEST_FAKE, "--vram", "25%",
                    "--backend-options", "devices=2", "--prefill", "8", "--decode", "4", "--repeat",
                    "2", "--buffer", "64", "--json");
    EXPECT(o, o.code == 0);
    json_t *root = json_of(&o);
    const json_t *devices = json_object_get(root, "devices");
    T_EQ(json_array_size(devices), 2);
    const double n_expert = json_number_at(json_array_get(devices, 0), "experts") +
                            json_number_at(json_array_get(devices, 1), "experts");
    T_TRUE(n_expert <= 128 && n_expert >= 126); // a swap by heat may be under way on each
    T_EQ(json_number_at(json_array_get(devices, 1), "device"), 1);
    T_EQ(json_number_at(root, "vram.experts"), 128);
    T_TRUE(json_number_at(root, "decode.vram_hit_rate") > 0.02 &&
           json_number_at(root, "decode.vram_hit_rate") < 0.9);
    T_FGE(json_number_at(root, "swaps"), 0);
    json_decref(root);
    forget(&o);
    o = RUN("coli", "", "bench", "--model", MODEL, "--backend", TEST_FAKE, "--vram", "100%",
            "--prefill", "0", "--decode", "4", "--repeat", "2", "--buffer", "64");
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "device fake 0, simulated device 0: 512 of 512 experts, "));
    EXPECT(o, has(o.out, "decode VRAM hit rate: 100.0 % (384 hits, 0 misses)\n"));
    forget(&o);
    o = RUN("coli", "", "bench", "--model", MODEL, "--backend", "none", "--prefill", "0",
            "--decode", "2", "--repeat", "1", "--buffer", "64");
    EXPECT(o, o.code == 0);
    EXPECT(o, !has(o.out, "VRAM"));
    forget(&o);
}
#endif

/* -- plans ------------------------------------------------------------------------------------- */

T_TEST(plan_says_what_sits_where)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "plan", MODEL, "--backend", "none", "--threads", "2");
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "\n  keys and values                0.0") &&
                  has(o.out, "  of 4096 tokens\n"));
    EXPECT(o, has(o.out, "experts                          0.010 GB  512 of 0.020 MB, 64 in each"));
    EXPECT(o, has(o.out, "\n      512 experts in memory: all, mapped\n"));
    EXPECT(o, has(o.out, "\na token reads 3.852 MB from memory, 0.000 MB from the disk, "));
    EXPECT(o, !has(o.out, "VRAM"));
    EXPECT(o, has(o.out, "\n  trunk                          2.228 MB\n"));
    EXPECT(o, has(o.out, "\nmeasured here\n  memory ") && has(o.out, " GMAC/s\n"));
    EXPECT(o, has(o.out, "\nexpected, bound by ") && has(o.out, "  a short conversation "));
    EXPECT(o, !*o.err);
    forget(&o);
    o = RUN("coli", "", "plan", MODEL, "--backend", "none", "--vram", "2MB"); // planned for
    EXPECT(o, o.code == 0);
    EXPECT(o,
           has(o.out, "VRAM for experts                 0.002 GB  of a device that is not there"));
    EXPECT(o, has(o.out, "\n      102 experts in VRAM: 0.020 MB each there\n"));
    forget(&o);
}

T_TEST(plan_warns_when_memory_is_short)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "plan", MODEL, "--backend", "none", "--threads", "2", "--ram",
                    "31MB", "--json");
    EXPECT(o, o.code == 0); // it can run
    json_t *root = json_of(&o);
    T_STR(json_text_at(root, "fit"), "reads");
    T_EQ(json_number_at(root, "ram_bytes"), 31000000);
    T_EQ(json_number_at(root, "n_in_ram") + json_number_at(root, "n_on_disk"), 512);
    T_TRUE(json_number_at(root, "n_on_disk") > 0 && json_number_at(root, "token_disk_bytes") > 0);
    EXPECT(o, has(o.err, "every token will wait for the disk\n"));
    EXPECT(o, has(o.err, "\nhint: --ctx ") && has(o.err, " makes room for all\n"));
    char ctx[16];
    snprintf(ctx, sizeof ctx, "%.0f", json_number_at(root, "n_ctx_all"));
    json_decref(root);
    forget(&o);
    o = RUN("coli", "", "plan", MODEL, "--backend", "none", "--threads", "2", "--ram", "31MB",
            "--ctx", ctx);
    EXPECT(o, o.code == 0 && !*o.err); // the hint was right
    forget(&o);
    o = RUN("coli", "", "plan", MODEL, "--backend", "none", "--threads", "2", "--ram", "8MB",
            "--no-measure");
    EXPECT(o, o.code == 1 && !has(o.out, "measured") && !has(o.out, "expected"));
    EXPECT(o, has(o.err, "memory is not enough: one expert of each layer and the rest need 0.0"));
    EXPECT(o, has(o.err, " GB, 0.008 GB may be taken\n"));
    EXPECT(o, !has(o.out, "in memory: ") && !has(o.out, "a token reads"));
    EXPECT(o, has(o.err, "taken\nhint: 0.014 GB more of memory make it start\nhint: 0.0") &&
                  has(o.err, "more of memory or of VRAM hold all"));
    forget(&o);
    // a shorter context is said first, and is believed
    o = RUN("coli", "", "plan", MODEL, "--backend", "none", "--threads", "2", "--ram", "19MB");
    EXPECT(o, o.code == 1 && !has(o.out, "measured") && !has(o.out, "expected"));
    const char *hint = strstr(o.err, " GB may be taken\nhint: --ctx ");
    EXPECT(o, hint && has(o.err, " makes it start; or 0.0"));
    snprintf(ctx, sizeof ctx, "%d", atoi(strstr(hint, "--ctx ") + 6));
    forget(&o);
    o = RUN("coli", "", "plan", MODEL, "--backend", "none", "--threads", "2", "--ram", "19MB",
            "--no-measure", "--ctx", ctx);
    EXPECT(o, o.code == 0 && has(o.out, " experts in memory: those of each layer"));
    forget(&o);
    o = RUN("coli", "", "plan", MODEL, "--backend", "none", "--ram-experts", "20", "--no-measure");
    EXPECT(o, o.code == 0 && has(o.err, "--ram-experts keeps 20 of 64 experts of each layer"));
    EXPECT(o, has(o.err, "\nhint: without it all have room\n"));
    forget(&o);
}

/* Keys and values of terabytes: no machine has them in memory and swap, so it would not get through. */
T_TEST(plan_of_what_no_machine_holds)
{
    T_BEGIN;
    json_t *config = json_load_file(MODEL "/config.json", 0, NULL);
    T_TRUE(config != NULL);
    static const char *const keys[] = {"max_position_embeddings", "num_key_value_heads",
                                       "num_attention_heads", "head_dim", "num_hidden_layers"};
    static const int values[] = {1048576, 64, 64, 256, 64};
    for (int i = 0; i < 5; i++) json_object_set_new(config, keys[i], json_integer(values[i]));
    json_object_del(config, "layer_types");
    const char *dir = scratch_path("terabytes");
    char path[160];
    T_EQ(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    T_EQ(json_dump_file(config, path, 0), 0);
    json_decref(config);
    outcome o = RUN("coli", "", "plan", dir, "--backend", "none", "--ctx", "1048576", "--kv", "f32",
                    "--json");
    EXPECT(o, o.code == 1);
    EXPECT(o, has(o.err, " can be taken now") && has(o.err, "the system would end the program\n"));
    EXPECT(o, !has(o.err, "will swap"));
    json_t *root = json_of(&o);
    T_STR(json_text_at(root, "fit"), "not");
    T_TRUE(json_is_false(json_object_get(root, "starts")));
    // what the model may take is no more than there is
    T_TRUE(json_number_at(root, "ram_bytes") > 0);
    T_TRUE(json_number_at(root, "ram_bytes") <= json_number_at(root, "available_bytes"));
    T_TRUE(json_is_null(json_object_get(root, "measured")));
    json_decref(root);
    forget(&o);
}

/* What plan calls not enough, run refuses, too, before it reads anything. */
T_TEST(run_agrees_with_plan)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "run", "--model", MODEL, "--backend", "none", "--ram", "8MB", "Hi");
    EXPECT(o, o.code == 1 && !*o.out);
    EXPECT(o, has(o.err, "memory: 0.008 GB were allowed; the trunk, a conversation and one "));
    forget(&o);
    o = RUN("coli", "", "run", "--model", MODEL, "--backend", "none", "--ram", "27MB", "--json",
            "--temp", "0", "--no-think", "What is 17 + 25?");
    EXPECT(o, o.code == 0);
    json_t *root = json_of(&o), *ram = json_object_get(root, "ram");
    T_TRUE(json_is_object(ram));
    T_EQ(json_number_at(ram, "experts_total"), 64);
    T_TRUE(json_number_at(ram, "experts") > 20 && json_number_at(ram, "experts") < 60);
    T_TRUE(json_number_at(ram, "hits") + json_number_at(ram, "misses") > 0);
    T_TRUE(json_number_at(ram, "read_bytes") > 0);
    json_decref(root);
    forget(&o);
    o = RUN("coli", "", "run", "--model", MODEL, "--backend", "none", "--json", "-n", "4",
            "--no-think", "Hi");
    root = json_of(&o);
    T_TRUE(json_is_null(json_object_get(root, "ram"))); // all are mapped
    json_decref(root);
    forget(&o);
}

/* A directory with a config.json alone, as somebody has who thinks about downloading the rest. */
T_TEST(plan_of_what_is_not_converted)
{
    T_BEGIN;
    const char *dir = scratch_path("unconverted");
    T_EQ(mkdir(dir, 0700), 0);
    size_t n;
    char *config = slurp(MODEL "/config.json", &n), path[160];
    snprintf(path, sizeof path, "%s/config.json", dir);
    spill(path, config, n);
    free(config);
    outcome o = RUN("coli", "", "plan", dir, "--backend", "none", "--experts", "bf16", "--json",
                    "--no-measure");
    EXPECT(o, o.code == 0);
    json_t *root = json_of(&o);
    T_TRUE(json_is_true(json_object_get(root, "is_imagined")));
    T_EQ(json_number_at(root, "expert_bytes"), 3 * 64 * 192 * 2);
    T_TRUE(json_is_null(json_object_get(root, "measured")));
    T_TRUE(json_is_null(json_object_get(root, "expected")));
    json_decref(root);
    forget(&o);
    o = RUN("coli", "", "plan", dir, "--backend", "none", "--json");
    EXPECT(o, o.code == 0);
    root = json_of(&o);
    json_t *expected = json_object_get(root, "expected");
    T_EQ(json_array_size(json_object_get(expected, "tok_s")), 2);
    T_TRUE(json_is_array(json_object_get(json_object_get(root, "measured"), "ram_gb_s")));
    json_decref(root);
    forget(&o);
    o = RUN("coli", "", "plan", dir, "--experts", "int5");
    EXPECT(o, o.code == 2 && has(o.err, "--experts: expected int4"));
    forget(&o);
    o = RUN("coli", "", "plan", MODEL, "--experts", "int8");
    EXPECT(o, o.code == 2 && has(o.err, "is a container, which has its formats"));
    forget(&o);
}

/* What passes a bound of its kind is a bad file, or a bad command: exit code 2, whatever there is room for. */
T_TEST(what_is_too_large_is_a_bad_file)
{
    T_BEGIN;
    enum { N = 40000 };
    const char *item = scratch_path("long.jsonl");
    char *text = malloc(N);
    memset(text, 'x', N);
    for (int i = 11; i < N - 4; i += 2) text[i] = ' ';
    memcpy(text, "{\"text\": \"", 10);
    memcpy(text + N - 3, "\"}\n", 3);
    spill(item, text, N);
    free(text);
    outcome o = RUN("coli", "", "bench", "--model", MODEL, "--quality", item);
    EXPECT(o, o.code == 2 && has(o.err, "long.jsonl: line 1: "));
    EXPECT(o, has(o.err, "the model was made for at most 4096"));
    forget(&o);
    o = RUN("coli", "", "synth", "--layers", "512", "--experts-n", "4096", scratch_path("vast"));
    EXPECT(o, o.code == 2 && has(o.err, "fit a container"));
    forget(&o);
}

T_TEST(plan_refuses_as_run_does)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "plan", "--ctx", "9999", MODEL);
    EXPECT(o, o.code == 2 && has(o.err, "at most 4096"));
    forget(&o);
    o = RUN("coli", "", "plan", "/nonexistent");
    EXPECT(o, o.code == 2 && has(o.err, "/nonexistent"));
    forget(&o);
    o = RUN("coli", "", "plan", MODEL, "--backend", "nosuch");
    EXPECT(o, o.code == 2 && has(o.err, "hint: `coli backend list` shows what there is"));
    forget(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_records_what_replay_reads),
        cmocka_unit_test(chat_records_every_turn),
        cmocka_unit_test(qwen36_records_what_it_makes),
        cmocka_unit_test(run_as_json),
        cmocka_unit_test(plan_says_what_sits_where),
        cmocka_unit_test(plan_warns_when_memory_is_short),
        cmocka_unit_test(plan_of_what_no_machine_holds),
        cmocka_unit_test(run_agrees_with_plan),
        cmocka_unit_test(plan_of_what_is_not_converted),
        cmocka_unit_test(what_is_too_large_is_a_bad_file),
        cmocka_unit_test(plan_refuses_as_run_does),
#ifdef TEST_FAKE
        cmocka_unit_test(run_as_json_with_a_device),
        cmocka_unit_test(bench_tells_of_devices),
#endif
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
