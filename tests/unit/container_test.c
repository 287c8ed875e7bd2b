/* container_test.c - what a container holds, byte by byte, and what its reader refuses. */
#include <unistd.h>
#include <xxhash.h>

#include "micro.h"

/* -- a model.coli in memory that tests may change
 * ---------------------------------------------------- */

typedef struct image {
    uint8_t *data; // 64-byte aligned, as a mapping is
    size_t n;
} image;

static image image_of(const void *bytes, size_t n)
{
    image i = {aligned_alloc(64, (n + 63) / 64 * 64 + 64), n};
    memcpy(i.data, bytes, n);
    return i;
}

static image image_read(const char *dir)
{
    char path[600];
    snprintf(path, sizeof path, "%s/model.coli", dir);
    coli__buf text = micro_read(path);
    const image i = image_of(text.data, text.n_bytes);
    coli__buf_finish(&text);
    return i;
}

static uint64_t head_of(const image *i)
{
    uint64_t head;
    memcpy(&head, i->data + 24, 8);
    return head;
}

/* Put the checksum of the head right again, so that what stands behind it is looked at. */
static void seal(const image *i)
{
    XXH128_canonical_t sum;
    const uint64_t n = head_of(i) - 16;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(i->data, n));
    memcpy(i->data + n, sum.digest, 16);
}

static coli_status parse(const image *i)
{
    coli__ct_table table;
    const coli_status status = coli__ct_parse("m", i->data, i->n, &table);
    if (status != COLI_OK) T_TRUE(table.entries == NULL && table.layers == NULL);
    coli__ct_table_finish(&table);
    return status;
}

/* Replace `from` in the table by `to`, adjust its length, seal. */
static image edited(const image *original, const char *from, const char *to)
{
    image i = image_of(original->data, original->n);
    char *text = (char *)i.data + 40, *at = strstr(text, from);
    if (!at) print_error("no %s in the table\n", from);
    T_TRUE(at != NULL);
    uint64_t n_table;
    memcpy(&n_table, i.data + 16, 8);
    const size_t n_from = strlen(from), n_to = strlen(to),
                 n_tail = n_table - (size_t)(at - text) - n_from;
    T_LE(40 + n_table + n_to + 16, head_of(&i) + n_from);
    memmove(at + n_to, at + n_from, n_tail);
    memcpy(at, to, n_to);
    const uint64_t n_new = n_table + n_to - n_from;
    if (n_new < n_table) memset(text + n_new, 0, n_table - n_new);
    memcpy(i.data + 16, &n_new, 8);
    seal(&i);
    return i;
}

static image micro_image(void)
{
    return image_read(micro_container("base", "int4", "int4"));
}

#define EDIT_FAILS(original, from, to, message)                                                    \
    do {                                                                                           \
        const image edit_ = edited((original), (from), (to));                                      \
        T_FAILS(parse(&edit_), COLI_E_FORMAT, (message));                                          \
        free(edit_.data);                                                                          \
    } while (0)

/* -- the format, as docs/formats/container.md has it
 * ------------------------------------------------- */

T_TEST(the_model_is_small_enough_to_try_every_byte)
{
    T_BEGIN;
    const image i = micro_image();
    T_LE(i.n, 64 << 10);
    T_OK(parse(&i));
    free(i.data);
}

T_TEST(header_bytes)
{
    T_BEGIN;
    const image i = micro_image();
    T_MEM(i.data, ((const uint8_t[]){0x89, 'C', 'O', 'L', 13, 10, 26, 10, 1, 0, 0, 0, 0, 0, 0, 0}),
          16);
    uint64_t n_file;
    memcpy(&n_file, i.data + 32, 8);
    T_EQ(n_file, i.n);
    T_EQ(head_of(&i) % 4096, 0);
    T_EQ(i.data[40], '{');
    free(i.data);
}

