/* gguf_test.c - the GGUF reader: what a right file says, and that a wrong one is refused with a word
 * about what is wrong. */
#include <unistd.h>

#include "t.h"

#include "engines/engine.h"
#include "libcoli/src/model/gguf.h"
#include "libcoli/src/model/safetensors.h"

/* -- a file, put together by hand -------------------------------------------------------------- */

typedef struct file {
    uint8_t bytes[8192];
    size_t n;
} file;

static void put(file *f, const void *bytes, size_t n)
{
    T_LE(f->n + n, sizeof f->bytes);
    for (size_t i = 0; i < n; i++) f->bytes[f->n++] = ((const uint8_t *)bytes)[i];
}

static void u32(file *f, uint32_t x)
{
    put(f, &x, sizeof x);
}

static void u64(file *f, uint64_t x)
{
    put(f, &x, sizeof x);
}

static void text(file *f, const char *s)
{
    u64(f, strlen(s));
    put(f, s, strlen(s));
}

static void head(file *f, uint64_t n_tensor, uint64_t n_kv)
{
    *f = (file){.n = 0};
    put(f, "GGUF", 4);
    u32(f, 3);
    u64(f, n_tensor);
    u64(f, n_kv);
}

static void kv_u32(file *f, const char *key, uint32_t value)
{
    text(f, key);
    u32(f, COLI_GGUF_U32);
    u32(f, value);
}

static void kv_text(file *f, const char *key, const char *value)
{
    text(f, key);
    u32(f, COLI_GGUF_STRING);
    text(f, value);
}

static void kv_texts(file *f, const char *key, uint64_t n)
{
    text(f, key);
    u32(f, COLI_GGUF_ARRAY);
    u32(f, COLI_GGUF_STRING);
    u64(f, n);
}

static void tensor(file *f, const char *name, uint64_t n_in, uint64_t n_out, uint32_t kind,
                   uint64_t offset)
{
    text(f, name);
    u32(f, 2);
    u64(f, n_in);
    u64(f, n_out);
    u32(f, kind);
    u64(f, offset);
}

static void data(file *f, size_t alignment, size_t n)
{
    while (f->n % alignment) put(f, "", 1);
    for (size_t i = 0; i < n; i++) put(f, &(uint8_t){(uint8_t)(i * 7)}, 1);
}

/* From exactly as many bytes, so that a read past the end is seen. */
static coli_status open_n(const file *f, size_t n, coli__gguf **out)
{
    uint8_t *exact = malloc(n ? n : 1);
    memcpy(exact, f->bytes, n);
    coli__gguf *g;
    const coli_status status = coli__gguf_open_bytes("f", exact, n, &g);
    if (out && status == COLI_OK) {
        *out = g; // the test closes it and lets the bytes go
        return status;
    }
    coli__gguf_close(g);
    free(exact);
    return status;
}

static void refused(const file *f, coli_status expected, const char *what)
{
    T_FAILS(open_n(f, f->n, NULL), expected, what);
}

/* Two tensors, a few keys of several types. */
static void small(file *f)
{
    head(f, 2, 5);
    kv_text(f, "general.architecture", "t");
    kv_u32(f, "t.block_count", 7);
    kv_texts(f, "t.words", 2);
    text(f, "one");
    text(f, "");
    text(f, "t.eps");
    u32(f, COLI_GGUF_F32);
    put(f, &(float){1e-6f}, 4);
    text(f, "t.flags");
    u32(f, COLI_GGUF_ARRAY);
    u32(f, COLI_GGUF_BOOL);
    u64(f, 3);
    put(f, "\1\0\1", 3);
    tensor(f, "b", 32, 2, 8, 0);
    tensor(f, "a", 4, 2, 0, 96);
    data(f, 32, 96 + 32);
}

