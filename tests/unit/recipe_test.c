/* recipe_test.c - recipes: what lines match, which one decides, what is refused and where. */
#include "micro.h"

#include "libcoli/src/model/recipe.h"

static coli__recipe *parse(const char *text)
{
    coli__recipe *r;
    T_OK(coli__recipe_parse("r.txt", text, strlen(text), &r));
    return r;
}

static void bad(const char *text, const char *message)
{
    coli__recipe *r;
    T_FAILS(coli__recipe_parse("r.txt", text, strlen(text), &r), COLI_E_FORMAT, message);
    T_TRUE(r == NULL);
}

static coli__model_spec spec_of(const char *config)
{
    json_t *root;
    const char *engine;
    coli__model_spec spec;
    T_OK(coli__json_parse("config", config, strlen(config), 64, &root));
    T_OK(coli__engine_describe(root, &engine, &spec));
    json_decref(root);
    return spec;
}

/* What the recipe gives to a tensor of the micro model, or to "experts.PART" of a layer: a format's
 * name, "source", or "-". */
static const char *given(const coli__recipe *r, const char *name, uint32_t layer)
{
    static char text[32];
    coli__model_spec spec = spec_of(MICRO_CONFIG(4, ""));
    char kind[128];
    coli__recipe_item item = {.kind = NULL};
    for (uint32_t i = 0; i < spec.n_tensor; i++)
        if (strcmp(spec.tensors[i].name, name) == 0)
            item = coli__recipe_tensor(&spec, &spec.tensors[i], kind);
    static const char *const parts[] = {"experts.gate", "experts.up", "experts.down"};
    for (uint32_t part = 0; part < 3; part++)
        if (strcmp(parts[part], name) == 0)
            item = coli__recipe_expert(&spec.experts[layer], part, kind);
    T_TRUE(item.kind != NULL);
    coli__recipe_choice choice;
    if (!coli__recipe_find(r, &item, &choice))
        strcpy(text, "-");
    else if (choice.is_source)
        strcpy(text, "source");
    else
        coli__wfmt_name(choice.fmt, text);
    coli__model_spec_finish(&spec);
    return text;
}

T_TEST(selectors)
{
    T_BEGIN;
    coli__recipe *r = parse("# all of them\n"
                            "\n"
                            "experts int4\n"
                            "  trunk\tint8   # and what stands behind\r\n"
                            "embed int4-g32-f16\n"
                            "head bf16\n"
                            "router f32\n"
                            "linear_attn.* int8-row-f32\n"
                            "mlp.shared_expert.down_proj source");
    T_STR(given(r, "experts.up", 1), "int4-g64-f16");
    T_STR(given(r, "embed_tokens.weight", 0), "int4-g32-f16");
    T_STR(given(r, "lm_head.weight", 0), "bf16");
    T_STR(given(r, "layers.1.self_attn.k_proj.weight", 0), "int8-g64-f16");
    T_STR(given(r, "layers.0.linear_attn.out_proj.weight", 0), "int8-row-f32");
    T_STR(given(r, "layers.0.linear_attn.in_proj_a.weight", 0), "f32"); // by "router", not by the *
    T_STR(given(r, "layers.0.linear_attn.A_log", 0), "-");              // a vector
    T_STR(given(r, "layers.1.mlp.gate.weight", 0), "f32");
    T_STR(given(r, "layers.1.mlp.shared_expert.down_proj.weight", 0), "source");
    T_STR(given(r, "norm.weight", 0), "-");
    coli__recipe_close(r);
}

T_TEST(the_last_line_that_matches_decides)
{
    T_BEGIN;
    coli__recipe *r = parse("experts.down int8 layers 1\n"
                            "experts int4 layers 0,5-7\n"
                            "trunk int8\n"
                            "self_attn.q_proj bf16\n"
                            "self_attn.q_proj int4 layers 0-0\n");
    T_STR(given(r, "experts.down", 0), "int4-g64-f16");
    T_STR(given(r, "experts.down", 1), "int8-g64-f16");
    T_STR(given(r, "experts.gate", 1), "-");
    T_STR(given(r, "layers.1.self_attn.q_proj.weight", 0), "bf16");
    T_STR(given(r, "embed_tokens.weight", 0), "int8-g64-f16");
    T_OK(coli__recipe_add(r, "trunk", "trunk", "int4"));
    T_OK(coli__recipe_add(r, "experts", "experts", "f32"));
    T_STR(given(r, "layers.1.self_attn.q_proj.weight", 0), "int4-g64-f16");
    T_STR(given(r, "experts.down", 1), "f32");
    coli__recipe_close(r);

    r = parse("trunk int8 layers 0-1\n"); // the embedding is in no layer
    T_STR(given(r, "embed_tokens.weight", 0), "-");
    T_STR(given(r, "layers.1.self_attn.q_proj.weight", 0), "int8-g64-f16");
    coli__recipe_close(r);
}

