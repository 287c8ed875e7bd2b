/* pack_test.c - a container as one file: there and back, the same bytes, and packs that nobody should
 * believe: torn at every length, a byte changed, names that lead elsewhere, sizes that lie. */
#include <unistd.h>
#include <xxhash.h>

#include "world.h"

#include "engines/engine.h"
#include "libcoli/src/model/container_format.h"
#include "libcoli/src/model/convert.h"
#include "libcoli/src/model/tar.h"

static const char *const names[] = {"config.json",    "generation_config.json",
                                    "tokenizer.json", "tokenizer_config.json",
                                    "chat.json",      "model.coli"};
enum { N_NAME = sizeof names / sizeof *names };

static char *in_scratch(const char *name) // free()
{
    return world_path(world_scratch(), name);
}

static coli__buf read_all(const char *path)
{
    coli__buf bytes = {0};
    T_OK(coli__file_read(path, 64 << 20, &bytes));
    return bytes;
}

static void write_all(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    T_EQ(fwrite(bytes, 1, n, file), n);
    T_EQ(fclose(file), 0);
}

/* A small container, and a pack of it. */
static char *small_model(void)
{
    char *out = in_scratch("small");
    const coli_synth_opts o = {.struct_size = sizeof o,
                               .like = "hummingbird",
                               .n_layer = 4,
                               .d_model = 64,
                               .d_ff = 16,
                               .n_expert = 4,
                               .n_expert_used = 2,
                               .n_vocab = 32};
    if (!coli__path_exists(out)) T_OK(coli_synth(out, &o));
    return out;
}

static coli__buf small_pack(void)
{
    char *dir = small_model(), *file = in_scratch("small.tar");
    if (!coli__path_exists(file)) T_OK(coli_pack(dir, file, NULL, NULL));
    coli__buf bytes = read_all(file);
    free(dir);
    free(file);
    return bytes;
}

/* -- there and back ---------------------------------------------------------------------------- */

static void expect_equal_files(const char *a, const char *b)
{
    for (size_t i = 0; i < N_NAME; i++) {
        char *in_a = world_path(a, names[i]), *in_b = world_path(b, names[i]);
        T_EQ(coli__path_exists(in_a), coli__path_exists(in_b));
        if (coli__path_exists(in_a)) {
            coli__buf x = read_all(in_a), y = read_all(in_b);
            T_EQ(x.n_bytes, y.n_bytes);
            T_MEM(x.data, y.data, x.n_bytes);
            coli__buf_finish(&x);
            coli__buf_finish(&y);
        }
        free(in_a);
        free(in_b);
    }
}

T_TEST(there_and_back)
{
    T_BEGIN;
    static const char *const demo = TEST_MODELS "/hummingbird";
    char *file = in_scratch("demo.tar"), *again = in_scratch("demo-again.tar"),
         *dir = in_scratch("hummingbird"), *partial = in_scratch("hummingbird.partial");
    T_OK(coli_pack(demo, file, NULL, NULL));
    T_OK(coli_pack_verify(file, NULL, NULL));
    T_OK(coli_unpack(file, dir, NULL, NULL));
    expect_equal_files(demo, dir);
    T_OK(coli_verify(dir, NULL, NULL));
    T_TRUE(!coli__path_exists(partial));
    T_OK(coli_pack(dir, again, NULL, NULL)); // of the same name: the same bytes
    coli__buf a = read_all(file), b = read_all(again);
    T_EQ(a.n_bytes, b.n_bytes);
    T_MEM(a.data, b.data, a.n_bytes);
    T_STR(a.data, "hummingbird/config.json");
    coli__buf_finish(&a);
    coli__buf_finish(&b);
    // nothing is overwritten
    T_FAILS(coli_pack(demo, file, NULL, NULL), COLI_E_EXISTS, "demo.tar: already exists");
    T_FAILS(coli_unpack(file, dir, NULL, NULL), COLI_E_EXISTS, "hummingbird: already exists");
    T_FAILS(coli_pack_verify("/nonexistent", NULL, NULL), COLI_E_NOTFOUND, "/nonexistent");
    T_FAILS(coli_pack("/nonexistent", again, NULL, NULL), COLI_E_EXISTS, "");
    T_FAILS(coli_pack(NULL, again, NULL, NULL), COLI_E_INVALID, "NULL");
    T_FAILS(coli_unpack(file, NULL, NULL, NULL), COLI_E_INVALID, "NULL");
    T_FAILS(coli_pack_verify(NULL, NULL, NULL), COLI_E_INVALID, "NULL");
    coli__dir_remove(dir);
    free(file);
    free(again);
    free(dir);
    free(partial);
}

