/* heat_file_test.c - heat on the disk: what is written is read, and whatever else stands there is
 * refused and left alone. */
#include <errno.h>

#include "micro.h"

#include "coli/coli.h"
#include "libcoli/src/moe/heat_file.h"

#define IDENTITY "0123456789abcdef0123456789abcdef"
#define OTHER    "f123456789abcdef0123456789abcdef"

/* Two layers of three: 5 0 1 / 4294967295 7 2, after 300 tokens.  The last 16 bytes are the XXH3-128 of
 * the others, in the order in which it is printed. */
// clang-format off
static const uint8_t worked[104] = {
    0x89, 'H', 'O', 'T', 0x0d, 0x0a, 0x1a, 0x0a, 1, 0, 0, 0, // version
    2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,                      // layers, experts, zero
    0x2c, 1, 0, 0, 0, 0, 0, 0,                               // tokens
    '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
    0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0, 2, 0, 0, 0,
    0x59, 0x24, 0x6a, 0xf7, 0xee, 0xac, 0x17, 0x5e,
    0x23, 0xea, 0x4c, 0xed, 0x0a, 0xca, 0x76, 0x5c};
// clang-format on

static coli__heat_file sample(const char *identity, uint32_t n_layer, uint32_t n_expert)
{
    coli__heat_file f;
    T_OK(coli__heat_file_init(&f, identity, n_layer, n_expert));
    f.n_token = 300;
    static const uint32_t counts[] = {5, 0, 1, UINT32_MAX, 7, 2};
    for (uint32_t i = 0; i < n_layer * n_expert; i++) f.count[i] = counts[i % 6];
    return f;
}

static void write_sample(const char *path, const char *identity, uint32_t n_layer,
                         uint32_t n_expert)
{
    coli__heat_file f = sample(identity, n_layer, n_expert);
    T_OK(coli__heat_file_write(path, &f));
    coli__heat_file_finish(&f);
}

static void expect_bytes(const char *path, const void *bytes, size_t n_bytes)
{
    coli__buf b = micro_read(path);
    T_EQ(b.n_bytes, n_bytes);
    T_MEM(b.data, bytes, n_bytes);
    coli__buf_finish(&b);
}

T_TEST(written_and_read)
{
    T_BEGIN;
    const char *path = micro_path("heat");
    write_sample(path, IDENTITY, 2, 3);
    expect_bytes(path, worked, sizeof worked);
    coli__heat_file f;
    T_OK(coli__heat_file_read(path, &f));
    T_STR(f.identity, IDENTITY);
    T_TRUE(f.n_layer == 2 && f.n_expert == 3 && f.n_token == 300);
    T_TRUE(f.count[0] == 5 && f.count[2] == 1 && f.count[3] == UINT32_MAX && f.count[5] == 2);
    T_OK(coli__heat_file_expect(path, &f, IDENTITY, 2, 3));
    T_FAILS(coli__heat_file_expect(path, &f, OTHER, 2, 3), COLI_E_FORMAT,
            "heat of another model: expected " OTHER ", 2 layers of 3 experts; found " IDENTITY
            ", 2 of 3");
    T_FAILS(coli__heat_file_expect(path, &f, IDENTITY, 4, 3), COLI_E_FORMAT, "expected");
    T_FAILS(coli__heat_file_expect(path, &f, IDENTITY, 2, 4), COLI_E_FORMAT, "expected");
    coli__heat_file_finish(&f);
    coli__heat_file_finish(&f);
    coli__heat_file_finish(NULL);
    T_FAILS(coli__heat_file_read(micro_path("absent"), &f), COLI_E_NOTFOUND, "absent");
    T_FAILS(coli__heat_file_read(micro_path("."), &f), COLI_E_IO, "not a regular file");
    T_FAILS(coli__heat_file_init(&f, "0123", 2, 3), COLI_E_INVALID, "0123");
    T_FAILS(coli__heat_file_init(&f, IDENTITY, 0, 3), COLI_E_INVALID, "0 layers");
    T_FAILS(coli__heat_file_init(&f, IDENTITY, 2, 4097), COLI_E_INVALID, "4097");
}

T_TEST(the_largest_shape_fits)
{
    T_BEGIN;
    const char *path = micro_path("large");
    write_sample(path, IDENTITY, COLI__HEAT_MAX_LAYER, COLI__HEAT_MAX_EXPERT);
    coli__heat_file f;
    T_OK(coli__heat_file_read(path, &f));
    coli__heat_file_finish(&f);
}

/* ---- what is refused ----------------------------------------------------------------------- */

