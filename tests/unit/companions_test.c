/* companions_test.c - the small files beside the weights: bad ones are refused before a conversion
 * starts, by verify, and when the model is opened, each by name. */
#include "world.h"

#include "libcoli/src/run/companions.h"

static const char demo[] = TEST_MODELS "/hummingbird";

static void put(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    T_TRUE(f != NULL);
    fputs(text, f);
    T_EQ(fclose(f), 0);
}

static char *copy_of_demo(const char *name)
{
    char *dir = world_path(world_scratch(), name), command[1024];
    snprintf(command, sizeof command, "cp -r %s %s", demo, dir);
    T_EQ(system(command), 0);
    return dir;
}

static const struct {
    const char *text, *message;
} bad_generation[] = {
    {"{", "generation_config.json"},
    {"[]", "not a JSON object"},
    {"{\"top_p\": 0}", "above 0"},
    {"{\"temperature\": \"hot\"}", "temperature: expected a number"},
    {"{\"eos_token_id\": [2, 3456]}", "eos_token_id: expected ids below 3456"},
    {"{\"eos_token_id\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}", "at most 16 ids"},
};

T_TEST(bad_generation_configs)
{
    T_BEGIN;
    char *dir = copy_of_demo("generation");
    for (size_t i = 0; i < sizeof bad_generation / sizeof bad_generation[0]; i++) {
        put(dir, "generation_config.json", bad_generation[i].text);
        coli_model *m;
        T_FAILS(coli_model_open(dir, NULL, &m), COLI_E_FORMAT, bad_generation[i].message);
        T_TRUE(strstr(coli_error_message(), "generation_config.json") != NULL);
        T_FAILS(coli_verify(dir, NULL, NULL), COLI_E_FORMAT, bad_generation[i].message);
    }
    put(dir, "generation_config.json", "{\"temperature\": 0.5}"); // edited, and fine
    T_OK(coli_verify(dir, NULL, NULL));
    free(dir);
}

T_TEST(convert_looks_before_it_starts)
{
    T_BEGIN;
    char *src = world_path(world_scratch(), "checkpoint"),
         *out = world_path(world_scratch(), "never");
    char command[1024];
    snprintf(command, sizeof command, "cp -r %s/qwen36-tiny-a %s", TEST_FIXTURES, src);
    T_EQ(system(command), 0);
    put(src, "tokenizer.json", "{}");
    T_FAILS(coli_convert(src, out, NULL), COLI_E_FORMAT, "tokenizer.json");
    T_TRUE(access(out, F_OK) != 0);
    snprintf(command, sizeof command, "rm %s/tokenizer.json", src);
    T_EQ(system(command), 0);
    put(src, "generation_config.json", "{\"top_k\": -1}");
    T_FAILS(coli_convert(src, out, NULL), COLI_E_FORMAT, "top_k: expected 0");
    T_TRUE(access(out, F_OK) != 0);
    free(src);
    free(out);
}

static coli__companions companions_of(const char *dir, const char *config, uint32_t n_vocab)
{
    coli__companions c;
    json_t *json = json_loads(config, 0, NULL);
    T_OK(coli__companions_read(dir, json, n_vocab, &c));
    json_decref(json);
    return c;
}

T_TEST(the_end_of_a_turn)
{
    T_BEGIN;
    const char *empty = world_scratch(); // neither tokenizer nor generation settings
    coli__companions c = companions_of(empty, "{\"eos_token_id\": 7}", 100);
    T_EQ(c.n_stop_id, 1);
    T_EQ(c.stop_ids[0], 7);
    T_TRUE(c.tok == NULL);
    T_EQ(c.think_open_id, -1);
    c = companions_of(empty, "{\"eos_token_id\": 7, \"text_config\": {\"eos_token_id\": [8, 9]}}",
                      100);
    T_EQ(c.n_stop_id, 2); // a wrapped model's own
    T_EQ(c.stop_ids[1], 9);
    c = companions_of(empty, "{\"text_config\": {\"eos_token_id\": null}}", 100);
    T_EQ(c.n_stop_id, 0);
    c = companions_of(demo, "{}", 3456);
    T_EQ(c.n_stop_id, 2);
    T_TRUE(c.tok != NULL && c.think_open_id >= 0 && c.think_close_id >= 0);
    T_TRUE(c.sampling.temperature == 0.7f && c.sampling.top_p == 0.8f && c.sampling.top_k == 20);
    coli__companions_finish(&c);
}

T_TEST(tensors_of_any_rank_are_written)
{
    T_BEGIN;
    char *path = world_path(world_scratch(), "t.safetensors");
    const float x[] = {1.5f, 2};
    const uint64_t two = 2;
    coli_tensor t[] = {{"scalar", "F32", NULL, 0, x}, {"pair", "F32", &two, 1, x}};
    T_OK(coli_write_safetensors(path, t, 2));
    coli__st *st;
    T_OK(coli__st_open(path, &st));
    T_EQ(coli__st_find(st, "scalar")->n_elem, 1);
    T_EQ(coli__st_find(st, "pair")->n_elem, 2);
    coli__st_close(st);
    t[1].name = NULL;
    T_FAILS(coli_write_safetensors(path, t, 2), COLI_E_INVALID, "tensor 1: a pointer is NULL");
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_generation_configs), cmocka_unit_test(convert_looks_before_it_starts),
        cmocka_unit_test(the_end_of_a_turn), cmocka_unit_test(tensors_of_any_rank_are_written)};
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