/* A directory's name that other systems could not have, or that would hide the files. */
T_TEST(odd_names_become_model)
{
    T_BEGIN;
    static const char *const odd[] = {
        "with blank", ".hidden", "ae\xCC\x88", "x:y",
        "a-name-of-sixty-one-bytes-which-is-one-more-than-may-stand-it"};
    char *model = small_model(), *file = in_scratch("odd.tar");
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        char *dir = in_scratch(odd[i]);
        T_OK(coli__path_rename(model, dir));
        T_OK(coli_pack(dir, file, NULL, NULL));
        coli__buf bytes = read_all(file);
        T_STR(bytes.data, "model/config.json");
        T_OK(coli_pack_verify(file, NULL, NULL));
        coli__buf_finish(&bytes);
        coli__file_remove(file);
        T_OK(coli__path_rename(dir, model));
        free(dir);
    }
    free(model);
    free(file);
}

T_TEST(a_broken_container_is_not_packed)
{
    T_BEGIN;
    char *model = small_model(), *path = world_path(model, "model.coli"),
         *file = in_scratch("broken.tar");
    coli__buf bytes = read_all(path);
    bytes.data[bytes.n_bytes - 1] ^= 1;
    write_all(path, bytes.data, bytes.n_bytes);
    T_FAILS(coli_pack(model, file, NULL, NULL), COLI_E_FORMAT, "checksum");
    T_TRUE(!coli__path_exists(file));
    bytes.data[bytes.n_bytes - 1] ^= 1;
    write_all(path, bytes.data, bytes.n_bytes);
    coli__buf_finish(&bytes);
    free(model);
    free(path);
    free(file);
}

static bool stop_at(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    T_LE(done, total);
    return (*(int *)user)-- > 0;
}

/* Stopped at any step, nothing is left, and the next attempt works. */
T_TEST(stopping_leaves_nothing)
{
    T_BEGIN;
    char *model = small_model(), *file = in_scratch("stop.tar"), *dir = in_scratch("stop");
    char *file_partial = in_scratch("stop.tar.partial"), *dir_partial = in_scratch("stop.partial");
    int n_pack = 0, n_unpack = 0;
    for (;; n_pack++) {
        int left = n_pack;
        if (coli_pack(model, file, stop_at, &left) == COLI_OK) break;
        T_TRUE(strstr(coli_error_message(), "stopped") != NULL);
        T_TRUE(!coli__path_exists(file) && !coli__path_exists(file_partial));
    }
    for (;; n_unpack++) {
        int left = n_unpack;
        if (coli_unpack(file, dir, stop_at, &left) == COLI_OK) break;
        T_TRUE(strstr(coli_error_message(), "stopped") != NULL);
        T_TRUE(!coli__path_exists(dir) && !coli__path_exists(dir_partial));
    }
    T_GE(n_pack, 10);
    T_GE(n_unpack, 5);
    // what somebody else is writing stays
    coli__dir_remove(dir);
    T_OK(coli__dir_create(dir_partial));
    T_FAILS(coli_unpack(file, dir, NULL, NULL), COLI_E_EXISTS,
            "stop.partial: already exists; another");
    T_TRUE(coli__path_exists(dir_partial));
    coli__dir_remove(dir_partial);
    free(model);
    free(file);
    free(dir);
    free(file_partial);
    free(dir_partial);
}

