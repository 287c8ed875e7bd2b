/* safetensors_test.c - what a safetensors reader must accept and refuse.  The names of the refusals
 * (S1, S2, ...) are those of docs/formats/safetensors.md. */
#include "micro.h"

/* -- files in memory: a header text and some bytes --------------------------------------------- */

typedef struct bytes {
    uint8_t *data;
    size_t n;
} bytes;

static bytes make(uint64_t n_header, const char *header, size_t n_text, size_t n_data)
{
    bytes b = {calloc(1, 8 + n_text + n_data + 1), 8 + n_text + n_data};
    memcpy(b.data, &n_header, 8);
    memcpy(b.data + 8, header, n_text);
    for (size_t i = 0; i < n_data; i++) b.data[8 + n_text + i] = (uint8_t)i;
    return b;
}

/* Open a copy in a buffer of exactly its size, so that ASan sees the first byte read too many. */
static coli_status open_exact(const uint8_t *data, size_t n)
{
    uint8_t *exact = malloc(n ? n : 1);
    memcpy(exact, data, n);
    coli__st *st;
    const coli_status status = coli__st_open_bytes("f", exact, n, &st);
    T_EQ(status == COLI_OK, st != NULL);
    coli__st_close(st);
    free(exact);
    return status;
}

static coli_status open_header(const char *header, size_t n_data)
{
    const bytes b = make(strlen(header), header, strlen(header), n_data);
    const coli_status status = open_exact(b.data, b.n);
    free(b.data);
    return status;
}

#define REFUSED(header, n_data, text)                                                              \
    T_FAILS(open_header((header), (n_data)), COLI_E_FORMAT, (text))
#define TENSOR(name, dtype, shape, offsets)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const char two[] =
    "{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "F32", "[2,1]", "[4,12]") "}";

T_TEST(reads_the_smallest_files)
{
    T_BEGIN;
    T_OK(open_header("{}", 0));
    T_OK(open_header("{}   ", 0)); // padding
    T_OK(open_header(two, 12));
    T_OK(open_header("{" TENSOR("s", "F32", "[]", "[0,4]") "}", 4));    // a scalar
    T_OK(open_header("{" TENSOR("z", "F32", "[0,3]", "[0,0]") "}", 0)); // nothing
    T_OK(open_header("{\"__metadata__\":{\"format\":\"pt\"}}", 0));
    T_OK(open_header(
        "{" TENSOR("z", "F32", "[0]", "[4,4]") "," TENSOR("a", "U8", "[4]", "[0,4]") "}", 4));
}

T_TEST(finds_and_converts)
{
    T_BEGIN;
    bytes b = make(strlen(two), two, strlen(two), 12);
    const float numbers[2] = {1.5f, -0.25f};
    memcpy(b.data + 8 + strlen(two) + 4, numbers, 8); // at 12 + 8 + odd: unaligned on purpose
    coli__st *st;
    T_OK(coli__st_open_bytes("f", b.data, b.n, &st));
    T_EQ(coli__st_count(st), 2);
    T_STR(coli__st_at(st, 0)->name, "a");
    T_TRUE(coli__st_find(st, "c") == NULL);
    const coli__st_tensor *t = coli__st_find(st, "b");
    T_EQ(t->rank, 2);
    T_EQ(t->n_elem, 2);
    float out[2];
    T_OK(coli__st_to_f32(t, 0, 2, out));
    T_MEM(out, numbers, 8);
    T_OK(coli__st_to_f32(t, 2, 0, out));
    T_FAILS(coli__st_to_f32(t, 1, 2, out), COLI_E_INVALID, "it has 2");
    T_FAILS(coli__st_to_f32(t, UINT64_MAX, 2, out), COLI_E_INVALID, "it has 2");
    coli__st_close(st);
    free(b.data);
}

T_TEST(S1_shorter_than_a_header_length)
{
    T_BEGIN;
    for (size_t n = 0; n < 8; n++)
        T_FAILS(open_exact((const uint8_t *)"\2\0\0\0\0\0\0\0", n), COLI_E_FORMAT, "too few");
}

T_TEST(S2_header_length)
{
    T_BEGIN;
    const uint64_t bad[] = {0, 1, 3, 100, 100000001, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const bytes b = make(bad[i], "{}", 2, 0);
        T_FAILS(open_exact(b.data, b.n), COLI_E_FORMAT, "header length");
        free(b.data);
    }
}