T_TEST(what_a_file_says)
{
    T_BEGIN;
    file f;
    small(&f);
    coli__gguf *g;
    T_OK(coli__gguf_open_bytes("f", f.bytes, f.n, &g));
    T_EQ(coli__gguf_count(g), 2);
    T_EQ(coli__gguf_n_value(g), 5);
    const coli__gguf_tensor *a = coli__gguf_find(g, "a"), *b = coli__gguf_find(g, "b");
    T_TRUE(a && b && !coli__gguf_find(g, "c") && !coli__gguf_find(g, ""));
    T_EQ(a->n_elem, 8);
    T_EQ(a->n_bytes, 32);
    T_EQ(b->n_bytes, 68);
    T_EQ(b->dims[0], 32);
    T_EQ(b->dims[1], 2);
    T_EQ(a->data - b->data, 96);
    T_EQ(f.bytes + f.n - a->data, 32);
    uint32_t n;
    T_OK(coli__gguf_u32(g, "t.block_count", 1, 7, &n));
    T_EQ(n, 7);
    T_FAILS(coli__gguf_u32(g, "t.block_count", 1, 6, &n), COLI_E_FORMAT, "t.block_count");
    T_FAILS(coli__gguf_u32(g, "t.eps", 1, 6, &n), COLI_E_FORMAT, "t.eps");
    T_FAILS(coli__gguf_u32(g, "t.none", 1, 6, &n), COLI_E_FORMAT, "t.none: is missing");
    T_OK(coli__gguf_u32_or(g, "t.none", 1, 6, 9, &n));
    T_EQ(n, 9);
    double x;
    T_OK(coli__gguf_number_or(g, "t.eps", 0, &x));
    T_TRUE(x == (double)1e-6f);
    coli__gguf_text s;
    T_OK(coli__gguf_text_or_null(g, "general.architecture", &s));
    T_EQ(s.n_bytes, 1);
    T_FAILS(coli__gguf_text_or_null(g, "t.words", &s), COLI_E_FORMAT, "t.words");
    const coli__gguf_value *words = coli__gguf_value_find(g, "t.words");
    T_EQ(words->n, 2);
    const uint8_t *at = words->data;
    T_EQ(coli__gguf_string(&at).n_bytes, 3);
    T_EQ(coli__gguf_string(&at).n_bytes, 0);
    int64_t flag;
    T_TRUE(coli__gguf_int(coli__gguf_value_find(g, "t.flags"), 1, &flag) && flag == 0);
    T_TRUE(!coli__gguf_int(coli__gguf_value_find(g, "t.flags"), 3, &flag));
    coli__gguf_close(g);
}

/* The file ends with a tensor, so that there is no byte it can lose. */
T_TEST(every_truncation_is_refused)
{
    T_BEGIN;
    file f;
    small(&f);
    for (size_t n = 0; n < f.n; n++) {
        const coli_status status = open_n(&f, n, NULL);
        if (status != COLI_E_FORMAT) print_error("cut to %zu bytes\n", n);
        T_EQ(status, COLI_E_FORMAT);
    }
    T_OK(open_n(&f, f.n, NULL));
}

/* Any byte changed: refused or read, and never out of bounds (the sanitiser looks on). */
T_TEST(every_byte_may_be_anything)
{
    T_BEGIN;
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    file f;
    small(&f);
    for (size_t i = 0; i < f.n; i++)
        for (size_t v = 0; v < sizeof values; v++) {
            const uint8_t was = f.bytes[i];
            f.bytes[i] = values[v];
            open_n(&f, f.n, NULL);
            f.bytes[i] = was;
        }
}