/* The worked example: 2 x 5 weights as int4 in a group of 32 with f32 scales. */
T_TEST(the_example_panel)
{
    T_BEGIN;
    static const float w[2 * 5] = {-7, -6, -5, -4, 7, 1, 2, 3, 0.5f, -3.5f};
    uint8_t out[320];
    uint64_t bytes, panel;
    const coli__wfmt fmt = micro_format("int4-g32-f32");
    T_TRUE(coli__mat_bytes(fmt, 2, 5, &bytes, &panel));
    T_EQ(bytes, 320);
    T_OK(coli__mat_pack_panel(fmt, w, 2, 5, 5, 0, out));
    const uint8_t scales[12] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x3f}; // 1, 0.5, 0
    T_MEM(out, scales, 12);
    const uint8_t codes[12] = {0xf1, 0x82, 0x83, 0x84, 0x1a, 0x8c,
                               0x8e, 0x89, 0x88, 0x88, 0x88, 0x88};
    T_MEM(out + 64, codes, 12);
    for (int i = 64 + 12; i < 320; i++) T_EQ(out[i], 0x88);
}

/* The identity is the checksum of a text that anybody can write. */
T_TEST(identity)
{
    T_BEGIN;
    coli__container *c;
    T_OK(coli__container_open(micro_container("base", "int4", "int4"), &c));
    const image i = micro_image();
    coli__ct_table t;
    T_OK(coli__ct_parse("m", i.data, i.n, &t));
    coli__buf text = {0};
    T_OK(coli__buf_printf(&text, "engine qwen36\nconfig %s\n", t.files[CT_CONFIG].hex));
    for (uint32_t k = 0; k < t.n_entry; k++) {
        char format[32];
        const coli__mat *m = &t.entries[k].tensor.mat;
        coli__wfmt_name(m->fmt, format);
        T_OK(coli__buf_printf(&text, "tensor %s %s %u %u %d %s\n", t.entries[k].tensor.name, format,
                              m->n_out, m->n_in, m->scale_exp, t.entries[k].digest.hex));
    }
    for (uint32_t k = 0; k < t.n_layer; k++) {
        T_OK(coli__buf_printf(&text, "experts %u 4 32 24 int4-g64-f16 int4-g64-f16 int4-g64-f16\n",
                              k));
        for (uint32_t e = 0; e < 4; e++) {
            const int32_t *exp = t.layers[k].scale_exp + 3 * e;
            T_OK(coli__buf_printf(&text, "expert %u %d %d %d %s\n", e, exp[0], exp[1], exp[2],
                                  t.layers[k].digests[e].hex));
        }
    }
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(text.data, text.n_bytes));
    char hex[33];
    for (int k = 0; k < 16; k++) sprintf(hex + 2 * k, "%02x", sum.digest[k]);
    T_STR(coli__container_identity(c), hex);
    coli__buf_finish(&text);
    coli__ct_table_finish(&t);
    free(i.data);
    coli__container_close(c);
}

T_TEST(look_up)
{
    T_BEGIN;
    const char *dir = micro_container("base", "int4", "int4");
    coli__container *c;
    T_OK(coli__container_open(dir, &c));
    T_STR(coli__container_dir(c), dir);
    T_STR(coli__container_engine(c), "qwen36");
    T_STR(coli__container_template(c), "3.6");
    T_EQ(json_integer_value(json_object_get(coli__container_config(c), "hidden_size")), 32);
    const image whole = micro_image();
    coli__ct_table table;
    T_OK(coli__ct_parse("m", whole.data, whole.n, &table));
    uint64_t sum = 0;
    for (uint32_t k = 0; k < table.n_entry; k++) {
        const coli__ct_tensor *t = &table.entries[k].tensor, *found;
        T_OK(coli__container_find(c, t->name, t->mat.n_out, t->mat.n_in, &found));
        T_STR(found->name, t->name);
        T_MEM(found->mat.data, t->mat.data, t->n_bytes);
        sum += t->n_bytes;
    }
    coli__ct_table_finish(&table);
    free(whole.data);
    T_EQ(coli__container_n_expert_layer(c), 2);
    for (uint32_t i = 0; i < 2; i++) {
        const coli__ct_experts *x = coli__container_experts(c, i);
        T_EQ((uintptr_t)x->data % 4096, 0);
        T_EQ(x->block_bytes % 64, 0);
        sum += 4 * x->block_bytes;
        coli__mat gate, up, down;
        coli__ct_expert(x, 3, &gate, &up, &down);
        T_TRUE(gate.data == x->data + 3 * x->block_bytes);
        T_TRUE(up.data == gate.data + x->up_offset && down.data == gate.data + x->down_offset);
        T_EQ(down.scale_exp, x->scale_exp[11]);
    }
    T_EQ(coli__container_weight_bytes(c), sum);
    const coli__ct_tensor *t;
    T_FAILS(coli__container_find(c, "nobody", 1, 1, &t), COLI_E_FORMAT,
            "tensor nobody: is missing");
    T_TRUE(t == NULL);
    T_FAILS(coli__container_find(c, "norm.weight", 1, 33, &t), COLI_E_FORMAT,
            "expected 1 x 33, found 1 x 32");
    coli__container_close(c);
    coli__container_close(NULL);
}