T_TEST(S3_first_byte)
{
    T_BEGIN;
    REFUSED(" {}", 0, "expected '{'");
    REFUSED("[]", 0, "expected '{'");
    REFUSED("\xef\xbb\xbf{}", 0, "expected '{'");
}

T_TEST(S4_every_prefix)
{
    T_BEGIN;
    const bytes b = make(strlen(two), two, strlen(two), 12);
    for (size_t n = 0; n < b.n; n++) T_EQ(open_exact(b.data, n), COLI_E_FORMAT);
    T_OK(open_exact(b.data, b.n));
    free(b.data);
}

T_TEST(S5_duplicate_in_one_header)
{
    T_BEGIN;
    REFUSED("{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("a", "U8", "[4]", "[4,8]") "}", 8,
            "uplicate");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
            "uplicate");
    REFUSED("{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("\\u0061", "U8", "[4]", "[4,8]") "}",
            8, "f: tensor a: duplicate name");
    REFUSED("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate __metadata__");
}

T_TEST(S7_spans)
{
    T_BEGIN;
    REFUSED("{" TENSOR("a", "U8", "[4]", "[4,0]") "}", 4, "begin <= end");
    REFUSED("{" TENSOR("a", "U8", "[4]", "[0,5]") "}", 4, "begin <= end <= 4");
    REFUSED("{" TENSOR("a", "U8", "[4]", "[9223372036854775807,9223372036854775807]") "}", 4,
            "begin <= end");
    REFUSED("{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[3,7]") "}", 7,
            "before");
    REFUSED("{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[0,4]") "}", 4,
            "before");
    REFUSED("{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[5,9]") "}", 9,
            "gap");
    REFUSED("{" TENSOR("a", "U8", "[4]", "[1,5]") "}", 5, "gap");
    REFUSED("{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("z", "U8", "[0]", "[2,2]") "}", 4,
            "before");
    REFUSED(two, 13, "the file has 13");
    REFUSED("{}", 1, "the file has 1");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]}}", 4,
            "two whole numbers");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,4]}}", 4,
            "two whole numbers");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}}", 4,
            "two whole numbers");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4.0]}}", 4,
            "two whole numbers");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, "two whole numbers");
}

T_TEST(S8_span_against_shape)
{
    T_BEGIN;
    REFUSED("{" TENSOR("a", "F32", "[4]", "[0,4]") "}", 4, "need 16 bytes, data_offsets give 4");
    REFUSED("{" TENSOR("a", "F64", "[1]", "[0,4]") "}", 4, "need 8 bytes"); // not read, but sized
    REFUSED("{" TENSOR("a", "F32", "[0]", "[0,4]") "}", 4, "need 0 bytes");
}

