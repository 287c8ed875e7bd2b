/* gguf_model_test.c - GGUF files of the family, written by another implementation, become containers
 * that hold what the files hold: every weight under its own name, in its own order, to the bit.
 * Fixtures: tests/fixtures/gguf/README.md. */
#include "small_tokenizer.h"
#include "world.h"

#include "engines/engine.h"
#include "libcoli/src/model/checkpoint.h"
#include "libcoli/src/model/container.h"
#include "libcoli/src/model/json.h"

#define FIXTURES TEST_FIXTURES "/gguf"

static const char *const files[] = {"tiny-00001-of-00003.gguf", "tiny-mix.gguf", "k.gguf",
                                    "iq.gguf"};
enum { N_FILE = 4 };

/* The named file as a container in these formats, opened. */
static coli__container *convert(const char *file, const char *experts, const char *trunk)
{
    char path[512];
    snprintf(path, sizeof path, FIXTURES "/%s", file);
    char *dir = world_container(path, file, experts, trunk);
    coli__container *c;
    T_OK(coli__container_open(dir, &c));
    free(dir);
    return c;
}

/* -- against the numbers of the package -------------------------------------------------------- */

static uint64_t hash(uint64_t h, const coli__mat *m) // FNV-1a of the f32 bytes
{
    float *row = malloc(m->n_in * sizeof *row);
    for (uint32_t r = 0; r < m->n_out; r++) {
        coli__mat_row(m, r, row);
        const uint8_t *bytes = (const uint8_t *)row;
        for (size_t i = 0; i < m->n_in * sizeof *row; i++)
            h = (h ^ bytes[i]) * UINT64_C(0x100000001B3);
    }
    free(row);
    return h;
}

static uint64_t hash_experts(const coli__ct_experts *x, bool gate, bool up, bool down)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    for (uint32_t e = 0; e < x->n_expert; e++) {
        coli__mat m[3];
        coli__ct_expert(x, e, &m[0], &m[1], &m[2]);
        if (gate) h = hash(h, &m[0]);
        if (up) h = hash(h, &m[1]);
        if (down) h = hash(h, &m[2]);
    }
    return h;
}

static uint64_t hash_named(const coli__container *c, const char *name)
{
    uint32_t layer;
    int n = 0;
    if (sscanf(name, "layers.%u.mlp.experts.%n", &layer, &n) == 1 && n > 0) {
        const coli__ct_experts *x = coli__container_experts(c, layer);
        const char *part = name + n;
        return hash_experts(x, strncmp(part, "gate", 4) == 0, strstr(part, "up") != NULL,
                            strcmp(part, "down_proj") == 0);
    }
    for (uint32_t i = 0; i < coli__container_n_tensor(c); i++) {
        const coli__ct_tensor *t = coli__container_tensor(c, i);
        if (strcmp(t->name, name) == 0) return hash(UINT64_C(0xCBF29CE484222325), &t->mat);
    }
    print_error("the container lacks %s\n", name);
    return 0;
}

T_TEST(every_weight_is_the_package_s)
{
    T_BEGIN;
    json_t *all;
    T_OK(coli__json_read(FIXTURES "/digests.json", 1 << 20, 8, &all));
    T_EQ(json_object_size(all), N_FILE);
    for (int i = 0; i < N_FILE; i++) {
        coli__container *c = convert(files[i], "f32", "f32");
        const char *name;
        json_t *digest, *own = json_object_get(all, files[i]);
        T_GE(json_object_size(own), 30);
        json_object_foreach(own, name, digest)
        {
            const uint64_t expected = strtoull(json_string_value(digest), NULL, 16);
            if (hash_named(c, name) != expected) {
                print_error("%s: %s differs\n", files[i], name);
                fail();
            }
        }
        coli__container_close(c);
    }
    json_decref(all);
}

/* -- against the checkpoint -------------------------------------------------------------------- */

static bool first_four_layers(void *ctx, coli__st_out *tensor)
{
    (void)ctx;
    uint32_t layer;
    return sscanf(tensor->name, "model.layers.%u.", &layer) != 1 || layer < 4;
}