T_TEST(headers)
{
    T_BEGIN;
    file f;
    head(&f, 0, 0);
    T_OK(open_n(&f, f.n, NULL));
    f.bytes[4] = 2;
    T_OK(open_n(&f, f.n, NULL));
    f.bytes[4] = 1;
    refused(&f, COLI_E_UNSUPPORTED, "version 1");
    f.bytes[4] = 4;
    refused(&f, COLI_E_UNSUPPORTED, "version 4");
    memcpy(f.bytes + 4, "\0\0\0\3", 4);
    refused(&f, COLI_E_UNSUPPORTED, "big-endian");
    head(&f, 0, 0);
    f.bytes[3] = 'X';
    refused(&f, COLI_E_FORMAT, "no GGUF file");
    head(&f, 1, 0);
    refused(&f, COLI_E_FORMAT, "1 tensors");
    head(&f, UINT64_MAX, 0);
    refused(&f, COLI_E_FORMAT, "18446744073709551615 tensors");
    head(&f, 0, UINT64_MAX);
    refused(&f, COLI_E_FORMAT, "18446744073709551615 keys");
    head(&f, 0, UINT64_C(1) << 60);
    refused(&f, COLI_E_FORMAT, "keys: more than");
}

static file with_kv(uint64_t n_kv)
{
    file f;
    head(&f, 0, n_kv);
    return f;
}

static void fill(file *f, size_t n) // bytes that a count of entries is compared with
{
    for (size_t i = 0; i < n; i++) put(f, "", 1);
}

T_TEST(wrong_metadata)
{
    T_BEGIN;
    file f = with_kv(2);
    kv_u32(&f, "a.b", 1);
    kv_u32(&f, "a.b", 2);
    refused(&f, COLI_E_FORMAT, "key a.b: is there twice");

    f = with_kv(1);
    kv_u32(&f, "", 1);
    refused(&f, COLI_E_FORMAT, "0 bytes");

    f = with_kv(1);
    kv_u32(&f, "a\nb", 1);
    refused(&f, COLI_E_FORMAT, "control character");

    f = with_kv(1); // a key that would be the rest of the address space
    u64(&f, UINT64_MAX);
    fill(&f, 40);
    refused(&f, COLI_E_FORMAT, "a key");

    f = with_kv(1); // the same for a value
    text(&f, "bomb");
    u32(&f, COLI_GGUF_STRING);
    u64(&f, UINT64_MAX - 7);
    fill(&f, 40);
    refused(&f, COLI_E_FORMAT, "key bomb");

    f = with_kv(1); // many strings in few bytes
    kv_texts(&f, "bomb", UINT64_C(1) << 61);
    fill(&f, 80);
    refused(&f, COLI_E_FORMAT, "key bomb");

    f = with_kv(1); // 8 * n overflows
    text(&f, "bomb");
    u32(&f, COLI_GGUF_ARRAY);
    u32(&f, COLI_GGUF_U64);
    u64(&f, (UINT64_C(1) << 61) + 1);
    fill(&f, 80);
    refused(&f, COLI_E_FORMAT, "key bomb");

    f = with_kv(1);
    text(&f, "deep");
    for (int i = 0; i < 20; i++) {
        u32(&f, COLI_GGUF_ARRAY);
        if (i > 0) u64(&f, 1);
    }
    fill(&f, 80);
    refused(&f, COLI_E_FORMAT, "key deep");

    f = with_kv(1);
    text(&f, "strange");
    u32(&f, 13);
    fill(&f, 80);
    refused(&f, COLI_E_FORMAT, "key strange");

    f = with_kv(1);
    text(&f, "half");
    u32(&f, COLI_GGUF_BOOL);
    put(&f, "\2", 1);
    refused(&f, COLI_E_FORMAT, "key half");
}

/* A file with one key, one tensor of `kind` and `n_data` bytes for it. */
static file one(uint32_t alignment, uint64_t n_in, uint64_t n_out, uint32_t kind, uint64_t offset,
                size_t n_data)
{
    file f;
    head(&f, 1, 1);
    kv_u32(&f, "general.alignment", alignment);
    tensor(&f, "w", n_in, n_out, kind, offset);
    data(&f, alignment >= 8 && alignment <= 64 ? alignment : 32, n_data);
    return f;
}