T_TEST(S9_product_overflows)
{
    T_BEGIN;
    REFUSED("{" TENSOR("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "2^64 elements");
    REFUSED("{" TENSOR("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, "2^64 bytes");
    REFUSED("{" TENSOR("a", "U8", "[99999999999999999999]", "[0,0]") "}", 0, "too big integer");
}

T_TEST(S10_unknown_dtype_is_an_error_when_used)
{
    T_BEGIN;
    static const char *const headers[] = {"{" TENSOR("a", "F4_NEW", "[8]", "[0,4]") "}",
                                          "{" TENSOR("a", "U32", "[1]", "[0,4]") "}"};
    for (size_t i = 0; i < 2; i++) {
        const bytes b = make(strlen(headers[i]), headers[i], strlen(headers[i]), 4);
        coli__st *st;
        T_OK(coli__st_open_bytes("f", b.data, b.n, &st));
        float x;
        T_EQ(coli__st_at(st, 0)->dtype, COLI_DT_OTHER);
        T_FAILS(coli__st_to_f32(coli__st_at(st, 0), 0, 1, &x), COLI_E_UNSUPPORTED,
                i ? "U32" : "F4_NEW");
        coli__st_close(st);
        free(b.data);
    }
    REFUSED("{\"a\":{\"dtype\":5,\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "dtype");
}

T_TEST(S11_rank)
{
    T_BEGIN;
    T_OK(open_header("{" TENSOR("a", "U8", "[1,1,1,1,1,1,1,4]", "[0,4]") "}", 4));
    REFUSED("{" TENSOR("a", "U8", "[1,1,1,1,1,1,1,1,4]", "[0,4]") "}", 4, "at most 8");
    REFUSED("{" TENSOR("a", "U8", "4", "[0,4]") "}", 4, "shape");
}

T_TEST(S12_numbers_in_the_shape)
{
    T_BEGIN;
    static const char *const bad[] = {"-4", "4.0", "4e0", "\"4\"", "null", "true", "[4]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char header[200];
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"U8\",\"shape\":[%s],\"data_offsets\":[0,4]}}", bad[i]);
        REFUSED(header, 4, "shape[0]: expected a whole number");
    }
}

T_TEST(S13_text)
{
    T_BEGIN;
    REFUSED("{" TENSOR("a\xff", "U8", "[4]", "[0,4]") "}", 4, "unable to decode");
    REFUSED("{" TENSOR("\xc0\xaf", "U8", "[4]", "[0,4]") "}", 4, "unable to decode");
    REFUSED("{" TENSOR("\\ud800", "U8", "[4]", "[0,4]") "}", 4, "f: ");
    REFUSED("{" TENSOR("a\\u0000b", "U8", "[4]", "[0,4]") "}", 4, "f: ");
    REFUSED("{" TENSOR("a\\u001b[2J", "U8", "[4]", "[0,4]") "}", 4, "control character");
    T_OK(open_header("{" TENSOR("\xc3\xa9\\ud83d\\ude00", "U8", "[4]", "[0,4]") "}", 4));
}

T_TEST(S14_depth)
{
    T_BEGIN;
    for (int depth = 9; depth < 100000; depth *= 7) {
        char *header = malloc((size_t)depth * 6 + 1);
        char *at = header;
        for (int i = 0; i < depth; i++) at += sprintf(at, "{\"a\":");
        T_FAILS(open_header(header, 0), COLI_E_FORMAT, "nested deeper than 8");
        free(header);
    }
}

T_TEST(S15_metadata)
{
    T_BEGIN;
    REFUSED("{\"__metadata__\":{\"a\":1}}", 0, "expected a string");
    REFUSED("{\"__metadata__\":[]}", 0, "expected an object");
    REFUSED("{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, "expected a string");
}

T_TEST(S16_what_is_too_much)
{
    T_BEGIN;
    char header[600];
    for (int n = 255; n <= 256; n++) {
        snprintf(header, sizeof header, "{" TENSOR("%0*d", "U8", "[4]", "[0,4]") "}", n, 0);
        if (n == 255)
            T_OK(open_header(header, 4));
        else
            REFUSED(header, 4, "expected a name of at most 255 bytes");
    }
    for (int n = 31; n <= 32; n++) {
        snprintf(header, sizeof header, "{" TENSOR("a", "%0*d", "[4]", "[0,4]") "}", n, 0);
        if (n == 31)
            T_OK(open_header(header, 4));
        else
            REFUSED(header, 4, "a dtype of at most 31, found 1 and 32");
    }
    static const size_t sizes[] = {COLI_JSON_MEMBER_MAX_BYTES - 100, COLI_JSON_MEMBER_MAX_BYTES};
    coli__buf long_text = {0};
    for (int i = 0; i < 2; i++) {
        T_OK(coli__buf_printf(&long_text, "{\"__metadata__\":{\"a\":\"%0*d\"}}", (int)sizes[i], 0));
        if (i == 0)
            T_OK(open_header(long_text.data, 0));
        else
            REFUSED(long_text.data, 0, "f: member at byte 1: expected at most 1048576 bytes");
        coli__buf_finish(&long_text);
    }
    T_OK(coli__buf_str(&long_text, "{\"a\":{\"x\":[0"));
    for (int i = 0; i < COLI_JSON_SMALL_VALUES; i++) T_OK(coli__buf_str(&long_text, ",0"));
    T_OK(coli__buf_str(&long_text, "]}}"));
    REFUSED(long_text.data, 0, "more than 65536 values");
    coli__buf_finish(&long_text);
}

/* Headers are read member by member.  That must be the same JSON as read at once. */
static json_t *member_by_member(const char *text, size_t n)
{
    coli__json_members members = {.what = "m", .text = text, .n_bytes = n, .max_depth = 8};
    json_t *all = json_object(), *member;
    for (;;) {
        if (coli__json_next(&members, &member) != COLI_OK) break;
        if (!member) return all;
        const bool again = json_object_update_missing(all, member) != 0 ||
                           json_object_size(all) != members.n_member;
        json_decref(member);
        if (again) break; // two members of one key: their caller's to see
    }
    T_TRUE(member == NULL || json_object_size(all) > 0);
    json_decref(all);
    return NULL;
}

T_PROP(member_by_member_is_the_same_json, 20000)
{
    static const char base[] =
        " {\"a\\\"\":{\"b\":[1,\"}\",{}]},\"\\u0063\" : \",\", \"d\":[] ,\"e\":0} ";
    static const char alphabet[] = "{}[]\",:\\ 0ab\n";
    char text[sizeof base];
    memcpy(text, base, sizeof base);
    for (uint32_t k = t_below(&rng, 4); k > 0; k--)
        text[t_below(&rng, sizeof base - 1)] = alphabet[t_below(&rng, sizeof alphabet - 1)];
    const size_t n = sizeof base - 1 - (t_below(&rng, 4) ? 0 : t_below(&rng, sizeof base - 1));
    char *exact = malloc(n ? n : 1); // so that ASan sees the first byte read too many
    memcpy(exact, text, n);
    json_t *whole, *parts = member_by_member(exact, n);
    if (coli__json_parse("m", exact, n, 8, &whole) == COLI_OK && !json_is_object(whole)) {
        json_decref(whole);
        whole = NULL;
    }
    if ((whole == NULL) != (parts == NULL)) print_error("%.*s\n", (int)n, exact);
    T_EQ(whole == NULL, parts == NULL);
    if (whole) T_TRUE(json_equal(whole, parts));
    json_decref(whole);
    json_decref(parts);
    free(exact);
}

T_TEST(other_shapes_of_json)
{
    T_BEGIN;
    REFUSED("{\"a\":[]}", 0, "dtype");
    REFUSED("{\"a\":1}", 0, "dtype");
    REFUSED("{} x", 0, "f: ");
    REFUSED("{", 0, "header length");
    REFUSED("{,", 0, "f: ");
}

/* Ten thousand damaged headers: an error or not, never a crash, never a view outside. */
T_PROP(a_damaged_header_is_safe, 10000)
{
    bytes b = make(strlen(two), two, strlen(two), 12);
    for (uint32_t i = t_range(&rng, 1, 4); i > 0; i--) {
        static const char alphabet[] = "0123456789[]{}\",:-.eUFI8";
        const uint32_t at = t_below(&rng, (uint32_t)b.n);
        b.data[at] = (uint8_t)t_u64(&rng);
        if (t_below(&rng, 2)) b.data[at] = (uint8_t)alphabet[t_below(&rng, sizeof alphabet - 1)];
    }
    coli__st *st;
    if (coli__st_open_bytes("f", b.data, b.n, &st) == COLI_OK) {
        for (uint32_t i = 0; i < coli__st_count(st); i++) {
            const coli__st_tensor *t = coli__st_at(st, i);
            T_TRUE(t->n_bytes == 0 || (t->data >= b.data && t->data + t->n_bytes <= b.data + b.n));
        }
        coli__st_close(st);
    }
    free(b.data);
}

/* -- elements ---------------------------------------------------------------------------------- */

static void check_elements(coli__dtype dtype, const void *data, uint64_t n, const float *expected)
{
    const coli__st_tensor t = {
        .name = "t", .dtype = dtype, .dtype_name = "", .n_elem = n, .data = data, .file = "f"};
    float out[32];
    T_OK(coli__st_to_f32(&t, 0, n, out));
    T_MEM(out, expected, n * sizeof *out);
    T_OK(coli__st_to_f32(&t, n - 1, 1, out));
    T_MEM(out, expected + n - 1, sizeof *out);
}

T_TEST(elements_of_every_type)
{
    T_BEGIN;
    check_elements(COLI_DT_F16,
                   (const uint16_t[]){0x3c00, 0xc000, 0x0001, 0x8400, 0x7bff, 0x7c00, 0x8000}, 7,
                   (const float[]){1, -2, 0x1p-24f, -0x1p-14f, 65504, INFINITY, -0.0f});
    check_elements(COLI_DT_BF16, (const uint16_t[]){0x3f80, 0xc040, 0x0001}, 3,
                   (const float[]){1, -3, 0x1p-133f});
    check_elements(COLI_DT_U8, (const uint8_t[]){0, 255}, 2, (const float[]){0, 255});
    check_elements(COLI_DT_I8, (const int8_t[]){-128, 127}, 2, (const float[]){-128, 127});
    check_elements(COLI_DT_I32, (const int32_t[]){-7, 1 << 24}, 2, (const float[]){-7, 16777216});
    check_elements(COLI_DT_I64, (const int64_t[]){-7, 1ll << 40}, 2, (const float[]){-7, 0x1p40f});
    check_elements(COLI_DT_F8_E4M3,
                   (const uint8_t[]){0x38, 0x40, 0xb8, 0x01, 0x7e, 0x08, 0x80, 0x87}, 8,
                   (const float[]){1, 2, -1, 0x1p-9f, 448, 0x1p-6f, -0.0f, -7 * 0x1p-9f});
}

T_TEST(fp8_nan)
{
    T_BEGIN;
    const coli__st_tensor t = {
        .name = "t", .dtype = COLI_DT_F8_E4M3, .n_elem = 2, .data = (const uint8_t[]){0x7f, 0xff}};
    float out[2];
    T_OK(coli__st_to_f32(&t, 0, 2, out));
    T_TRUE(isnan(out[0]) && isnan(out[1]));
}

/* -- files ------------------------------------------------------------------------------------- */

static void write_pair(const char *path, const char *a, const char *b)
{
    static const float x[6] = {1, 2, 3, 4, 5, 6};
    static const int32_t y[2] = {-1, 7};
    const coli__st_out out[2] = {{a, COLI_DT_F32, 2, {2, 3}, x}, {b, COLI_DT_I32, 1, {2}, y}};
    T_OK(coli__st_write(path, out, b ? 2 : 1));
}

T_TEST(what_is_written_is_read)
{
    T_BEGIN;
    const char *path = micro_path("pair.safetensors");
    write_pair(path, "x\"\\\xc3\xa9", "y");
    coli__st *st;
    T_OK(coli__st_open(path, &st));
    const coli__st_tensor *x = coli__st_find(st, "x\"\\\xc3\xa9"), *y = coli__st_find(st, "y");
    T_TRUE(x && y);
    T_EQ(x->dtype, COLI_DT_F32);
    T_EQ(x->shape[0] * 10 + x->shape[1], 23);
    T_EQ((uintptr_t)x->data % 8, 0);
    float out[6];
    T_OK(coli__st_to_f32(x, 0, 6, out));
    T_MEM(out, ((const float[]){1, 2, 3, 4, 5, 6}), 24);
    T_OK(coli__st_to_f32(y, 0, 2, out));
    T_MEM(out, ((const float[]){-1, 7}), 8);
    coli__st_close(st);

    const coli__st_out one = {"a", COLI_DT_F32, 1, {1}, "abcd"};
    T_FAILS(coli__st_write(path, &one, 1), COLI_E_EXISTS, path);
    const coli__st_out twice[2] = {one, one};
    T_FAILS(coli__st_write(micro_path("n"), twice, 2), COLI_E_INVALID, "taken");
    const coli__st_out bad_name = {"\xff", COLI_DT_F32, 1, {1}, "abcd"};
    T_FAILS(coli__st_write(micro_path("n"), &bad_name, 1), COLI_E_INVALID, "UTF-8");
    const coli__st_out huge = {"a", COLI_DT_F32, 2, {UINT64_MAX, 5}, "abcd"};
    T_FAILS(coli__st_write(micro_path("n"), &huge, 1), COLI_E_INVALID, "too many");
    const coli__st_out other = {"a", COLI_DT_OTHER, 1, {1}, "abcd"};
    T_FAILS(coli__st_write(micro_path("n"), &other, 1), COLI_E_INVALID, "dtype");
    T_TRUE(!coli__path_exists(micro_path("n")));
}

static coli_status open_dir(const char *dir)
{
    coli__st *st;
    const coli_status status = coli__st_open(dir, &st);
    coli__st_close(st);
    return status;
}

T_TEST(S6_shards)
{
    T_BEGIN;
    const char *dir = micro_path("shards");
    T_FAILS(open_dir(dir), COLI_E_NOTFOUND, dir);
    T_OK(coli__dir_create(dir));
    T_FAILS(open_dir(dir), COLI_E_NOTFOUND, "no .safetensors");
    write_pair(micro_path("shards/a.safetensors"), "a", "b");
    write_pair(micro_path("shards/b.safetensors"), "c", NULL);
    micro_text(micro_path("shards/readme.txt"), "not a shard");
    coli__st *st;
    T_OK(coli__st_open(dir, &st));
    T_EQ(coli__st_count(st), 3);
    T_STR(coli__st_find(st, "c")->file, micro_path("shards/b.safetensors"));
    coli__st_close(st);

    write_pair(micro_path("shards/c.safetensors"), "z", "b");
    T_FAILS(open_dir(dir), COLI_E_FORMAT, "tensor b: is both in");
}

T_TEST(index_file)
{
    T_BEGIN;
    const char *dir = micro_path("index"),
               *index = micro_path("index/model.safetensors.index.json");
    T_OK(coli__dir_create(dir));
    write_pair(micro_path("index/m1.safetensors"), "a", "b");
    write_pair(micro_path("index/m2.safetensors"), "c", NULL);
    static const struct {
        const char *text;
        coli_status status;
        const char *message;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"m1.safetensors\",\"b\":\"m1.safetensors\",\"c\":\"m2."
         "safetensors\"}}",
         COLI_OK, ""},
        {"{\"weight_map\":{\"a\":\"m1.safetensors\"}}", COLI_OK, ""}, // more tensors than declared
        {"{\"weight_map\":{\"a\":\"m1.safetensors\",\"q\":\"m4.safetensors\",\"p\":\"m3."
         "safetensors\"}}",
         COLI_E_NOTFOUND, "declares 3 files, 1 are there; the first missing one is m3.safetensors"},
        {"{\"weight_map\":{\"d\":\"m1.safetensors\"}}", COLI_E_FORMAT,
         "tensor d: expected in m1.safetensors, found in no"},
        {"{\"weight_map\":{\"a\":\"m2.safetensors\"}}", COLI_E_FORMAT,
         "tensor a: expected in m2.safetensors, found in"},
        {"{\"weight_map\":{\"a\":7}}", COLI_E_FORMAT, "expected a file name"},
        {"{\"weight_map\":[]}", COLI_E_FORMAT, "weight_map: expected an object"},
        {"{}", COLI_E_FORMAT, "weight_map: expected an object"},
        {"{\"weight_map\":7}", COLI_E_FORMAT, "weight_map: expected an object"},
        {"{\"weight_map\":}", COLI_E_FORMAT, "weight_map: expected an object"},
        {"{\"weight_map\":{},\"weight_map\":{}}", COLI_E_FORMAT, "duplicate weight_map"},
        {"{\"weight_map\":{} 7}", COLI_E_FORMAT, "expected the end, found 0x37"},
        {"{\"metadata\":{\"total_size\":1}, \"weight_map\" : {\"a\":\"m1.safetensors\"} , "
         "\"x\":[]}",
         COLI_OK, ""},
        {"{\"metadata\":[1,],\"weight_map\":{}}", COLI_E_FORMAT, "member at byte 1: line 1"},
        {"{\"weight_map\":{}}7", COLI_E_FORMAT, "expected the end"},
        {"[]", COLI_E_FORMAT, "index.json: expected an object"},
        {"{\"weight_map\":{\"a\":\"../index/m1.safetensors\"}}", COLI_E_NOTFOUND,
         "1 files, 0 are there"},
        {"{", COLI_E_FORMAT, "index.json"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        micro_text(index, cases[i].text);
        if (cases[i].status == COLI_OK)
            T_OK(open_dir(dir));
        else
            T_FAILS(open_dir(dir), cases[i].status, cases[i].message);
    }
}

T_TEST(not_a_file)
{
    T_BEGIN;
    T_FAILS(open_dir("/dev/null"), COLI_E_IO, "not a regular file");
    micro_text(micro_path("empty.safetensors"), "");
    T_FAILS(open_dir(micro_path("empty.safetensors")), COLI_E_FORMAT, "too few");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_smallest_files),
        cmocka_unit_test(finds_and_converts),
        cmocka_unit_test(S1_shorter_than_a_header_length),
        cmocka_unit_test(S2_header_length),
        cmocka_unit_test(S3_first_byte),
        cmocka_unit_test(S4_every_prefix),
        cmocka_unit_test(S5_duplicate_in_one_header),
        cmocka_unit_test(S6_shards),
        cmocka_unit_test(S7_spans),
        cmocka_unit_test(S8_span_against_shape),
        cmocka_unit_test(S9_product_overflows),
        cmocka_unit_test(S10_unknown_dtype_is_an_error_when_used),
        cmocka_unit_test(S11_rank),
        cmocka_unit_test(S12_numbers_in_the_shape),
        cmocka_unit_test(S13_text),
        cmocka_unit_test(S14_depth),
        cmocka_unit_test(S15_metadata),
        cmocka_unit_test(S16_what_is_too_much),
        cmocka_unit_test(member_by_member_is_the_same_json),
        cmocka_unit_test(other_shapes_of_json),
        cmocka_unit_test(a_damaged_header_is_safe),
        cmocka_unit_test(elements_of_every_type),
        cmocka_unit_test(fp8_nan),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(index_file),
        cmocka_unit_test(not_a_file),
    };
    return cmocka_run_group_tests(tests, micro_setup, micro_teardown);
}