/* -- packs that nobody should believe ------------------------------------------------------------ */

/* Refused by both, and nothing is left of it. */
static void expect_refused_at(uint32_t every, const void *bytes, size_t n, coli_status status,
                              const char *message)
{
    char *file = in_scratch("hostile.tar"), *dir = in_scratch("hostile"),
         *partial = in_scratch("hostile.partial");
    write_all(file, bytes, n);
    const coli_status found = coli_pack_verify(file, NULL, NULL);
    if ((status ? found != status : found == COLI_OK) || !strstr(coli_error_message(), message))
        fail_msg("%s \"%s\" against %s \"...%s...\"", coli_status_name(found), coli_error_message(),
                 coli_status_name(status), message);
    static uint32_t n_call; // of thousands a few are enough
    if (n_call++ % every == 0) T_EQ(coli_unpack(file, dir, NULL, NULL), found);
    T_TRUE(!coli__path_exists(dir) && !coli__path_exists(partial));
    free(file);
    free(dir);
    free(partial);
}

static void expect_refused(const void *bytes, size_t n, coli_status status, const char *message)
{
    expect_refused_at(1, bytes, n, status, message);
}

T_TEST(torn_at_any_length)
{
    T_BEGIN;
    coli__buf pack = small_pack();
    t_rng rng = {7};
    for (size_t n = 0; n < pack.n_bytes; n += n < 2600 ? 1 : 1 + t_below(&rng, 3000))
        expect_refused_at(50, pack.data, n, COLI_E_FORMAT, "hostile.tar: ");
    for (size_t n = pack.n_bytes - 2100; n < pack.n_bytes; n += 3)
        expect_refused_at(50, pack.data, n, COLI_E_FORMAT, "hostile.tar: ");
    // and longer than it was: zeros may follow, as tar writes them, but nothing else
    char *longer = calloc(pack.n_bytes + 1024, 1), *file = in_scratch("longer.tar");
    memcpy(longer, pack.data, pack.n_bytes);
    write_all(file, longer, pack.n_bytes + 1024);
    T_OK(coli_pack_verify(file, NULL, NULL));
    longer[pack.n_bytes + 500] = 1;
    expect_refused(longer, pack.n_bytes + 1024, COLI_E_FORMAT, "behind the end");
    free(longer);
    free(file);
    coli__buf_finish(&pack);
}

/* There is no byte that nobody looks at. */
T_TEST(no_byte_may_change)
{
    T_BEGIN;
    coli__buf pack = small_pack();
    t_rng rng = {8};
    for (size_t at = 0; at < pack.n_bytes; at += at < 1024 ? 1 : 1 + t_below(&rng, 900)) {
        const char bit = (char)(1 << t_below(&rng, 8));
        pack.data[at] ^= bit;
        expect_refused_at(50, pack.data, pack.n_bytes, COLI_OK, "hostile.tar: ");
        pack.data[at] ^= bit;
    }
    coli__buf_finish(&pack);
}

/* An archive as another program would write it: heads by hand. */
static void put(coli__buf *tar, const char *name, char kind, const char *size, const void *data,
                size_t n)
{
    char h[512] = {0}, number[16];
    snprintf(h, 100, "%s", name);
    memcpy(h + 100, "0000644\0000001750\0000001750", 24);
    if (size)
        memcpy(h + 124, size, 12);
    else
        snprintf(h + 124, 12, "%011zo", n);
    memcpy(h + 136, "14700000000", 12);
    h[156] = kind;
    memcpy(h + 257, "ustar\00000", 8);
    memcpy(h + 265, "somebody", 8);
    memset(h + 148, ' ', 8);
    unsigned sum = 0;
    for (int i = 0; i < 512; i++) sum += (unsigned char)h[i];
    snprintf(number, sizeof number, "%06o", sum);
    memcpy(h + 148, number, 7);
    T_OK(coli__buf_append(tar, h, 512));
    if (n) T_OK(coli__buf_append(tar, data, n));
    static const char zero[512];
    T_OK(coli__buf_append(tar, zero, (512 - n % 512) % 512));
}