/* In a buffer of exactly its size, so that a sanitizer sees a look past the end. */
static coli_status parse(const uint8_t *bytes, size_t n_bytes)
{
    uint8_t *exact = malloc(n_bytes ? n_bytes : 1);
    coli__heat_file f;
    memcpy(exact, bytes, n_bytes);
    const coli_status status = coli__heat_file_parse("heat", n_bytes ? exact : NULL, n_bytes, &f);
    T_TRUE((status == COLI_OK) == (f.count != NULL));
    coli__heat_file_finish(&f);
    free(exact);
    return status;
}

T_TEST(torn)
{
    T_BEGIN;
    uint8_t longer[sizeof worked + 1] = {0};
    memcpy(longer, worked, sizeof worked);
    for (size_t n = 0; n < sizeof worked; n++) {
        const coli_status status = parse(worked, n);
        T_EQ(status, COLI_E_FORMAT);
    }
    T_OK(parse(worked, sizeof worked));
    T_FAILS(parse(longer, sizeof longer), COLI_E_FORMAT,
            "heat: torn: expected 104 bytes for 2 layers of 3 experts, found 105");
    T_FAILS(parse(worked, 63), COLI_E_FORMAT, "torn: expected at least 64 bytes, found 63");
    T_FAILS(parse(worked, 0), COLI_E_FORMAT, "found nothing");
}

T_TEST(every_flipped_bit_is_seen)
{
    T_BEGIN;
    for (size_t bit = 0; bit < 8 * sizeof worked; bit++) {
        uint8_t bytes[sizeof worked];
        memcpy(bytes, worked, sizeof worked);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        T_TRUE(parse(bytes, sizeof bytes) != COLI_OK);
    }
}

typedef struct change {
    size_t at;
    const char *bytes;
    size_t n_bytes;
    coli_status status;
    const char *text;
} change;