static const char *checkpoint(void)
{
    static char dir[128];
    if (*dir) return dir;
    snprintf(dir, sizeof dir, "%s/four", world_scratch());
    world_checkpoint(TEST_FIXTURES "/qwen36-tiny-a", dir,
                     "s/\"num_hidden_layers\": 8/\"num_hidden_layers\": 4/; "
                     "s/\"layer_types\"/\"all_layer_types\"/",
                     first_four_layers, NULL);
    return dir;
}

static void same_values(const coli__mat *a, const coli__mat *b, const char *name)
{
    T_EQ(a->n_out, b->n_out);
    T_EQ(a->n_in, b->n_in);
    float *x = malloc(2 * a->n_in * sizeof *x), *y = x + a->n_in;
    for (uint32_t r = 0; r < a->n_out; r++) {
        coli__mat_row(a, r, x);
        coli__mat_row(b, r, y);
        if (!strstr(name, "A_log")) {
            T_MEM(x, y, a->n_in * sizeof *x);
            continue;
        }
        // exp and log round once each: half a unit of e^A, relative, and half a unit of A
        for (uint32_t i = 0; i < a->n_in; i++)
            T_FLE(fabs((double)x[i] - (double)y[i]), 0x1p-23 * fmax(1, fabs((double)x[i])));
    }
    free(x);
}

static void same_container(const coli__container *a, const coli__container *b)
{
    T_EQ(coli__container_n_tensor(a), coli__container_n_tensor(b));
    for (uint32_t i = 0; i < coli__container_n_tensor(a); i++) {
        const coli__ct_tensor *x = coli__container_tensor(a, i), *y;
        T_OK(coli__container_find(b, x->name, x->mat.n_out, x->mat.n_in, &y));
        same_values(&x->mat, &y->mat, x->name);
    }
    T_EQ(coli__container_n_expert_layer(a), coli__container_n_expert_layer(b));
    for (uint32_t i = 0; i < coli__container_n_expert_layer(a); i++) {
        const coli__ct_experts *x = coli__container_experts(a, i),
                               *y = coli__container_experts(b, i);
        for (uint32_t e = 0; e < x->n_expert; e++) {
            coli__mat m[3], n[3];
            coli__ct_expert(x, e, &m[0], &m[1], &m[2]);
            coli__ct_expert(y, e, &n[0], &n[1], &n[2]);
            for (int k = 0; k < 3; k++) same_values(&m[k], &n[k], "expert");
        }
    }
}

enum { N_TOK = 40, N_VOCAB = 320 };

/* BF16 and F32 lose nothing: the same container, but for the decay, and the same logits. */
T_TEST(a_file_and_its_checkpoint_are_one_model)
{
    T_BEGIN;
    static const char *const formats[][2] = {{"f32", "f32"}, {"int4", "int8"}};
    static float a[N_TOK * N_VOCAB], b[N_TOK * N_VOCAB];
    for (int i = 0; i < 2; i++) {
        char *dir = world_container(checkpoint(), "four", formats[i][0], formats[i][1]);
        coli__container *theirs = convert(files[0], formats[i][0], formats[i][1]), *ours;
        T_OK(coli__container_open(dir, &ours));
        same_container(ours, theirs);
        world_logits(dir, N_VOCAB, N_TOK, a);
        world_logits(coli__container_dir(theirs), N_VOCAB, N_TOK, b);
        double worst = 0, largest = 0;
        for (int k = 0; k < N_TOK * N_VOCAB; k++) {
            worst = fmax(worst, fabs((double)a[k] - (double)b[k]));
            largest = fmax(largest, fabs((double)a[k]));
        }
        print_message("%s: logits differ by %.2g of %.2g\n", formats[i][0], worst, largest);
        // f32: rounding alone, as between two orders of a sum; int8 activations turn a last bit of
        // the decay into a step of 1/127 of a group's largest number, here and there
        T_FLE(worst, (i == 0 ? 1e-5 : 1e-2) * largest);
        coli__container_close(ours);
        coli__container_close(theirs);
        free(dir);
    }
}