T_TEST(wrong_tensors)
{
    T_BEGIN;
    file f = one(64, 32, 2, 8, 64, 132);
    T_OK(open_n(&f, f.n, NULL));
    static const uint32_t alignments[] = {0, 1, 4, 24, 33, 1u << 21, UINT32_MAX};
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        f = one(alignments[i], 32, 2, 8, 0, 68);
        refused(&f, COLI_E_FORMAT, "general.alignment");
    }
    f = one(32, 32, 2, 8, 16, 200);
    refused(&f, COLI_E_FORMAT, "tensor w: begins at 16");
    f = one(32, 32, 2, 8, 32, 99);
    refused(&f, COLI_E_FORMAT, "tensor w: needs 68 bytes");
    f = one(32, 32, 2, 8, UINT64_MAX - 31, 68);
    refused(&f, COLI_E_FORMAT, "tensor w: needs 68 bytes");
    f = one(32, 33, 2, 8, 0, 200);
    refused(&f, COLI_E_FORMAT, "tensor w: rows of 33");
    f = one(32, 0, 2, 8, 0, 200);
    refused(&f, COLI_E_FORMAT, "tensor w: its dims");
    f = one(32, UINT64_C(1) << 32, UINT64_C(1) << 32, 8, 0, 200);
    refused(&f, COLI_E_FORMAT, "tensor w: its dims");
    f = one(32, UINT64_C(1) << 31, UINT64_C(1) << 32, 0, 0, 200); // elements fit, bytes do not
    refused(&f, COLI_E_FORMAT, "tensor w: has more than 2^64 bytes");
    f = one(32, 32, 2, 99, 0, 200);
    refused(&f, COLI_E_UNSUPPORTED, "tensor w: is stored as kind 99");
    f = one(32, 32, 2, 139, 0, 200);
    refused(&f, COLI_E_UNSUPPORTED, "tensor w: is stored as IQ4_K, which only ik_llama.cpp has");

    head(&f, 2, 0);
    tensor(&f, "x", 8, 1, 0, 0);
    tensor(&f, "x", 8, 1, 0, 32);
    data(&f, 32, 64);
    refused(&f, COLI_E_FORMAT, "tensor x: is there twice");

    head(&f, 2, 0);
    tensor(&f, "x", 16, 1, 0, 0);
    tensor(&f, "y", 8, 1, 0, 32);
    data(&f, 32, 64);
    refused(&f, COLI_E_FORMAT, "overlaps");

    head(&f, 1, 0);
    text(&f, "rank");
    u32(&f, 5);
    fill(&f, 200);
    refused(&f, COLI_E_FORMAT, "tensor rank: rank 5");
    head(&f, 1, 0);
    text(&f, "rank");
    u32(&f, 0);
    fill(&f, 200);
    refused(&f, COLI_E_FORMAT, "tensor rank: rank 0");

    char name[200];
    memset(name, 'n', sizeof name);
    name[199] = 0;
    head(&f, 1, 0);
    tensor(&f, name, 8, 1, 0, 0);
    data(&f, 32, 64);
    refused(&f, COLI_E_FORMAT, "199 bytes");
}

T_TEST(kinds_that_cannot_be_read_are_named)
{
    T_BEGIN;
    file f = one(32, 128, 1, 41, 0, 18); // Q1_0
    coli__gguf *g;
    T_OK(coli__gguf_open_bytes("f", f.bytes, f.n, &g));
    float out[256];
    T_FAILS(coli__gguf_to_f32(coli__gguf_at(g, 0), 0, 128, out), COLI_E_UNSUPPORTED, "Q1_0");
    coli__gguf_close(g);
    f = one(32, 32, 2, 8, 0, 68);
    T_OK(coli__gguf_open_bytes("f", f.bytes, f.n, &g));
    T_FAILS(coli__gguf_to_f32(coli__gguf_at(g, 0), 16, 32, out), COLI_E_INVALID, "tensor w");
    T_FAILS(coli__gguf_to_f32(coli__gguf_at(g, 0), 32, 64, out), COLI_E_INVALID, "tensor w");
    coli__gguf_close(g);
}