/* -- damage
 * ------------------------------------------------------------------------------------------ */

/* In place; the_parser_stays_inside looks for reads past the end. */
T_TEST(every_truncation_is_refused)
{
    T_BEGIN;
    const image whole = micro_image();
    for (size_t n = 0; n < whole.n; n++) {
        const image cut = {whole.data, n};
        if (parse(&cut) != COLI_E_FORMAT) fail_msg("%zu bytes", n);
    }
    free(whole.data);
}

/* Heads of every length, each in a buffer that ends exactly behind it. */
T_TEST(the_parser_stays_inside)
{
    T_BEGIN;
    const image whole = micro_image();
    for (size_t n = 0; n < head_of(&whole) + 64; n += n < 64 ? 1 : 63) {
        uint8_t *exact = malloc(n ? n : 1);
        memcpy(exact, whole.data, n);
        const image cut = {exact, n};
        T_EQ(parse(&cut), COLI_E_FORMAT);
        if (n >= 40) { // and one that claims to be that long
            const uint64_t claim = n;
            memcpy(exact + 32, &claim, 8);
            T_EQ(parse(&cut), COLI_E_FORMAT);
        }
        free(exact);
    }
    free(whole.data);
}

/* The model that is shipped, cut where a tensor or expert layer begins or ends and one byte beside,
 * with a header that claims the shorter length. */
T_TEST(cut_at_every_boundary)
{
    T_BEGIN;
    image i = image_read(TEST_MODELS "/hummingbird");
    coli__ct_table t;
    T_OK(coli__ct_parse("m", i.data, i.n, &t));
    const uint32_t n_piece = t.n_entry + t.n_layer;
    const uint64_t whole = i.n;
    for (uint32_t k = 0; k < 2 * n_piece; k++)
        for (int beside = -1; beside <= 1; beside++) {
            const uint32_t p = k / 2;
            const coli__ct_layer *l = p < t.n_entry ? NULL : &t.layers[p - t.n_entry];
            uint64_t cut = l ? l->offset : t.entries[p].offset;
            if (k % 2)
                cut +=
                    l ? l->experts.block_bytes * l->experts.n_expert : t.entries[p].tensor.n_bytes;
            cut += (uint64_t)(int64_t)beside;
            if (cut >= whole) continue;
            i.n = cut;
            T_FAILS(parse(&i), COLI_E_FORMAT, "expected a file of");
            memcpy(i.data + 32, &cut, 8);
            if (cut >= head_of(&i)) seal(&i);
            T_EQ(parse(&i), COLI_E_FORMAT);
            memcpy(i.data + 32, &whole, 8);
        }
    i.n = whole;
    seal(&i);
    T_OK(parse(&i));
    coli__ct_table_finish(&t);
    free(i.data);
}

T_TEST(longer_is_refused)
{
    T_BEGIN;
    const image i = micro_image();
    image longer = image_of(i.data, i.n);
    for (size_t n = 1; n <= 64; n++) {
        longer.n = i.n + n;
        T_FAILS(parse(&longer), COLI_E_FORMAT, "expected a file of");
    }
    const uint64_t claim = i.n + 64; // and when the header agrees
    memcpy(longer.data + 32, &claim, 8);
    longer.n = claim;
    seal(&longer);
    T_FAILS(parse(&longer), COLI_E_FORMAT, "the weights end at byte");
    free(longer.data);
    free(i.data);
}