static void put_end(coli__buf *tar)
{
    static const char zero[1024];
    T_OK(coli__buf_append(tar, zero, sizeof zero));
}

/* A whole pack of the small container, but for what `change` does: before the checksums, or instead of
 * them. */
typedef struct change {
    const char *name; // of an entry to add; NULL: none
    char kind;
    const char *size; // its field; NULL: the true one
    const char *data;
    bool at_end;          // behind the checksums
    const char *left_out; // a file
    const char *sums;     // instead of the lines
    const char *dir;      // of the first file; NULL: as the others
    coli_status status;
    const char *message;
} change;

static void put_model(coli__buf *tar, const char *model, const change *c)
{
    char name[128];
    coli__buf sums = {0};
    if (c->name && !c->at_end)
        put(tar, c->name, c->kind, c->size, c->data, c->data ? strlen(c->data) : 0);
    for (size_t i = 0; i < N_NAME; i++) {
        char *path = world_path(model, names[i]);
        const bool skip =
            !coli__path_exists(path) || (c->left_out && strcmp(c->left_out, names[i]) == 0);
        if (!skip) {
            coli__buf bytes = read_all(path);
            snprintf(name, sizeof name, "%s/%s", i == 0 && c->dir ? c->dir : "small", names[i]);
            put(tar, name, '0', NULL, bytes.data, bytes.n_bytes);
            coli__digest d;
            T_OK(coli__buf_printf(&sums, "%s  %s\n",
                                  (d = coli__digest_of(bytes.data, bytes.n_bytes)).hex, names[i]));
            coli__buf_finish(&bytes);
        }
        free(path);
    }
    const char *lines = c->sums ? c->sums : sums.data;
    if (!c->left_out || strcmp(c->left_out, "sums") != 0)
        put(tar, "small/coli-pack.xxh128", '0', NULL, lines, strlen(lines));
    if (c->name && c->at_end)
        put(tar, c->name, c->kind, c->size, c->data, c->data ? strlen(c->data) : 0);
    put_end(tar);
    coli__buf_finish(&sums);
}

static void put_small(coli__buf *tar, const change *c)
{
    char *model = small_model();
    put_model(tar, model, c);
    free(model);
}

T_TEST(another_writer_is_believed)
{
    T_BEGIN;
    coli__buf tar = {0};
    const change none = {0};
    put_small(&tar, &none);
    char *file = in_scratch("other.tar"), *dir = in_scratch("other"), *model = small_model();
    write_all(file, tar.data, tar.n_bytes);
    T_OK(coli_pack_verify(file, NULL, NULL));
    T_OK(coli_unpack(file, dir, NULL, NULL));
    expect_equal_files(model, dir);
    coli__dir_remove(dir);
    coli__buf_finish(&tar);
    free(file);
    free(dir);
    free(model);
}