/* A file in several formats, against its own numbers as f32.  Where weights are exact the rounding of
 * activations is left: 1/127 of a group's largest number, about 2.4 deviations, is a step, and a step has
 * a deviation of 0.29; so 0.0055 of each product's size.  Weights that are rounded anew add an error of
 * theirs, e.  Independent errors of n products in a row come to sqrt(n (0.0055^2 + e^2)); n is 4 for
 * a layer, and the head; the bounds are twice that. */
T_TEST(logits_are_those_of_the_file)
{
    T_BEGIN;
    static const struct {
        const char *file, *experts, *trunk; // NULL: nobody asked for a format
        int32_t n_vocab;
        double most;
    } cases[] = {
        {"tiny-mix.gguf", "int8-g32-f16", "int8-g32-f16", 320, 0.064}, // F16: e = 0.0055
        {"tiny-mix.gguf", NULL, NULL, 320, 0.37}, // a product of each layer: e = 0.092
        {"k.gguf", NULL, NULL, 96, 0.23},         // two of each layer: e = 0.08
        {"iq.gguf", "int8-g32-f32", "int8-g32-f32", 96, 0.033},
        {"iq.gguf", NULL, NULL, 96, 0.23}, // as k.gguf
    };
    static float a[N_TOK * N_VOCAB], b[N_TOK * N_VOCAB];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char from[512], to[128];
        snprintf(from, sizeof from, FIXTURES "/%s", cases[i].file);
        snprintf(to, sizeof to, "%s/logits-%zu", world_scratch(), i);
        const coli_convert_opts opts = {
            .struct_size = sizeof opts, .experts = cases[i].experts, .trunk = cases[i].trunk};
        T_OK(coli_convert(from, to, &opts));
        char *exact = world_container(from, cases[i].file, "f32", "f32");
        world_logits(exact, cases[i].n_vocab, N_TOK, a);
        world_logits(to, cases[i].n_vocab, N_TOK, b);
        const double x = world_apart(a, b, cases[i].n_vocab, N_TOK);
        print_message("%s as %s: logits differ by %.2g %%\n", cases[i].file,
                      cases[i].experts ? cases[i].experts : "usual", 100 * x);
        T_FLE(x, cases[i].most);
        free(exact);
    }
}

/* -- grids ------------------------------------------------------------------------------------- */

/* Rows of the packed matrix against the file's.  A group must be the file's to the bit when every code
 * is in range: -8 to 7, or -128 to 127. */
static uint64_t check_grid(const coli__mat *m, const coli__weight *w)
{
    uint64_t n_off = 0;
    float *got = malloc(3 * m->n_in * sizeof *got), *want = got + m->n_in, *scale = want + m->n_in;
    for (uint32_t r = 0; r < m->n_out; r++) {
        coli__mat_row(m, r, got);
        T_OK(coli__weight_rows(w, r, 1, want));
        coli__weight_scales(w, r, 1, scale);
        for (uint32_t g = 0; g < m->n_in; g += 32) {
            bool fits = true, equal = true;
            for (uint32_t i = g; i < g + 32; i++) {
                const float code = scale[g / 32] != 0 ? want[i] / scale[g / 32] : 0;
                fits = fits && code >= (m->fmt.type == COLI_W_I4 ? -8 : -128) &&
                       code <= (m->fmt.type == COLI_W_I4 ? 7 : 127);
                equal = equal && got[i] == want[i];
            }
            T_TRUE(equal || !fits);
            n_off += !equal;
        }
    }
    free(got);
    return n_off;
}