T_TEST(every_byte_of_the_head_counts)
{
    T_BEGIN;
    const image i = micro_image();
    const uint64_t n_head = head_of(&i);
    for (uint64_t at = 0; at < n_head; at++)
        for (int k = 0; k < 3; k++) {
            const uint8_t before = i.data[at];
            i.data[at] ^= (uint8_t)(k == 0 ? 1 : k == 1 ? 0x80 : 0xff);
            const coli_status status = parse(&i);
            if (status == COLI_OK || !coli_error_message()[0]) fail_msg("byte %" PRIu64, at);
            i.data[at] = before;
        }
    T_OK(parse(&i));
    free(i.data);
}

T_TEST(damaged_as_text_or_from_the_future)
{
    T_BEGIN;
    image i = micro_image();
    i.data[0] = 0x09; // seven bits
    T_FAILS(parse(&i), COLI_E_FORMAT, "not a coli container");
    i.data[0] = 0x89;
    i.data[4] = 10; // CR LF became LF LF
    T_FAILS(parse(&i), COLI_E_FORMAT, "not a coli container");
    i.data[4] = 13;
    i.data[8] = 2;
    T_FAILS(parse(&i), COLI_E_UNSUPPORTED,
            "needs a program that reads container version 2; this one reads version 1");
    i.data[8] = 0;
    T_FAILS(parse(&i), COLI_E_FORMAT, "version 0");
    i.data[8] = 1;
    i.data[12] = 1;
    seal(&i);
    T_FAILS(parse(&i), COLI_E_FORMAT, "header");
    i.data[12] = 0;
    i.data[head_of(&i) - 17] = 1; // behind the table
    seal(&i);
    T_FAILS(parse(&i), COLI_E_FORMAT, "expected zeros behind the table");
    free(i.data);
}

T_TEST(header_numbers)
{
    T_BEGIN;
    const image i = micro_image();
    static const uint64_t bad[] = {0,          1,          4095,       4097,
                                   1ull << 32, 1ull << 63, UINT64_MAX, UINT64_MAX - 4095};
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++)
        for (uint64_t field = 16; field < 40; field += 8) {
            uint64_t before;
            memcpy(&before, i.data + field, 8);
            memcpy(i.data + field, &bad[k], 8);
            T_EQ(parse(&i), COLI_E_FORMAT);
            memcpy(i.data + field, &before, 8);
        }
    free(i.data);
}

/* -- tables that are wrong in one thing
 * ---------------------------------------------------------------- */