T_TEST(lies_are_refused)
{
    T_BEGIN;
    static const change cases[] = {
        // names that lead elsewhere, and files that are no part of a container
        {.name = "../config.json", .kind = '0', .status = COLI_E_FORMAT, .message = "no file of a"},
        {.name = "/etc/passwd", .kind = '0', .status = COLI_E_FORMAT, .message = "no file of a"},
        {.name = "small/../../x", .kind = '0', .status = COLI_E_FORMAT, .message = "no file of a"},
        {.name = "small/sub/config.json",
         .kind = '0',
         .status = COLI_E_FORMAT,
         .message = "no file"},
        {.name = "small\\config.json", .kind = '0', .status = COLI_E_FORMAT, .message = "no file"},
        {.name = "small/.bashrc", .kind = '0', .status = COLI_E_FORMAT, .message = ".bashrc"},
        {.name = "config.json", .kind = '0', .status = COLI_E_FORMAT, .message = "no file of a"},
        {.name = "", .kind = '0', .status = COLI_E_FORMAT, .message = "no file of a"},
        {.dir = "other", .status = COLI_E_FORMAT, .message = "small/"},
        {.dir = "..", .status = COLI_E_FORMAT, .message = "../config.json"},
        // what is no file
        {.name = "small", .kind = '5', .status = COLI_E_UNSUPPORTED, .message = "a directory"},
        {.name = "small/config.json",
         .kind = '1',
         .status = COLI_E_UNSUPPORTED,
         .message = "hard link"},
        {.name = "small/config.json",
         .kind = '2',
         .status = COLI_E_UNSUPPORTED,
         .message = "symbolic"},
        {.name = "small/config.json",
         .kind = '3',
         .status = COLI_E_UNSUPPORTED,
         .message = "a device"},
        {.name = "small/config.json",
         .kind = '6',
         .status = COLI_E_UNSUPPORTED,
         .message = "a pipe"},
        {.name = "x", .kind = 'L', .status = COLI_E_UNSUPPORTED, .message = "long name"},
        {.name = "x", .kind = 'S', .status = COLI_E_UNSUPPORTED, .message = "sparse"},
        {.name = "x", .kind = 'g', .status = COLI_E_UNSUPPORTED, .message = "global"},
        {.name = "x", .kind = 'V', .status = COLI_E_UNSUPPORTED, .message = "something else"},
        // pax headers
        {.name = "x", .kind = 'x', .status = COLI_E_UNSUPPORTED, .message = "more than a size"},
        {.name = "x",
         .kind = 'x',
         .data = "19 path=../../evil\n",
         .status = COLI_E_UNSUPPORTED,
         .message = "with a size alone"},
        {.name = "x",
         .kind = 'x',
         .data = "11 size=-1\n",
         .status = COLI_E_UNSUPPORTED,
         .message = "with a size alone"},
        {.name = "x",
         .kind = 'x',
         .data = "29 size=18446744073709551616\n",
         .status = COLI_E_UNSUPPORTED,
         .message = "with a size alone"},
        {.name = "x",
         .kind = 'x',
         .data = "29 size=18446744073709551615\n",
         .status = COLI_E_FORMAT,
         .message = "expected 18446744073709551615 bytes"},
        {.name = "x",
         .kind = 'x',
         .data = "29 size=18446744073709551104\n",
         .status = COLI_E_FORMAT,
         .message = "expected 18446744073709551104 bytes"},
        // sizes that lie
        {.name = "small/config.json",
         .kind = '0',
         .size = "77777777777",
         .status = COLI_E_FORMAT,
         .message = "expected 8589934591 bytes"},
        {.name = "small/config.json",
         .kind = '0',
         .size = "\x80\0\0\0\0\0\0\0\0\0\0\1",
         .status = COLI_E_FORMAT,
         .message = "no octal number"},
        {.name = "small/config.json",
         .kind = '0',
         .size = "-1         ",
         .status = COLI_E_FORMAT,
         .message = "no octal number"},
        {.name = "small/config.json",
         .kind = '0',
         .size = "           ",
         .status = COLI_E_FORMAT,
         .message = "no octal number"},
        // twice, missing, out of place
        {.name = "small/chat.json",
         .kind = '0',
         .data = "{}",
         .status = COLI_E_FORMAT,
         .message = "small/chat.json: is there twice"},
        {.name = "small/chat.json",
         .kind = '0',
         .data = "{}",
         .at_end = true,
         .left_out = "chat.json",
         .status = COLI_E_FORMAT,
         .message = "behind the checksums"},
        {.left_out = "config.json", .status = COLI_E_FORMAT, .message = "config.json is missing"},
        {.left_out = "chat.json", .status = COLI_E_FORMAT, .message = "chat.json is missing"},
        {.left_out = "model.coli", .status = COLI_E_FORMAT, .message = "model.coli is missing"},
        {.left_out = "sums", .status = COLI_E_FORMAT, .message = "coli-pack.xxh128 is missing"},
        {.name = "small/tokenizer.json",
         .kind = '0',
         .data = "{}",
         .status = COLI_E_FORMAT,
         .message = "has no checksum of tokenizer.json"},
        // checksums
        {.sums = "", .status = COLI_E_FORMAT, .message = "has no checksum of config.json"},
        {.sums = "x\n", .status = COLI_E_FORMAT, .message = "line 1"},
        {.sums = "0123456789abcdef0123456789abcdef  ../x\n",
         .status = COLI_E_FORMAT,
         .message = "line 1"},
        {.sums = "0123456789ABCDEF0123456789abcdef  config.json\n",
         .status = COLI_E_FORMAT,
         .message = "line 1"},
        {.sums = "0123456789abcdef0123456789abcdef  config.json",
         .status = COLI_E_FORMAT,
         .message = "line 1"},
        {.sums = "0123456789abcdef0123456789abcdef  config.json\n"
                 "0123456789abcdef0123456789abcdef  config.json\n",
         .status = COLI_E_FORMAT,
         .message = "line 2"},
        {.sums = "0123456789abcdef0123456789abcdef  tokenizer.json\n",
         .status = COLI_E_FORMAT,
         .message = "line 1"},
        {.sums = "0123456789abcdef0123456789abcdef  config.json\n"
                 "0123456789abcdef0123456789abcdef  generation_config.json\n"
                 "0123456789abcdef0123456789abcdef  chat.json\n"
                 "0123456789abcdef0123456789abcdef  model.coli\n",
         .status = COLI_E_FORMAT,
         .message = "not the file the weights were made with"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli__buf tar = {0};
        put_small(&tar, &cases[i]);
        expect_refused(tar.data, tar.n_bytes, cases[i].status, cases[i].message);
        coli__buf_finish(&tar);
    }
}

/* The checksums may be right and the files not belong together. */
T_TEST(parts_of_different_models)
{
    T_BEGIN;
    char *model = small_model(), *path = world_path(model, "config.json");
    coli__buf config = read_all(path), other = {0}, tar = {0};
    T_OK(coli__buf_append(&other, config.data, config.n_bytes));
    T_OK(coli__buf_str(&other, " "));
    write_all(path, other.data, other.n_bytes);
    const change none = {0};
    put_small(&tar, &none);
    write_all(path, config.data, config.n_bytes);
    expect_refused(tar.data, tar.n_bytes, COLI_E_FORMAT, "not the file the weights were made with");
    coli__buf_finish(&tar);
    coli__buf_finish(&other);
    coli__buf_finish(&config);
    free(path);
    free(model);
}

static void replace_digest(uint8_t *head, const char *from, const char *to)
{
    char *at = strstr((char *)head + CT_FIXED_BYTES, from);
    assert_non_null(at);
    memcpy(at, to, 32);
}

/* The first scales of the first quantised matrix become what no number is; every checksum follows. */
static void spoil_scales(coli__buf *model)
{
    uint8_t *bytes = coli__alloc64(model->n_bytes);
    memcpy(bytes, model->data, model->n_bytes);
    coli__ct_table t;
    T_OK(coli__ct_parse("x", bytes, model->n_bytes, &t));
    uint32_t i = 0;
    while (t.entries[i].tensor.mat.fmt.type < COLI_W_I8) i++;
    coli__ct_entry *e = &t.entries[i];
    const coli__digest before = e->digest, identity = t.identity;
    memset(bytes + e->offset, 0xFF, 4);
    e->digest = coli__digest_of(bytes + e->offset, e->tensor.n_bytes);
    T_OK(coli__ct_identity(&t, &t.identity));
    replace_digest(bytes, before.hex, e->digest.hex);
    replace_digest(bytes, identity.hex, t.identity.hex);
    XXH128_canonical_t seal;
    XXH128_canonicalFromHash(&seal, XXH3_128bits(bytes, t.data_offset - CT_CHECKSUM_BYTES));
    memcpy(bytes + t.data_offset - CT_CHECKSUM_BYTES, seal.digest, CT_CHECKSUM_BYTES);
    coli__ct_table_finish(&t);
    memcpy(model->data, bytes, model->n_bytes);
    coli__free_aligned(bytes);
}

static void spoil_weight(coli__buf *model)
{
    model->data[model->n_bytes - 1] ^= 1;
}

/* Its lines are right, whoever wrote them, and the container in it is not. */
T_TEST(a_sound_pack_of_a_broken_container)
{
    T_BEGIN;
    static const struct {
        void (*spoil)(coli__buf *model);
        const char *message;
    } cases[] = {{spoil_weight, "expected checksum"}, {spoil_scales, "scale"}};
    char *model = small_model(), *path = world_path(model, "model.coli");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli__buf right = read_all(path), wrong = read_all(path), tar = {0};
        cases[i].spoil(&wrong);
        write_all(path, wrong.data, wrong.n_bytes);
        const change none = {0};
        put_small(&tar, &none);
        write_all(path, right.data, right.n_bytes);
        expect_refused(tar.data, tar.n_bytes, COLI_E_FORMAT, cases[i].message);
        coli__buf_finish(&tar);
        coli__buf_finish(&wrong);
        coli__buf_finish(&right);
    }
    free(path);
    free(model);
}