static uint64_t check_grids(const char *file, const char *experts, const char *trunk,
                            uint32_t *n_matrix)
{
    char path[512];
    snprintf(path, sizeof path, FIXTURES "/%s", file);
    coli__checkpoint k;
    T_OK(
        coli__checkpoint_open_gguf(path, coli__engine_gguf, coli__engine_describe, NULL, NULL, &k));
    coli__container *c = convert(file, experts, trunk);
    uint64_t n_off = 0;
    *n_matrix = 0;
    for (uint32_t i = 0; i < k.spec.n_tensor; i++) {
        const coli__tensor_spec *s = &k.spec.tensors[i];
        const coli__ct_tensor *t;
        if (!coli__weight_has_grid(&k.tensors[i])) continue;
        T_OK(coli__container_find(c, s->name, s->n_out, s->n_in, &t));
        n_off += check_grid(&t->mat, &k.tensors[i]);
        ++*n_matrix;
    }
    for (uint32_t i = 0; i < k.spec.n_expert_layer; i++)
        for (uint32_t e = 0; e < k.spec.experts[i].n_expert; e++) {
            coli__mat m[3];
            coli__ct_expert(coli__container_experts(c, i), e, &m[0], &m[1], &m[2]);
            for (int p = 0; p < 3; p++) {
                const coli__weight *w = &k.experts[i][3 * e + (uint32_t)p];
                if (!coli__weight_has_grid(w)) continue;
                n_off += check_grid(&m[p], w);
                ++*n_matrix;
            }
        }
    coli__container_close(c);
    coli__checkpoint_finish(&k);
    return n_off;
}

T_TEST(grids_are_kept)
{
    T_BEGIN;
    uint32_t n;
    static const char *const experts[] = {"int8-g32-f16", "int4-g32-f16", "int4-g32-f32"};
    for (int i = 0; i < 3; i++) {
        T_EQ(check_grids("tiny-mix.gguf", experts[i], "int8-g32-f16", &n),
             0); // Q8_0 and Q4_0, all of it
        T_GE(n, 4 * 16 * 2 + 10);
    }
    check_grids("k.gguf", "int4-g32-f32", "int8-g32-f16",
                &n); // negative scales, and codes at their ends
    T_GE(n, 10);
    check_grids("iq.gguf", "int4-g32-f16", "int8-g32-f32", &n); // all of it: codes up to 62
    T_GE(n, 5);
}

/* -- what a user is told, and gets ------------------------------------------------------------- */

static void collect(void *user, const char *line)
{
    T_OK(coli__buf_printf(user, "%s\n", line));
}

/* Whatever the file holds, the recipe `exact` finds a format for it. */
T_TEST(exactly_as_it_is)
{
    T_BEGIN;
    static const char *const names[] = {"tiny-mix", "k", "iq"};
    for (int i = 0; i < 3; i++) {
        coli__buf lines = {0};
        char in[200], out[128];
        snprintf(in, sizeof in, "%s/%s.gguf", FIXTURES, names[i]);
        snprintf(out, sizeof out, "%s/exact-%s", world_scratch(), names[i]);
        const coli_convert_opts opts = {
            .struct_size = sizeof opts, .note = collect, .user = &lines, .recipe = "exact"};
        T_OK(coli_convert(in, out, &opts));
        if (strstr(lines.data, "error") || !strstr(lines.data, "exactly"))
            fail_msg("%s: %s", names[i], lines.data);
        coli__buf_finish(&lines);
    }
}