/* -- split files ------------------------------------------------------------------------------- */

static char dir[256];

static int setup(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/coli-test-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(dir) ? 0 : 1;
}

static int teardown(void **state)
{
    (void)state;
    coli__dir_remove(dir);
    return 0;
}

static const char *part_path(const char *name)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_part(const char *name, uint32_t no, uint32_t count, uint32_t n_tensor,
                       const char *tensor_name)
{
    file f;
    head(&f, 1, 3);
    kv_u32(&f, "split.no", no);
    kv_u32(&f, "split.count", count);
    kv_u32(&f, "split.tensors.count", n_tensor);
    tensor(&f, tensor_name, 8, 1, 0, 0);
    data(&f, 32, 32);
    FILE *out = fopen(part_path(name), "wb");
    T_TRUE(out != NULL);
    T_EQ(fwrite(f.bytes, 1, f.n, out), f.n);
    T_EQ(fclose(out), 0);
}

static coli_status open_split(const char *name)
{
    coli__gguf *g;
    const coli_status status = coli__gguf_open(part_path(name), &g);
    if (status == COLI_OK) T_EQ(coli__gguf_count(g), 2);
    coli__gguf_close(g);
    return status;
}

T_TEST(parts_of_a_split_file)
{
    T_BEGIN;
    static const char one_name[] = "m-00001-of-00002.gguf", two[] = "m-00002-of-00002.gguf";
    write_part(one_name, 0, 2, 2, "a");
    T_FAILS(open_split(one_name), COLI_E_NOTFOUND, two);
    write_part(two, 1, 2, 2, "b");
    T_OK(open_split(one_name));
    T_OK(open_split(two)); // any part leads to all
    write_part(two, 1, 2, 2, "a");
    T_FAILS(open_split(one_name), COLI_E_FORMAT, "tensor a: is there twice");
    write_part(two, 0, 2, 2, "b");
    T_FAILS(open_split(one_name), COLI_E_FORMAT, "split.*: expected part 2 of 2");
    write_part(two, 1, 3, 2, "b");
    T_FAILS(open_split(one_name), COLI_E_FORMAT, "found part 2 of 3");
    write_part(two, 1, 2, 9, "b");
    T_FAILS(open_split(one_name), COLI_E_FORMAT, "with 9");
    write_part(one_name, 0, 2, 9, "a");
    T_FAILS(open_split(one_name), COLI_E_FORMAT, "hold 2 tensors");
    write_part(one_name, 0, 60000, 2, "a");
    T_FAILS(open_split(one_name), COLI_E_FORMAT, "split.count");
    write_part("other.gguf", 0, 2, 2, "a");
    T_FAILS(open_split("other.gguf"), COLI_E_FORMAT, "-00001-of-00002.gguf");
}

/* -- the family's metadata --------------------------------------------------------------------- */

static void kv_list(file *f, const char *key, uint32_t n, const uint32_t *values)
{
    text(f, key);
    u32(f, COLI_GGUF_ARRAY);
    u32(f, COLI_GGUF_U32);
    u64(f, n);
    for (uint32_t i = 0; i < n; i++) u32(f, values[i]);
}

static void kv_bool(file *f, const char *key, bool value)
{
    text(f, key);
    u32(f, COLI_GGUF_BOOL);
    put(f, &(uint8_t){value}, 1);
}

enum { N_COMMON = 17 };