/* -- heads --------------------------------------------------------------------------------------- */

/* Sizes around the one from which a pax header is needed, and the longest name. */
T_TEST(heads_tell_what_was_put_in)
{
    T_BEGIN;
    static const uint64_t sizes[] = {1,
                                     511,
                                     512,
                                     (UINT64_C(1) << 33) - 1,
                                     UINT64_C(1) << 33,
                                     UINT64_C(214748364801),
                                     UINT64_C(1) << 60};
    char name[COLI__TAR_NAME + 1];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t head[COLI__TAR_HEAD_BYTES];
        const size_t n = coli__tar_head(name, sizes[i], head);
        T_EQ(n, sizes[i] < UINT64_C(1) << 33 ? 512 : 1536);
        // the data is not there, so the size is known by the refusal
        uint64_t at = 0;
        coli__tar_entry e;
        bool is_end;
        char expected[64];
        snprintf(expected, sizeof expected, "expected %" PRIu64 " bytes, the file has 0", sizes[i]);
        T_FAILS(coli__tar_next("x", head, n, &at, &e, &is_end), COLI_E_FORMAT, expected);
        T_STR(e.name, name);
        T_EQ(at, 0);
    }
    uint8_t empty[512 + 1024] = {0};
    T_EQ(coli__tar_head("e", 0, empty), 512); // writes three blocks, of which one counts
    uint64_t at = 0;
    coli__tar_entry e;
    bool is_end;
    T_OK(coli__tar_next("x", empty, sizeof empty, &at, &e, &is_end));
    T_EQ(at, 512);
    T_OK(coli__tar_next("x", empty, sizeof empty, &at, &e, &is_end));
    T_TRUE(is_end);
}