T_TEST(foreign)
{
    T_BEGIN;
    static const change changes[] = {
        {0, "\x31\x48\x54\x51", 4, COLI_E_FORMAT, "older format, which names no model"},
        {0, "\x51\x54\x48\x31", 4, COLI_E_FORMAT, "written on a big-endian machine"},
        {0, "-1 2 3\n\x1b", 8, COLI_E_FORMAT, "found 2d 31 20 32 20 33 0a 1b"},
        {8, "\x02", 1, COLI_E_UNSUPPORTED, "version 2; expected 1"},
        {12, "\0\0\0\0", 4, COLI_E_FORMAT, "found 0 of 3"},
        {12, "\xff\xff\xff\xff", 4, COLI_E_FORMAT, "found 4294967295 of 3"},
        {16, "\0\x20\0\0", 4, COLI_E_FORMAT, "found 2 of 8192"},
        {16, "\0\x10\0\0", 4, COLI_E_FORMAT, "expected 32848 bytes"},
        {64, "\6", 1, COLI_E_FORMAT, "damaged: its bytes have the checksum"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        uint8_t bytes[sizeof worked];
        memcpy(bytes, worked, sizeof worked);
        memcpy(bytes + changes[i].at, changes[i].bytes, changes[i].n_bytes);
        T_FAILS(parse(bytes, sizeof bytes), changes[i].status, changes[i].text);
    }
}

/* Writing over what is no heat of this model, by any name. */
T_TEST(what_is_there_is_left_alone)
{
    T_BEGIN;
    const char *path = micro_path("somebodys");
    coli__heat_file f = sample(IDENTITY, 2, 3);
    micro_text(path, "a letter");
    T_FAILS(coli__heat_file_write(path, &f), COLI_E_FORMAT, "heat is not written: ");
    expect_bytes(path, "a letter", 8);
    micro_file(path, worked, 100);
    T_FAILS(coli__heat_file_write(path, &f), COLI_E_FORMAT, "torn");
    T_FAILS(coli_heat_reset(path), COLI_E_FORMAT, "torn");
    expect_bytes(path, worked, 100);
    micro_text(path, "");
    T_FAILS(coli__heat_file_write(path, &f), COLI_E_FORMAT, "found nothing");
    expect_bytes(path, "", 0);
    micro_file(path, worked, sizeof worked);
    coli__heat_file other = sample(OTHER, 2, 3), wide = sample(IDENTITY, 1, 6);
    T_FAILS(coli__heat_file_write(path, &other), COLI_E_FORMAT, "another model");
    T_FAILS(coli__heat_file_write(path, &wide), COLI_E_FORMAT, "expected " IDENTITY ", 1 layers");
    expect_bytes(path, worked, sizeof worked);
    f.count[1] = 9;
    T_OK(coli__heat_file_write(path, &f));
    coli__heat_file_finish(&f);
    T_OK(coli__heat_file_read(path, &f));
    T_EQ(f.count[1], 9);
    T_FAILS(coli__heat_file_write(micro_path("."), &f), COLI_E_IO, "not a regular file");
    coli__heat_file_finish(&f);
    coli__heat_file_finish(&other);
    coli__heat_file_finish(&wide);
}

static int no_replace(const char *from, const char *to)
{
    (void)from, (void)to;
    errno = EIO;
    return -1;
}

T_TEST(failures_leave_the_old_file)
{
    T_BEGIN;
    const char *path = micro_path("old");
    write_sample(path, IDENTITY, 2, 3);
    coli__heat_file f = sample(IDENTITY, 2, 3);
    f.n_token = 301;
    const coli__sys real = coli__sys_calls;
    coli__sys_calls.replace = no_replace;
    T_FAILS(coli__heat_file_write(path, &f), COLI_E_IO, "cannot be renamed");
    coli__sys_calls = real;
    expect_bytes(path, worked, sizeof worked);
    for (uint64_t nth = 1;; nth++) {
        coli__alloc_fail_at(nth);
        const coli_status status = coli__heat_file_write(path, &f);
        coli__alloc_fail_at(0);
        if (status == COLI_OK) break;
        T_EQ(status, COLI_E_NOMEM);
        expect_bytes(path, worked, sizeof worked);
    }
    for (uint64_t nth = 1;; nth++) {
        coli_heat *heat;
        coli__alloc_fail_at(nth);
        const coli_status status = coli_heat_open(path, &heat);
        coli__alloc_fail_at(0);
        T_TRUE((status == COLI_OK) == (heat != NULL));
        coli_heat_close(heat);
        if (status == COLI_OK) break;
        T_EQ(status, COLI_E_NOMEM);
    }
    coli__heat_file_finish(&f);
}

/* ---- merge, reset, import ------------------------------------------------------------------ */

static coli_heat_info info_of(const char *path, coli_heat **heat)
{
    coli_heat_info info = {.struct_size = sizeof info};
    T_OK(coli_heat_open(path, heat));
    T_OK(coli_heat_get_info(*heat, &info));
    return info;
}

T_TEST(merges)
{
    T_BEGIN;
    const char *a = micro_path("a"), *b = micro_path("b"), *out = micro_path("sum");
    write_sample(a, IDENTITY, 2, 3);
    write_sample(b, IDENTITY, 2, 3);
    T_OK(coli_heat_merge(out, (const char *const[]){a, b}, 2));
    expect_bytes(a, worked, sizeof worked);
    coli_heat *heat;
    coli_heat_info info = info_of(out, &heat);
    static const uint32_t sum[] = {10, 0, 2, UINT32_MAX, 14, 4};
    T_MEM(info.counts, sum, sizeof sum);
    T_TRUE(info.n_token == 600 && info.n_layer == 2 && info.n_expert == 3);
    T_STR(info.identity, IDENTITY);
    coli_heat_close(heat);

    T_FAILS(coli_heat_merge(out, (const char *const[]){a, b}, 2), COLI_E_EXISTS, "name it as one");
    T_OK(coli_heat_merge(out, (const char *const[]){out, a, a}, 3));
    info = info_of(out, &heat);
    T_TRUE(info.n_token == 1200 && info.counts[0] == 20);
    coli_heat_close(heat);

    coli__buf before = micro_read(out);
    write_sample(micro_path("foreign"), OTHER, 2, 3);
    T_FAILS(coli_heat_merge(out, (const char *const[]){out, micro_path("foreign")}, 2),
            COLI_E_FORMAT, "foreign: heat of another model: expected " IDENTITY);
    T_FAILS(coli_heat_merge(micro_path("new"), (const char *const[]){a, micro_path("none")}, 2),
            COLI_E_NOTFOUND, "none");
    T_TRUE(!coli__path_exists(micro_path("new")));
    expect_bytes(out, before.data, before.n_bytes);
    coli__buf_finish(&before);
    T_FAILS(coli_heat_merge(out, NULL, 0), COLI_E_INVALID, "at least one");
}

T_TEST(tokens_saturate)
{
    T_BEGIN;
    coli__heat_file a = sample(IDENTITY, 1, 1), b = sample(IDENTITY, 1, 1);
    a.n_token = UINT64_MAX - 299;
    coli__heat_file_add(&a, &b);
    T_TRUE(a.n_token == UINT64_MAX && a.count[0] == 10);
    coli__heat_file_finish(&a);
    coli__heat_file_finish(&b);
}

T_TEST(resets)
{
    T_BEGIN;
    const char *path = micro_path("reset");
    write_sample(path, IDENTITY, 2, 3);
    T_OK(coli_heat_reset(path));
    coli_heat *heat;
    const coli_heat_info info = info_of(path, &heat);
    static const uint32_t zero[6];
    T_MEM(info.counts, zero, sizeof zero);
    T_TRUE(info.n_token == 0);
    T_STR(info.identity, IDENTITY);
    coli_heat_close(heat);
    T_FAILS(coli_heat_reset(micro_path("absent")), COLI_E_NOTFOUND, "absent");
}

/* The older format: the case worked in its description, and the demo model's shape. */
T_TEST(imports_the_older_format)
{
    T_BEGIN;
    static const uint8_t old[36] = {0x31, 0x48, 0x54, 0x51, 2, 0, 0, 0, 3, 0, 0, 0,
                                    5,    0,    0,    0,    0, 0, 0, 0, 1, 0, 0, 0,
                                    0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0, 2, 0, 0, 0};
    const char *path = micro_path("old-format"), *out = micro_path("imported");
    coli__heat_file f, expected = sample(IDENTITY, 2, 3);
    T_OK(coli__heat_file_init(&f, IDENTITY, 2, 3));
    for (size_t n = 0; n < sizeof old; n++) {
        micro_file(path, old, n);
        T_EQ(coli__heat_file_import(path, &f), COLI_E_FORMAT);
    }
    micro_file(path, old, sizeof old);
    T_OK(coli__heat_file_import(path, &f));
    T_MEM(f.count, expected.count, 6 * sizeof *f.count);
    T_EQ(f.n_token, 0);
    coli__heat_file_finish(&expected);
    coli__heat_file_finish(&f);

    static const char model[] = TEST_MODELS "/hummingbird";
    T_FAILS(coli_heat_import(out, path, model), COLI_E_FORMAT, "as the model has; found 2 of 3");
    T_FAILS(coli_heat_import(out, micro_path("x"), model), COLI_E_NOTFOUND, "x");
    T_FAILS(coli_heat_import(out, path, micro_path("no-model")), COLI_E_NOTFOUND, "no-model");
    T_FAILS(coli_heat_import(path, path, model), COLI_E_EXISTS, "already exists");
    T_TRUE(!coli__path_exists(out));
    coli__container *c;
    T_OK(coli__container_open(model, &c));
    const uint32_t n_layer = coli__container_n_expert_layer(c);
    const uint32_t n_expert = coli__container_experts(c, 0)->n_expert, n = n_layer * n_expert;
    uint8_t *bytes = calloc(12 + 4 * n, 1);
    memcpy(bytes, old, 4);
    bytes[4] = (uint8_t)n_layer;
    bytes[8] = (uint8_t)n_expert;
    for (uint32_t i = 0; i < n; i++) bytes[12 + 4 * i] = (uint8_t)i;
    micro_file(path, bytes, 12 + 4 * n);
    free(bytes);
    T_OK(coli_heat_import(out, path, model));
    coli_heat *heat;
    const coli_heat_info info = info_of(out, &heat);
    T_STR(info.identity, coli__container_identity(c));
    for (uint32_t i = 0; i < n; i++) T_EQ(info.counts[i], i & 255);
    coli_heat_close(heat);
    coli__container_close(c);
}

T_TEST(null_arguments)
{
    T_BEGIN;
    coli_heat *heat;
    coli_heat_info info = {.struct_size = sizeof info};
    T_FAILS(coli_heat_open(NULL, &heat), COLI_E_INVALID, "NULL");
    T_FAILS(coli_heat_open("x", NULL), COLI_E_INVALID, "NULL");
    T_FAILS(coli_heat_get_info(NULL, &info), COLI_E_INVALID, "NULL");
    T_FAILS(coli_heat_get_info(NULL, NULL), COLI_E_INVALID, "NULL");
    T_FAILS(coli_heat_merge(NULL, NULL, 1), COLI_E_INVALID, "expected out");
    T_FAILS(coli_heat_merge("x", (const char *const[]){NULL}, 1), COLI_E_INVALID, "NULL");
    T_FAILS(coli_heat_reset(NULL), COLI_E_INVALID, "NULL");
    T_FAILS(coli_heat_import(NULL, "x", "y"), COLI_E_INVALID, "NULL");
    coli_heat_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_and_read),
        cmocka_unit_test(the_largest_shape_fits),
        cmocka_unit_test(torn),
        cmocka_unit_test(every_flipped_bit_is_seen),
        cmocka_unit_test(foreign),
        cmocka_unit_test(what_is_there_is_left_alone),
        cmocka_unit_test(failures_leave_the_old_file),
        cmocka_unit_test(merges),
        cmocka_unit_test(tokens_saturate),
        cmocka_unit_test(resets),
        cmocka_unit_test(imports_the_older_format),
        cmocka_unit_test(null_arguments),
    };
    return cmocka_run_group_tests(tests, micro_setup, micro_teardown);
}