T_TEST(the_kinds_are_accounted_for)
{
    T_BEGIN;
    coli__buf lines = {0};
    char out[128];
    snprintf(out, sizeof out, "%s/default", world_scratch());
    const coli_convert_opts opts = {.struct_size = sizeof opts, .note = collect, .user = &lines};
    T_OK(coli_convert(FIXTURES "/tiny-mix.gguf", out, &opts));
    static const char *const expected[] = {
        "F32 to f32: 0.007596 M weights in 31 matrices, exactly\n",
        "Q8_0 to int8-g32-f16: 0.1618 M weights in 20 matrices, exactly\n",
        "Q4_0 to int4-g32-f16: 0.3932 M weights in 128 matrices, exactly\n",
        "F16 to int4-g64-f16: 0.1966 M weights in 64 matrices, error 8.6 %",
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        if (!strstr(lines.data, expected[i])) {
            print_error("%s is not in\n%s", expected[i], lines.data);
            fail();
        }
    coli__buf_finish(&lines);
    T_OK(coli_verify(out, NULL, NULL));
}

/* The tokenizer is the one that the tests know, spelled by another hand. */
T_TEST(the_tokenizer_is_rebuilt)
{
    T_BEGIN;
    static const char text[] = "hello <think>! hello<|end|>Na\xC3\xAFve nd 42 'LL\n\n  <think>x";
    coli__buf small = {0};
    json_t *root;
    coli__tok *ours, *theirs;
    char *dir = world_container(FIXTURES "/tiny-mix.gguf", "tiny-mix.gguf", "f32", "f32");
    T_OK(small_tokenizer_text(&small));
    T_OK(coli__json_parse("small", small.data, small.n_bytes, 32, &root));
    T_OK(coli__tok_from_json("small", root, NULL, NULL, &ours));
    char path[256];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    T_OK(coli__tok_open(path, NULL, &theirs));
    T_EQ(coli__tok_n_id(theirs), coli__tok_n_id(ours));
    int32_t *a, *b;
    size_t n_a, n_b;
    T_OK(coli__tok_encode(ours, text, strlen(text), NULL, 0, &a, &n_a));
    T_OK(coli__tok_encode(theirs, text, strlen(text), NULL, 0, &b, &n_b));
    T_EQ(n_a, n_b);
    T_MEM(a, b, n_a * sizeof *a);
    T_TRUE(coli__tok_is_special(theirs, 261) && !coli__tok_is_special(theirs, 263));
    coli__free(a);
    coli__free(b);
    coli__tok_close(ours);
    coli__tok_close(theirs);
    coli__buf_finish(&small);

    json_t *generation;
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    T_OK(coli__json_read(path, 1 << 20, 8, &generation));
    T_EQ(json_integer_value(json_array_get(json_object_get(generation, "eos_token_id"), 0)), 261);
    json_decref(generation);
    json_decref(root);
    free(dir);
}

/* -- wrong files ------------------------------------------------------------------------------- */

/* A copy of a fixture in which the first occurrence of `from` is replaced by as many bytes. */
static const char *altered(const char *file, const char *from, const char *to)
{
    static char path[128];
    char source[512];
    coli__buf all;
    T_EQ(strlen(from), strlen(to));
    snprintf(source, sizeof source, FIXTURES "/%s", file);
    T_OK(coli__file_read(source, 1 << 24, &all));
    bool found = false;
    for (size_t i = 0; i + strlen(from) < all.n_bytes && !found; i++)
        if ((found = memcmp(all.data + i, from, strlen(from)) == 0))
            memcpy(all.data + i, to, strlen(to));
    T_TRUE(found);
    snprintf(path, sizeof path, "%s/altered.gguf", world_scratch());
    T_OK(coli__file_replace(path, all.data, all.n_bytes));
    coli__buf_finish(&all);
    return path;
}

static void refused(const char *file, const char *from, const char *to, coli_status status,
                    const char *what)
{
    char out[128];
    snprintf(out, sizeof out, "%s/refused", world_scratch());
    T_FAILS(coli_convert(altered(file, from, to), out, NULL), status, what);
    T_TRUE(!coli__path_exists(out));
    snprintf(out, sizeof out, "%s/refused.partial", world_scratch());
    T_TRUE(!coli__path_exists(out));
}

T_TEST(what_is_wrong_is_named)
{
    T_BEGIN;
    refused("tiny-mix.gguf", "qwen35moe", "qwen99moe", COLI_E_UNSUPPORTED, "\"qwen99moe\"");
    refused("tiny-mix.gguf", "blk.1.ssm_a", "blk.1.ssm_x", COLI_E_FORMAT,
            "tensor blk.1.ssm_a: is missing");
    refused("tiny-mix.gguf", "blk.0.ffn_up_exps", "blk.0.ffn_xx_exps", COLI_E_FORMAT,
            "tensor blk.0.ffn_up_exps.weight: is missing");
    refused("tiny-mix.gguf", "expert_used_count", "expert_lost_count", COLI_E_FORMAT,
            "qwen35moe.expert_used_count: is missing");
    refused("tiny-mix.gguf", "rope.freq_base", "rope.freq_case", COLI_E_FORMAT,
            "rope.freq_base: is missing");
    // it would be left out, and the model be another
    refused("iq.gguf", "blk.1.attn_v.scale", "blk.1.attn_x.scale", COLI_E_UNSUPPORTED,
            "tensor blk.1.attn_x.scale: is a scale of weights");
}

/* Cut anywhere, through the whole of a conversion: one line about the file, and nothing left behind.
 * (That the reader does not look behind the end: unit.gguf_test, in memory of just that size.)  Where
 * data has begun one cut is like another. */
T_TEST(a_file_may_end_anywhere)
{
    T_BEGIN;
    coli__buf all;
    char path[128], out[128];
    T_OK(coli__file_read(TEST_FIXTURES "/../fuzz/corpus/gguf/model", 1 << 20, &all));
    snprintf(path, sizeof path, "%s/cut.gguf", world_scratch());
    snprintf(out, sizeof out, "%s/cut", world_scratch());
    T_GE(all.n_bytes, 8000);
    for (size_t n = 0; n < all.n_bytes - 32; n += n < 5000 ? 1 : 37) { // 32: padding
        FILE *file = fopen(path, "wb");
        T_TRUE(file && fwrite(all.data, 1, n, file) == n && fclose(file) == 0);
        const coli_status status = coli_convert(path, out, NULL);
        if (status != COLI_E_FORMAT) print_error("cut to %zu bytes\n", n);
        T_EQ(status, COLI_E_FORMAT);
        T_TRUE(strstr(coli_error_message(), "cut.gguf: ") && !strchr(coli_error_message(), '\n'));
        T_TRUE(!coli__path_exists(out));
    }
    T_OK(coli__file_replace(path, all.data, all.n_bytes));
    T_OK(coli_convert(path, out, NULL));
    coli__buf_finish(&all);
}

T_TEST(memory_may_run_out)
{
    T_BEGIN;
    char path[512];
    snprintf(path, sizeof path, FIXTURES "/%s", files[0]);
    coli_status status = COLI_E_NOMEM;
    for (uint64_t nth = 1; status != COLI_OK; nth++) {
        coli__checkpoint k;
        coli__alloc_fail_at(nth);
        status = coli__checkpoint_open_gguf(path, coli__engine_gguf, coli__engine_describe, NULL,
                                            NULL, &k);
        coli__alloc_fail_at(0);
        T_TRUE(status == COLI_OK || status == COLI_E_NOMEM);
        T_LE(nth, 1000);
        if (status == COLI_OK) coli__checkpoint_finish(&k);
    }
}

/* The same for a whole conversion: an error and nothing left behind, or a container. */
T_TEST(memory_may_run_out_while_converting)
{
    T_BEGIN;
    char out[128], partial[160];
    snprintf(out, sizeof out, "%s/scarce", world_scratch());
    snprintf(partial, sizeof partial, "%s.partial", out);
    const coli_convert_opts opts = {.struct_size = sizeof opts, .n_threads = 1};
    coli_status status = COLI_E_NOMEM;
    for (uint64_t nth = 1; status != COLI_OK; nth++) {
        coli__alloc_fail_at(nth);
        status = coli_convert(FIXTURES "/tiny-mix.gguf", out, &opts);
        coli__alloc_fail_at(0);
        T_TRUE(status == COLI_OK || status == COLI_E_NOMEM);
        T_TRUE(coli__path_exists(out) == (status == COLI_OK) && !coli__path_exists(partial));
        T_LE(nth, 5000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_is_the_package_s),
        cmocka_unit_test(a_file_and_its_checkpoint_are_one_model),
        cmocka_unit_test(logits_are_those_of_the_file),
        cmocka_unit_test(grids_are_kept),
        cmocka_unit_test(exactly_as_it_is),
        cmocka_unit_test(the_kinds_are_accounted_for),
        cmocka_unit_test(the_tokenizer_is_rebuilt),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(a_file_may_end_anywhere),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(memory_may_run_out_while_converting),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