/* A pack of dir, which `message` is said about, is neither made nor believed, and so is dir itself. */
static void expect_unusable(const char *dir, const char *message)
{
    char *file = in_scratch("unusable.tar");
    T_FAILS(coli_verify(dir, NULL, NULL), COLI_E_FORMAT, message);
    T_FAILS(coli_pack(dir, file, NULL, NULL), COLI_E_FORMAT, message);
    T_TRUE(!coli__path_exists(file));
    coli__buf tar = {0};
    const change none = {0};
    put_model(&tar, dir, &none);
    expect_refused(tar.data, tar.n_bytes, COLI_E_FORMAT, message);
    coli__buf_finish(&tar);
    free(file);
}

/* What verifies also opens: every byte may be the right one, and the model of no use. */
T_TEST(what_cannot_be_opened_is_not_sound)
{
    T_BEGIN;
    char *small = small_model(), *settings = world_path(small, "generation_config.json");
    coli__buf before = read_all(settings);
    write_all(settings, "{\"top_p\": 7}", 12);
    expect_unusable(small, "generation_config.json: top_p: expected");
    write_all(settings, before.data, before.n_bytes);
    T_OK(coli_verify(small, NULL, NULL));

    // a tokenizer that the converter was not told to look at
    char *src = in_scratch("checkpoint"), *out = in_scratch("mute"), command[1024];
    snprintf(command, sizeof command, "cp -r %s/qwen36-tiny-a %s", TEST_FIXTURES, src);
    T_EQ(system(command), 0);
    char *tokenizer = world_path(src, "tokenizer.json");
    write_all(tokenizer, "{}", 2);
    coli__convert_args args = {
        .src = src, .out = out, .describe = coli__engine_describe, .n_thread = 2};
    T_OK(coli__wfmt_parse("int4", &args.experts));
    T_OK(coli__wfmt_parse("int8", &args.trunk));
    T_OK(coli__convert(&args));
    coli_model *m;
    T_FAILS(coli_model_open(out, NULL, &m), COLI_E_FORMAT, "tokenizer.json");
    expect_unusable(out, "tokenizer.json: ");
    coli__buf_finish(&before);
    free(small);
    free(settings);
    free(src);
    free(out);
    free(tokenizer);
}