/* A file of four layers, without what differs: n_kv keys that `more` writes. */
static file family_file(uint32_t n_kv, void (*more)(file *f))
{
    static const struct {
        const char *key;
        uint32_t value;
    } common[] = {
        {"qwen35moe.block_count", 4},
        {"qwen35moe.embedding_length", 64},
        {"qwen35moe.context_length", 64},
        {"qwen35moe.attention.head_count", 4},
        {"qwen35moe.attention.key_length", 16},
        {"qwen35moe.rope.dimension_count", 4},
        {"qwen35moe.expert_count", 4},
        {"qwen35moe.expert_used_count", 2},
        {"qwen35moe.expert_feed_forward_length", 32},
        {"qwen35moe.expert_shared_feed_forward_length", 32},
        {"qwen35moe.ssm.group_count", 2},
        {"qwen35moe.ssm.time_step_rank", 6},
        {"qwen35moe.ssm.state_size", 8},
        {"qwen35moe.ssm.inner_size", 48},
        {"qwen35moe.ssm.conv_kernel", 4},
    };
    file f;
    head(&f, 2, N_COMMON + n_kv);
    kv_text(&f, "general.architecture", "qwen35moe");
    text(&f, "qwen35moe.rope.freq_base");
    u32(&f, COLI_GGUF_F32);
    put(&f, &(float){10000}, 4);
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
        kv_u32(&f, common[i].key, common[i].value);
    more(&f);
    tensor(&f, "token_embd.weight", 64, 8, 0, 0);
    tensor(&f, "blk.0.ssm_dt", 6, 1, 0, 2048);
    data(&f, 32, 2048 + 24);
    return f;
}

/* What config.json says, or how it is refused (`refuses` not NULL). */
static void config_says(uint32_t n_kv, void (*more)(file *f), const char *says, const char *refuses)
{
    const file f = family_file(n_kv, more);
    coli__gguf *g;
    const coli__gguf_family *family;
    coli__buf config = {0};
    T_OK(coli__gguf_open_bytes("f", f.bytes, f.n, &g));
    T_OK(coli__engine_gguf(g, &family));
    const coli_status status = family->config(g, &config);
    if (refuses) {
        T_TRUE(status == COLI_E_FORMAT || status == COLI_E_UNSUPPORTED);
        if (!strstr(coli_error_message(), refuses)) print_error("%s\n", coli_error_message());
        T_TRUE(strstr(coli_error_message(), refuses) != NULL);
    } else {
        T_OK(status);
        if (!strstr(config.data, says)) print_error("no %s in %s\n", says, config.data);
        T_TRUE(strstr(config.data, says) != NULL);
        T_TRUE(strstr(config.data, "\"num_attention_heads\": 4,") != NULL);
        T_TRUE(strstr(config.data, "\"num_key_value_heads\": 2,") != NULL);
    }
    coli__buf_finish(&config);
    coli__gguf_close(g);
}

static const char by_two[] =
    "\"layer_types\": [\"linear_attention\", \"full_attention\", \"linear_attention\", "
    "\"full_attention\"]";

#define MORE(name, ...)                                                                            \
    static void name(file *f)                                                                      \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define KV_HEADS  "qwen35moe.attention.head_count_kv"
#define RECURRENT "qwen35moe.attention.recurrent_layers"
// clang-format off
MORE(plain, kv_u32(f, KV_HEADS, 2);)
MORE(interval, kv_u32(f, KV_HEADS, 2); kv_u32(f, "qwen35moe.full_attention_interval", 2);)
MORE(heads_by_layer, kv_list(f, KV_HEADS, 4, (uint32_t[]){0, 2, 0, 2});)
MORE(heads_and_interval, kv_list(f, KV_HEADS, 4, (uint32_t[]){0, 0, 0, 2});
                         kv_u32(f, "qwen35moe.full_attention_interval", 4);)
MORE(listed, kv_u32(f, KV_HEADS, 2); kv_list(f, RECURRENT, 4, (uint32_t[]){1, 0, 1, 0});)
MORE(with_mtp, kv_list(f, KV_HEADS, 4, (uint32_t[]){0, 2, 2, 2});
               kv_u32(f, "qwen35moe.nextn_predict_layers", 1);)