T_TEST(tensors_in_the_table)
{
    T_BEGIN;
    const image i = micro_image();
    EDIT_FAILS(&i, "\"name\":\"norm.weight\"", "\"name\":\"embed_tokens.weight\"",
               "is there twice");
    EDIT_FAILS(&i, "\"name\":\"norm.weight\"", "\"name\":\"\"", "a bad name");
    EDIT_FAILS(&i, "\"name\":\"norm.weight\"", "\"name\":\"a b\"", "a bad name");
    EDIT_FAILS(&i, "\"name\":\"norm.weight\"", "\"name\":7", "name: expected a string");
    EDIT_FAILS(
        &i, "\"name\":\"norm.weight\"",
        "\"name\":\"a23456789012345678901234567890123456789012345678901234567890123456789012345678"
        "901234567890123456\"",
        "a bad name");
    EDIT_FAILS(&i, "\"format\":\"int4-g64-f16\"", "\"format\":\"int9\"",
               "\"int9\" is not a weight format");
    EDIT_FAILS(&i, "\"format\":\"int4-g64-f16\"", "\"format\":\"int8\"",
               "\"int8\" is not a weight format");
    EDIT_FAILS(&i, "\"format\":\"int4-g64-f16\"", "\"format\":\"int4-g32-f16\"", "bytes: expected");
    EDIT_FAILS(&i, "\"n_out\":48", "\"n_out\":0", "n_out: expected a whole number from 1");
    EDIT_FAILS(&i, "\"n_out\":48", "\"n_out\":16777217", "n_out: expected");
    EDIT_FAILS(&i, "\"n_out\":48", "\"n_out\":-1", "n_out: expected");
    EDIT_FAILS(&i, "\"n_out\":48", "\"n_out\":48.0", "n_out: expected");
    EDIT_FAILS(&i, "\"n_out\":48", "\"n_out\":64", "bytes: expected");
    EDIT_FAILS(&i, "\"n_out\":48", "\"n_out\":1,\"n_out\":48", "uplicate");
    EDIT_FAILS(&i, "\"scale_exp\":-", "\"scale_exp\":-9",
               "scale_exp: expected a whole number from -60 to 60");
    EDIT_FAILS(&i, "\"scale_exp\":0", "\"scale_exp\":1",
               "scale_exp: expected 0, found 1"); // of a vector
    EDIT_FAILS(&i, "\"offset\":", "\"offset\":-", "offset: expected");
    EDIT_FAILS(&i, "\"offset\":", "\"offset\":9", "expected at offset");
    EDIT_FAILS(&i, "\"bytes\":", "\"bytes\":1", "bytes: expected");
    EDIT_FAILS(&i, "\"xxh3\":\"", "\"xxh3\":\"0", "expected 32 hex digits");
    EDIT_FAILS(&i, "\"engine\":\"qwen36\"", "\"engine\":\"\"", "engine: a bad name");
    EDIT_FAILS(&i, "\"engine\":\"qwen36\"", "\"engine\":\"qwen37\"", "identity");
    EDIT_FAILS(&i, "\"identity\":\"", "\"identity\":\"z", "identity: expected 32 hex");
    EDIT_FAILS(&i, "\"config.json\":", "\"config.jsom\":", "config.json is missing");
    EDIT_FAILS(&i, "\"tensors\":[", "\"tensors\":0,\"t\":[", "expected a list");
    EDIT_FAILS(&i, "\"tensors\":[", "\"tensors\":[7,", "name: expected a string");
    EDIT_FAILS(&i, "\"tensors\":[", "\"tensors\":[[[[[[[[[[]]]]]]]]],", "nested deeper than 8");
    EDIT_FAILS(&i, "\"tensors\":[", "\"tensors\":[\"\xff\",", "unable to decode");
    free(i.data);
}

T_TEST(experts_in_the_table)
{
    T_BEGIN;
    const image i = micro_image();
    EDIT_FAILS(&i, "\"layer\":0", "\"layer\":512", "layer: expected");
    EDIT_FAILS(&i, "\"layer\":1", "\"layer\":0", "layer: expected a whole number from 1");
    EDIT_FAILS(&i, "\"n_expert\":4", "\"n_expert\":3", "scale_exp: expected a list of 9, found 12");
    EDIT_FAILS(&i, "\"n_expert\":4", "\"n_expert\":4097", "n_expert: expected");
    EDIT_FAILS(&i, "\"d_ff\":24", "\"d_ff\":40", "block_bytes: expected");
    EDIT_FAILS(&i, "\"gate\":\"int4-g64-f16\"", "\"gate\":\"int4-g64-f32\"",
               "block_bytes: expected");
    EDIT_FAILS(&i, "\"up_offset\":", "\"up_offset\":1", "up_offset");
    EDIT_FAILS(&i, "\"block_bytes\":", "\"block_bytes\":1", "block_bytes");
    EDIT_FAILS(&i, "\"scale_exp\":[", "\"scale_exp\":[0,", "expected a list of 12, found 13");
    EDIT_FAILS(&i, "\"scale_exp\":[-", "\"scale_exp\":[-9", "not a power that the format allows");
    EDIT_FAILS(&i, "\"scale_exp\":[-", "\"scale_exp\":[0.", "not a power that the format allows");
    EDIT_FAILS(&i, "\"xxh3\":[\"", "\"xxh3\":[\"q", "xxh3[0]: expected 32 hex");
    EDIT_FAILS(&i, "\"experts\":[", "\"experts\":[{},", "layer: expected");
    // a span that leaves the file: everything moves by one alignment
    const image moved = edited(&i, "\"offset\":", "\"offset\":9000000");
    T_EQ(parse(&moved), COLI_E_FORMAT);
    free(moved.data);
    free(i.data);
}