/* -- the disk ---------------------------------------------------------------------------------- */

static int little_room(const char *dir, uint64_t *n_bytes)
{
    (void)dir;
    *n_bytes = 1000;
    return 0;
}

/* Of a pack, what is unpacked, and a model that is made up. */
T_TEST(the_disk_is_asked_first)
{
    T_BEGIN;
    char *file = in_scratch("asked.tar"), *none = in_scratch("none");
    const coli_synth_opts o = {.struct_size = sizeof o, .like = "hummingbird"};
    T_OK(coli_pack(TEST_MODELS "/hummingbird", file, NULL, NULL));
    int (*const before)(const char *, uint64_t *) = coli__sys_calls.disk_free;
    coli__sys_calls.disk_free = little_room;
    const char *said = "GB are needed there, 0.00 GB are free";
    T_FAILS(coli_pack(TEST_MODELS "/hummingbird", none, NULL, NULL), COLI_E_LIMIT, said);
    T_FAILS(coli_unpack(file, none, NULL, NULL), COLI_E_LIMIT, said);
    T_FAILS(coli_synth(none, &o), COLI_E_LIMIT, said);
    coli__sys_calls.disk_free = before;
    char *partial = in_scratch("none.partial");
    T_TRUE(!coli__path_exists(none) && !coli__path_exists(partial));
    free(partial);
    free(none);
    free(file);
}

/* What is synced is not what is tested, and a busy disk takes its time. */
static int no_sync(int fd)
{
    (void)fd;
    return 0;
}

int main(void)
{
    coli__sys_calls.fsync = no_sync;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(odd_names_become_model),
        cmocka_unit_test(a_broken_container_is_not_packed),
        cmocka_unit_test(stopping_leaves_nothing),
        cmocka_unit_test(torn_at_any_length),
        cmocka_unit_test(no_byte_may_change),
        cmocka_unit_test(another_writer_is_believed),
        cmocka_unit_test(lies_are_refused),
        cmocka_unit_test(parts_of_different_models),
        cmocka_unit_test(a_sound_pack_of_a_broken_container),
        cmocka_unit_test(what_cannot_be_opened_is_not_sound),
        cmocka_unit_test(heads_tell_what_was_put_in),
        cmocka_unit_test(the_disk_is_asked_first),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