MORE(too_short, kv_list(f, KV_HEADS, 3, (uint32_t[]){0, 2, 0});)
MORE(too_long, kv_list(f, KV_HEADS, 5, (uint32_t[]){0, 2, 0, 2, 0});)
MORE(all_zero, kv_list(f, KV_HEADS, 4, (uint32_t[]){0, 0, 0, 0});)
MORE(different, kv_list(f, KV_HEADS, 4, (uint32_t[]){0, 2, 0, 4});)
MORE(headless, kv_list(f, KV_HEADS, 4, (uint32_t[]){0, 2, 0, 0});
               kv_list(f, RECURRENT, 4, (uint32_t[]){1, 0, 1, 0});)
MORE(words, kv_u32(f, KV_HEADS, 2); kv_texts(f, RECURRENT, 1); text(f, "all");)
MORE(single, kv_u32(f, KV_HEADS, 2); kv_u32(f, RECURRENT, 1);)
MORE(normed, kv_u32(f, KV_HEADS, 2); kv_bool(f, "qwen35moe.norm_top_k_prob", true);)
MORE(not_normed, kv_u32(f, KV_HEADS, 2); kv_bool(f, "qwen35moe.norm_top_k_prob", false);)
MORE(no_flag, kv_u32(f, KV_HEADS, 2); kv_u32(f, "qwen35moe.norm_top_k_prob", 1);)
MORE(in_turns, kv_bool(f, "qwen35moe.ssm.v_head_reordered", true);)
MORE(in_groups, kv_bool(f, "qwen35moe.ssm.v_head_reordered", false);)
// clang-format on

T_TEST(what_layers_are)
{
    T_BEGIN;
    config_says(1, plain, "\"full_attention_interval\": 4,", NULL);
    config_says(2, interval, "\"full_attention_interval\": 2,", NULL);
    config_says(1, heads_by_layer, by_two, NULL);
    config_says(2, heads_and_interval, "\"full_attention_interval\": 4,", NULL);
    config_says(2, listed, by_two, NULL);
    config_says(2, with_mtp, "[\"linear_attention\", \"full_attention\", \"full_attention\"]",
                NULL);
    config_says(1, too_short, NULL, KV_HEADS ": expected a number for each of 4 layers");
    config_says(1, too_long, NULL, KV_HEADS ": expected a number for each of 4 layers");
    config_says(1, all_zero, NULL, KV_HEADS ": no layer of attention");
    config_says(1, different, NULL, KV_HEADS ": layer 3 has 4 heads");
    config_says(2, headless, NULL, KV_HEADS ": layer 3 has 0 heads");
    config_says(2, words, NULL, RECURRENT ": expected a number");
    config_says(2, single, NULL, RECURRENT ": expected a list");
    config_says(2, normed, "num_experts_per_tok", NULL);
    config_says(2, not_normed, NULL, "norm_top_k_prob: only true");
    config_says(2, no_flag, NULL, "norm_top_k_prob: expected true or false");
}

/* Value heads are in turns unless a file says otherwise; a bias may be called one or not. */
T_TEST(where_value_heads_are)
{
    T_BEGIN;
    for (int turns = 0; turns < 2; turns++) {
        const file f = family_file(1, turns ? in_turns : in_groups);
        coli__gguf *g;
        const coli__gguf_family *family;
        coli__gguf_place place;
        T_OK(coli__gguf_open_bytes("f", f.bytes, f.n, &g));
        T_OK(coli__engine_gguf(g, &family));
        T_TRUE(family->place(g, "layers.0.linear_attn.dt_bias", &place));
        T_STR(place.name, "blk.0.ssm_dt");
        T_EQ(place.cols.width, turns);
        T_TRUE(family->place(g, "layers.1.linear_attn.dt_bias", &place));
        T_STR(place.name, "blk.1.ssm_dt.bias");
        T_TRUE(family->place(g, "layers.0.linear_attn.in_proj_qkv.weight", &place));
        T_EQ(place.rows.width, turns ? 8 : 0);
        T_STR(family->skips(g, "v.blk.0.ln1.weight"), "vision");
        T_STR(family->skips(g, "blk.4.nextn.eh_proj.weight"), "mtp");
        T_STR(family->skips(g, "blk.0.attn_qkv.input_scale"), "input_scale");
        T_TRUE(family->skips(g, "blk.0.attn_qkv.scale") == NULL);
        coli__gguf_close(g);
    }
}