/* Five thousand random edits under a valid checksum: refused or harmless, never outside the image.
 */
T_PROP(a_damaged_table_is_safe, 5000)
{
    static image base;
    if (!base.data) base = micro_image();
    const image i = image_of(base.data, base.n);
    uint64_t n_table;
    memcpy(&n_table, i.data + 16, 8);
    for (uint32_t k = t_range(&rng, 1, 3); k > 0; k--) {
        static const char alphabet[] = "0123456789[]{}\",:-.eabcdfig";
        i.data[40 + t_below(&rng, (uint32_t)n_table)] =
            (uint8_t)alphabet[t_below(&rng, sizeof alphabet - 1)];
    }
    seal(&i);
    coli__ct_table t;
    if (coli__ct_parse("m", i.data, i.n, &t) == COLI_OK) {
        for (uint32_t k = 0; k < t.n_entry; k++)
            T_TRUE(t.entries[k].tensor.mat.data + t.entries[k].tensor.n_bytes <= i.data + i.n);
        coli__ct_table_finish(&t);
    }
    free(i.data);
}

/* -- directories
 * ------------------------------------------------------------------------------------- */

/* A fresh copy of the base container. */
static const char *copy_of_base(void)
{
    const char *base = micro_container("base", "int4", "int4"), *copy = micro_path("copy");
    char command[1200];
    snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", copy, base, copy);
    T_EQ(system(command), 0);
    return copy;
}

static coli_status open_copy(void)
{
    coli__container *c;
    const coli_status status = coli__container_open(micro_path("copy"), &c);
    T_EQ(status == COLI_OK, c != NULL);
    coli__container_close(c);
    return status;
}

T_TEST(files_beside_the_weights)
{
    T_BEGIN;
    copy_of_base();
    T_OK(open_copy());
    FILE *f = fopen(micro_path("copy/config.json"), "a"); // a blank more is another file
    fputc(' ', f);
    fclose(f);
    T_FAILS(open_copy(), COLI_E_FORMAT,
            "copy/config.json: is not the file the weights were made with");
    T_EQ(unlink(micro_path("copy/config.json")), 0);
    T_FAILS(open_copy(), COLI_E_NOTFOUND, "copy/config.json");

    copy_of_base();
    micro_text(micro_path("copy/chat.json"), "{\"template\":\"3.5\"}");
    T_FAILS(open_copy(), COLI_E_FORMAT, "chat.json: is not the file");
    copy_of_base();
    micro_text(micro_path("copy/tokenizer.json"), "{}");
    T_FAILS(open_copy(), COLI_E_FORMAT, "tokenizer.json: was not there when the weights were made");
    copy_of_base();
    micro_text(micro_path("copy/generation_config.json"), "{\"temperature\":0}");
    T_OK(open_copy()); // a user's own
    copy_of_base();
    T_EQ(unlink(micro_path("copy/model.coli")), 0);
    T_FAILS(open_copy(), COLI_E_NOTFOUND, "model.coli");
    coli__dir_remove(micro_path("copy"));
    T_FAILS(open_copy(), COLI_E_NOTFOUND, "copy");
}

T_TEST(tokenizers_and_generation_config)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(2, ""), 6, MICRO_FUSED);
    const char *src = micro_write(&m, micro_path("full.src")), *out = micro_path("full");
    micro_finish(&m);
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "generation_config.json"};
    for (int i = 0; i < 3; i++) micro_text(micro_path("full.src/%s", names[i]), "{}");
    T_OK(micro_convert(src, out, "int4", "int8"));
    coli__container *c;
    for (int i = 0; i < 3; i++) {
        micro_text(micro_path("full/%s", names[i]), "{ }");
        if (i < 2)
            T_FAILS(coli__container_open(out, &c), COLI_E_FORMAT, names[i]);
        else
            T_OK(coli__container_open(out, &c));
        coli__container_close(c);
        T_EQ(unlink(micro_path("full/%s", names[i])), 0);
        T_FAILS(coli__container_open(out, &c), COLI_E_NOTFOUND, names[i]);
        micro_text(micro_path("full/%s", names[i]), "{}");
    }
    T_OK(coli__container_open(out, &c));
    coli__container_close(c);
}