T_TEST(what_is_refused)
{
    T_BEGIN;
    bad("experts", "r.txt: line 1: expected a format after \"experts\"");
    bad("experts int4\n\n# x\ntrunk int5\n", "r.txt: line 4: format \"int5\": expected int4, int8");
    bad("experts int4 layer 3", "line 1: expected the end of the line or \"layers LIST\"");
    bad("experts int4 layers", "line 1: expected the end of the line or \"layers LIST\"");
    bad("experts int4 layers 3-", "line 1: layers \"3-\": expected a list like 0-3,38");
    bad("experts int4 layers 3-1", "line 1: layers \"3-1\"");
    bad("experts int4 layers 1,,2", "line 1: layers \"1,,2\"");
    bad("experts int4 layers 1 2", "line 1: expected the end of the line after the list");
    bad("experts int4 layers 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", "more than 16 ranges");
    char text[2000];
    memset(text, 'x', sizeof text);
    strcpy(text + 1900, " int4");
    bad(text, "line 1: no tensor has a name like that");
    coli__recipe *r;
    T_FAILS(coli__recipe_parse("r", "a\0b int4", 8, &r), COLI_E_FORMAT, "r: line 1");
    coli__buf many = {0};
    for (int i = 0; i <= COLI__RECIPE_MAX_LINES; i++) T_OK(coli__buf_str(&many, "trunk int8\n"));
    T_FAILS(coli__recipe_parse("r", many.data, many.n_bytes, &r), COLI_E_FORMAT,
            "line 1025: more than 1024 lines");
    coli__buf_finish(&many);
    T_FAILS(coli__recipe_open("/nowhere/recipe", &r), COLI_E_NOTFOUND, "expected small, balanced");
}

static void check(const char *text, const char *message)
{
    coli__model_spec spec = spec_of(MICRO_CONFIG(4, ""));
    coli__recipe *r = parse(text);
    if (message)
        T_FAILS(coli__recipe_check(r, &spec), COLI_E_FORMAT, message);
    else
        T_OK(coli__recipe_check(r, &spec));
    coli__recipe_close(r);
    coli__model_spec_finish(&spec);
}

T_TEST(checked_against_the_model)
{
    T_BEGIN;
    check("experts int4\ntrunk int8\nrouter source\n", NULL);
    check("trunk int8\n\nself_attn.x_proj int8\n",
          "r.txt: line 3: \"self_attn.x_proj\" is no matrix");
    check("self_attn.q_proj int8 layers 0\n", "is no matrix of this model in these layers");
    check("experts int8 layers 1\n", NULL);
    check("experts int8 layers 0,1-2\n", "r.txt: line 1: layer 2: expected at most 1");
    check("\xef\xbb\xbf"
          "experts int8\n",
          NULL); // an editor's mark is no part of the text
    check("experts int8\n\xef\xbb\xbftrunk int8\n", "line 2: ");
    check("experts.side int4\n", "line 1: \"experts.side\"");
    check("router int8\n", "line 1: linear_attn.in_proj_b decides what is computed: expected f32");
    check("mlp.gate int4\n", "line 1: mlp.gate decides");
    check("norm int4\n", "\"norm\" is no matrix"); // vectors are f32
    check("* int4\n", NULL);
}

T_TEST(presets)
{
    T_BEGIN;
    static const struct {
        const char *name, *expert, *embed, *head, *attention;
    } cases[] = {
        {"small", "int4-g64-f16", "int4-g64-f16", "int4-g64-f16", "int8-g64-f16"},
        {"balanced", "int4-g64-f16", "int8-g64-f16", "int8-g64-f16", "int8-g64-f16"},
        {"exact", "source", "source", "source", "source"},
    };
    for (int i = 0; i < 3; i++) {
        coli__recipe *r;
        T_OK(coli__recipe_open(cases[i].name, &r));
        T_STR(given(r, "experts.down", 0), cases[i].expert);
        T_STR(given(r, "embed_tokens.weight", 0), cases[i].embed);
        T_STR(given(r, "lm_head.weight", 0), cases[i].head);
        T_STR(given(r, "layers.1.self_attn.o_proj.weight", 0), cases[i].attention);
        T_STR(given(r, "layers.1.mlp.gate.weight", 0), "-");
        coli__recipe_close(r);
    }
}

/* Whatever comes in: an answer, or a refusal. */
T_PROP(noise, 2000)
{
    static const char *const words[] = {"experts", "trunk", "int4",   "int8",   "layers", "0-3",
                                        ",",       "*",     "source", "#",      "\n",     " ",
                                        "\t",      "head",  "bf16",   "9999999"};
    char text[400] = "";
    for (uint32_t n = t_below(&rng, 20); n > 0; n--) {
        strcat(text, words[t_below(&rng, 16)]);
        if (t_below(&rng, 3)) strcat(text, " ");
    }
    coli__recipe *r;
    if (coli__recipe_parse("noise", text, strlen(text), &r) == COLI_OK) coli__recipe_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selectors),       cmocka_unit_test(the_last_line_that_matches_decides),
        cmocka_unit_test(what_is_refused), cmocka_unit_test(checked_against_the_model),
        cmocka_unit_test(presets),         cmocka_unit_test(noise),
    };
    return cmocka_run_group_tests(tests, micro_setup, micro_teardown);
}