/* A scale beside a tensor is one number, or one per expert, in F32. */
T_TEST(second_scales)
{
    T_BEGIN;
    static const struct {
        uint64_t n;
        uint32_t kind;
        coli_status status;
    } cases[] = {{1, 0, COLI_OK}, {3, 0, COLI_E_FORMAT}, {1, 1, COLI_E_FORMAT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        file f;
        coli__gguf *g;
        coli__gguf_view v;
        const coli__gguf_place place = {.name = "w.weight"};
        head(&f, 2, 0);
        tensor(&f, "w.weight", 2, 1, 0, 0);
        tensor(&f, "w.scale", cases[i].n, 1, cases[i].kind, 32);
        data(&f, 32, 0);
        put(&f, (float[]){1.5f, -2.0f, 0, 0, 0, 0, 0, 0, 0.25f, 1, 1}, 11 * sizeof(float));
        T_OK(coli__gguf_open_bytes("f", f.bytes, f.n, &g));
        T_EQ(coli__gguf_view_find(g, &place, &v), cases[i].status);
        float row[2];
        if (cases[i].status == COLI_OK) {
            T_OK(coli__gguf_view_row(&v, 0, 0, 2, row));
            T_TRUE(row[0] == 0.375f && row[1] == -0.5f);
        } else {
            T_TRUE(strstr(coli_error_message(), "tensor w.scale: expected F32") != NULL);
        }
        coli__gguf_close(g);
    }
}

/* -- numbers ----------------------------------------------------------------------------------- */

/* Every kind against the package that wrote the file, bit for bit; and where a kind has a grid, its
 * numbers are whole multiples of the scales. */
T_TEST(every_kind_is_exact)
{
    T_BEGIN;
    coli__gguf *g;
    coli__st *st;
    T_OK(coli__gguf_open(TEST_FIXTURES "/gguf/kinds.gguf", &g));
    T_OK(coli__st_open(TEST_FIXTURES "/gguf/kinds.safetensors", &st));
    T_EQ(coli__gguf_count(g), 26);
    T_EQ(coli__st_count(st), 26);
    static float out[3 * 512], expected[3 * 512], scales[3 * 512 / 32];
    for (uint32_t i = 0; i < 26; i++) {
        const coli__gguf_tensor *t = coli__gguf_at(g, i);
        const coli__st_tensor *e = coli__st_find(st, t->name);
        T_TRUE(e != NULL && strcmp(t->kind->name, t->name) == 0);
        T_EQ(t->n_elem, 3 * 512);
        T_OK(coli__st_to_f32(e, 0, e->n_elem, expected));
        for (uint32_t first = 0; first < 3 * 512; first += 256) // in pieces
            T_OK(coli__gguf_to_f32(t, first, 256, out + first));
        T_MEM(out, expected, sizeof out);
        if (!coli__gguf_has_grid(t->kind)) continue;
        coli__gguf_scales(t, 0, t->n_elem, scales);
        for (uint32_t k = 0; k < 3 * 512; k++) {
            const double s = (double)scales[k / 32], x = (double)out[k];
            T_TRUE(s == 0 ? x == 0 : x / s == nearbyint(x / s));
            if (s != 0) T_FLE(fabs(x / s), 128);
        }
    }
    coli__gguf_close(g);
    coli__st_close(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_file_says),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_byte_may_be_anything),
        cmocka_unit_test(headers),
        cmocka_unit_test(wrong_metadata),
        cmocka_unit_test(wrong_tensors),
        cmocka_unit_test(kinds_that_cannot_be_read_are_named),
        cmocka_unit_test(parts_of_a_split_file),
        cmocka_unit_test(what_layers_are),
        cmocka_unit_test(where_value_heads_are),
        cmocka_unit_test(second_scales),
        cmocka_unit_test(every_kind_is_exact),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