/* -- verify
 * ------------------------------------------------------------------------------------------- */

static char steps[20000];
static uint64_t n_step, stop_at;

static bool take_step(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)user;
    T_LE(done, total);
    strncat(steps, what, sizeof steps - strlen(steps) - 2);
    strcat(steps, "|");
    return ++n_step != stop_at;
}

static coli_status verify_copy(void)
{
    coli__container *c;
    COLI_TRY(coli__container_open(micro_path("copy"), &c));
    steps[0] = 0;
    n_step = 0;
    const coli_status status = coli__container_verify(c, coli__engine_describe, take_step, NULL);
    coli__container_close(c);
    return status;
}

T_TEST(verify_reads_everything)
{
    T_BEGIN;
    copy_of_base();
    T_OK(verify_copy());
    T_TRUE(strstr(steps, "|norm.weight|") && strstr(steps, "|layer 1, expert 3|") &&
           strstr(steps, "|done|"));
    const uint64_t all = n_step;
    for (stop_at = 1; stop_at <= all; stop_at++)
        T_FAILS(verify_copy(), COLI_E_CANCELLED, "verifying was stopped");
    stop_at = 0;
}

/* Any bit of the weights, also the zeros between them. */
T_TEST(verify_finds_any_changed_byte)
{
    T_BEGIN;
    copy_of_base();
    image i = image_read(micro_path("copy"));
    for (uint64_t at = head_of(&i); at < i.n; at += at + 97 < i.n ? 97 : 1) {
        i.data[at] ^= 0x10;
        micro_file(micro_path("copy/model.coli"), i.data, i.n);
        if (verify_copy() != COLI_E_FORMAT) fail_msg("byte %" PRIu64, at);
        T_TRUE(strstr(coli_error_message(), "model.coli: ") != NULL);
        i.data[at] ^= 0x10;
    }
    free(i.data);
}

/* A wrong scale under a right checksum. */
T_TEST(verify_checks_values)
{
    T_BEGIN;
    copy_of_base();
    image i = image_read(micro_path("copy"));
    coli__ct_table t;
    T_OK(coli__ct_parse("m", i.data, i.n, &t));
    const coli__ct_entry *e = coli__ct_table_find(&t, "embed_tokens.weight");
    i.data[e->offset + 1] |= 0x7c; // the first scale turns into what is no number
    char from[128], to[128], identity[64];
    snprintf(from, sizeof from, "\"%s\"", e->digest.hex);
    t.entries[0].digest = coli__digest_of(i.data + e->offset, e->tensor.n_bytes);
    snprintf(to, sizeof to, "\"%s\"", e->digest.hex);
    snprintf(identity, sizeof identity, "\"%s\"", t.identity.hex);
    T_OK(coli__ct_identity(&t, &t.identity));
    char new_identity[64];
    snprintf(new_identity, sizeof new_identity, "\"%s\"", t.identity.hex);
    const image one = edited(&i, from, to), two = edited(&one, identity, new_identity);
    micro_file(micro_path("copy/model.coli"), two.data, two.n);
    T_FAILS(verify_copy(), COLI_E_FORMAT, "embed_tokens.weight: row 0");
    coli__ct_table_finish(&t);
    free(i.data);
    free(one.data);
    free(two.data);
}

/* The base container with one thing in its table replaced and an identity that fits. */
static void copy_edited(const char *from, const char *to)
{
    const image base = micro_image(), i = edited(&base, from, to);
    coli__ct_table t;
    T_FAILS(coli__ct_parse("m", i.data, i.n, &t), COLI_E_FORMAT, "identity: expected ");
    char found[64] = "\"", expected[64] = "\"";
    memcpy(expected + 1, strstr(coli_error_message(), "expected ") + 9, 32);
    memcpy(found + 1, strstr(coli_error_message(), "found ") + 6, 32);
    const image sealed = edited(&i, found, expected);
    copy_of_base();
    micro_file(micro_path("copy/model.coli"), sealed.data, sealed.n);
    T_OK(open_copy());
    free(base.data);
    free(i.data);
    free(sealed.data);
}

/* config.json and the table must speak of the same model. */
T_TEST(verify_knows_what_must_be_there)
{
    T_BEGIN;
    copy_edited("\"name\":\"norm.weight\"", "\"name\":\"nurm.weight\"");
    T_FAILS(verify_copy(), COLI_E_FORMAT, "tensor norm.weight: is missing");
    copy_edited("\"engine\":\"qwen36\"", "\"engine\":\"qwen37\"");
    T_FAILS(verify_copy(), COLI_E_FORMAT,
            "engine: expected qwen36, as config.json says, found qwen37");
}

T_TEST(a_spec_asks_for_no_fewer_and_no_more)
{
    T_BEGIN;
    coli__container *c;
    const char *engine;
    coli__model_spec spec;
    T_OK(coli__container_open(micro_container("base", "int4", "int4"), &c));
    T_OK(coli__engine_describe(coli__container_config(c), &engine, &spec));
    T_STR(engine, coli__container_engine(c));
    T_OK(coli__container_check_spec(c, &spec));
    spec.tensors[2].n_in++;
    T_FAILS(coli__container_check_spec(c, &spec), COLI_E_FORMAT, "expected 1 x 33, found 1 x 32");
    spec.tensors[2].n_in--;
    spec.n_tensor--;
    T_FAILS(coli__container_check_spec(c, &spec), COLI_E_FORMAT, " tensors, found ");
    spec.n_tensor++;
    spec.n_expert_layer--;
    T_FAILS(coli__container_check_spec(c, &spec), COLI_E_FORMAT,
            "expected experts in 1 layers, found them in 2");
    spec.n_expert_layer++;
    spec.experts[1].d_ff++;
    T_FAILS(coli__container_check_spec(c, &spec), COLI_E_FORMAT,
            "experts of layer 1: expected 4 of");
    coli__model_spec_finish(&spec);
    coli__container_close(c);
}

/* On the container that tokenizers_and_generation_config left. */
T_TEST(verify_says_that_the_defaults_were_edited)
{
    T_BEGIN;
    char command[1200];
    snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", micro_path("copy"),
             micro_path("full"), micro_path("copy"));
    T_EQ(system(command), 0);
    T_OK(verify_copy());
    T_TRUE(strstr(steps, "edited") == NULL);
    micro_text(micro_path("copy/generation_config.json"), "{\"temperature\":0}");
    T_OK(verify_copy());
    T_TRUE(strstr(steps, "generation_config.json (edited since the weights were made)|") != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_is_small_enough_to_try_every_byte),
        cmocka_unit_test(header_bytes),
        cmocka_unit_test(the_example_panel),
        cmocka_unit_test(identity),
        cmocka_unit_test(look_up),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(the_parser_stays_inside),
        cmocka_unit_test(cut_at_every_boundary),
        cmocka_unit_test(longer_is_refused),
        cmocka_unit_test(every_byte_of_the_head_counts),
        cmocka_unit_test(damaged_as_text_or_from_the_future),
        cmocka_unit_test(header_numbers),
        cmocka_unit_test(tensors_in_the_table),
        cmocka_unit_test(experts_in_the_table),
        cmocka_unit_test(a_damaged_table_is_safe),
        cmocka_unit_test(files_beside_the_weights),
        cmocka_unit_test(tokenizers_and_generation_config),
        cmocka_unit_test(verify_reads_everything),
        cmocka_unit_test(verify_finds_any_changed_byte),
        cmocka_unit_test(verify_checks_values),
        cmocka_unit_test(verify_knows_what_must_be_there),
        cmocka_unit_test(a_spec_asks_for_no_fewer_and_no_more),
        cmocka_unit_test(verify_says_that_the_defaults_were_edited),
    };
    return cmocka_run_group_tests(tests, micro_setup, micro_teardown);
}
