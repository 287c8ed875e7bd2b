/* imatrix_test.c - what matrices are multiplied with, added up over texts: whether the sums are right, the
 * same however they are made, and what the converter does with them; and files that are none. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "world.h"

#include "libcoli/src/base/memory.h"
#include "engines/engine.h"
#include "libcoli/src/model/container.h"
#include "libcoli/src/model/convert.h"
#include "libcoli/src/model/imatrix.h"
#include "libcoli/src/model/imatrix_format.h"
#include "libcoli/src/run/session.h"
#include "libcoli/src/run/tasks.h"

#define MODEL TEST_MODELS "/hummingbird"
#define TEXTS TEST_FIXTURES "/hummingbird/choice.jsonl"
enum { N_LAYER = 8, N_EXPERT = 64, N_USED = 6, WIDTH = 192, EVERY = 16 };

static const char *scratch(const char *name)
{
    static char paths[16][128];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", world_scratch(), name);
    return path;
}

static coli_tasks *texts(const coli_model *m)
{
    coli_tasks *t;
    const coli_tasks_opts opts = {.struct_size = sizeof opts, .every = EVERY};
    T_OK(coli_tasks_open(TEXTS, m, &opts, &t));
    return t;
}

static coli__buf make(uint32_t n_threads, uint32_t n_chunk, const char *name)
{
    coli_model *m = world_open(MODEL, n_threads, NULL);
    coli_session *s = world_session(m, 512, n_chunk);
    coli_tasks *t = texts(m);
    T_OK(coli_imatrix_make(s, t, scratch(name), NULL));
    T_FAILS(coli_imatrix_make(s, t, scratch(name), NULL), COLI_E_EXISTS, "already exists");
    coli_tasks_close(t);
    coli_session_destroy(s);
    coli_model_close(m);
    coli__buf bytes;
    T_OK(coli__file_read(scratch(name), UINT32_MAX, &bytes));
    return bytes;
}

T_TEST(threads_and_chunks_do_not_show)
{
    T_BEGIN;
    coli__buf a = make(1, 0, "one.imatrix"), b = make(2, 5, "two.imatrix");
    T_EQ(a.n_bytes, b.n_bytes);
    T_MEM(a.data, b.data, a.n_bytes);
    coli__buf_finish(&a);
    coli__buf_finish(&b);
}

/* -- an entry, read from the format's description ------------------------------------------------ */

typedef struct found {
    uint32_t n_part, n_in;
    const uint8_t *n_row;
    const float *means;
} found;

static found entry(const coli__buf *file, const char *name)
{
    const uint8_t *p = (const uint8_t *)file->data + 64;
    const uint8_t *end = (const uint8_t *)file->data + file->n_bytes - 16;
    while (p < end) {
        const uint32_t n_name = coli__get32(p);
        found f = {.n_part = coli__get32(p + 4), .n_in = coli__get32(p + 8)};
        f.n_row = p + 16 + (n_name + 7) / 8 * 8;
        f.means = (const float *)(const void *)(f.n_row + 8 * (size_t)f.n_part);
        if (strlen(name) == n_name && memcmp(p + 16, name, n_name) == 0) return f;
        p = (const uint8_t *)f.means + ((size_t)f.n_part * f.n_in * 4 + 7) / 8 * 8;
    }
    fail_msg("no entry %s", name);
    return (found){0};
}

static uint64_t rows(found f, uint32_t part)
{
    return coli__get64(f.n_row + 8 * (size_t)part);
}

typedef struct counts {
    uint64_t n_row, expert[N_LAYER][N_EXPERT];
} counts;

static bool count(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                  const int32_t *expert_ids, const float *expert_w)
{
    (void)pos, (void)logits, (void)expert_w;
    counts *c = user;
    c->n_row += n_row;
    for (uint32_t l = 0; l < N_LAYER; l++)
        for (uint32_t i = 0; i < n_row * N_USED; i++)
            c->expert[l][expert_ids[(size_t)l * n_row * N_USED + i]]++;
    return true;
}

/* Rows per expert are those that the routing says.  Every row goes to six experts and to the shared one:
 * so the mean over all experts is that of the shared one. */
T_TEST(experts_see_the_rows_that_are_routed_to_them)
{
    T_BEGIN;
    coli_model *m = world_open(MODEL, 2, NULL);
    coli_session *s = world_session(m, 512, 0);
    coli_tasks *t = texts(m);
    static counts c;
    for (uint32_t i = 0; i < coli__tasks_n(t); i++) {
        const coli__task *item = coli__tasks_at(t, i);
        const coli__ending *e = coli__tasks_ending(t, item, item->label);
        coli_session_reset(s);
        T_OK(coli_session_eval(s, coli__tasks_ids(t, item->at), item->n_id, count, &c));
        T_OK(coli_session_eval(s, coli__tasks_ids(t, e->at), e->n_id, count, &c));
    }
    coli__buf file;
    T_OK(coli__file_read(scratch("one.imatrix"), UINT32_MAX, &file));
    T_EQ(coli__get64((const uint8_t *)file.data + 16), c.n_row);
    for (uint32_t l = 0; l < N_LAYER; l++) {
        char name[80];
        snprintf(name, sizeof name, "layers.%u.mlp.experts.in", l);
        const found in = entry(&file, name);
        snprintf(name, sizeof name, "layers.%u.mlp.experts.inner", l);
        const found inner = entry(&file, name);
        snprintf(name, sizeof name, "layers.%u.mlp.shared_expert.up_proj.weight", l);
        const found shared = entry(&file, name);
        T_EQ(in.n_part, N_EXPERT);
        T_EQ(in.n_in, WIDTH);
        T_EQ(rows(shared, 0), c.n_row);
        double sum[WIDTH] = {0};
        for (uint32_t e = 0; e < N_EXPERT; e++) {
            T_EQ(rows(in, e), c.expert[l][e]);
            T_EQ(rows(inner, e), c.expert[l][e]);
            for (uint32_t i = 0; i < WIDTH; i++)
                sum[i] += (double)rows(in, e) * (double)in.means[e * WIDTH + i];
        }
        for (uint32_t i = 0; i < WIDTH; i++) { // each mean is rounded to 2^-24 of itself
            const double want = (double)shared.means[i];
            T_FLE(fabs(sum[i] / (double)(N_USED * c.n_row) - want), want * 0x1p-22);
        }
    }
    coli__buf_finish(&file);
    coli_tasks_close(t);
    coli_session_destroy(s);
    coli_model_close(m);
}

/* The first layer's input is the normed embedding of the tokens: computed here in double. */
T_TEST(the_first_layer_reads_normed_embeddings)
{
    T_BEGIN;
    coli__container *c;
    T_OK(coli__container_open(MODEL, &c));
    const coli__ct_tensor *embed, *norm;
    T_OK(coli__container_find(c, "embed_tokens.weight", 3456, WIDTH, &embed));
    T_OK(coli__container_find(c, "layers.0.input_layernorm.weight", 1, WIDTH, &norm));
    coli_model *m = world_open(MODEL, 1, NULL);
    coli_tasks *t = texts(m);
    double sum[WIDTH] = {0};
    uint64_t n = 0;
    float w[WIDTH], x[WIDTH];
    coli__mat_row(&norm->mat, 0, w);
    for (uint32_t i = 0; i < coli__tasks_n(t); i++) {
        const coli__task *item = coli__tasks_at(t, i);
        const coli__ending *e = coli__tasks_ending(t, item, item->label);
        for (uint32_t k = 0; k < item->n_id + e->n_id; k++, n++) {
            const int32_t id = k < item->n_id ? coli__tasks_ids(t, item->at)[k]
                                              : coli__tasks_ids(t, e->at)[k - item->n_id];
            coli__mat_row(&embed->mat, (uint32_t)id, x);
            double mean = 0;
            for (uint32_t j = 0; j < WIDTH; j++) mean += (double)x[j] * (double)x[j] / WIDTH;
            for (uint32_t j = 0; j < WIDTH; j++) {
                const double y = (double)x[j] / sqrt(mean + 1e-6) * (1 + (double)w[j]);
                sum[j] += y * y;
            }
        }
    }
    coli__buf file;
    T_OK(coli__file_read(scratch("one.imatrix"), UINT32_MAX, &file));
    const found f = entry(&file, "layers.0.linear_attn.in_proj_qkv.weight");
    T_EQ(rows(f, 0), n);
    for (uint32_t j = 0; j < WIDTH; j++) { // a float norm is good to some 2^-20
        const double want = sum[j] / (double)n;
        T_FLE(fabs((double)f.means[j] - want), want * 0x1p-18);
    }
    coli__buf_finish(&file);
    coli_tasks_close(t);
    coli_model_close(m);
    coli__container_close(c);
}

/* -- nothing else changes ------------------------------------------------------------------------ */

typedef struct kept {
    uint64_t h;
} kept;

static bool hash_rows(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                      const int32_t *ids, const float *w)
{
    (void)pos, (void)ids, (void)w;
    kept *k = user;
    for (size_t i = 0; i < (size_t)n_row * 3456; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        k->h = (k->h ^ bits) * 0x100000001B3u;
    }
    return true;
}

T_TEST(collecting_changes_no_logit)
{
    T_BEGIN;
    coli_model *m = world_open(MODEL, 2, NULL);
    coli_session *s = world_session(m, 512, 0);
    int32_t ids[200];
    for (int i = 0; i < 200; i++) ids[i] = (i * 37 + 11) % 3000;
    kept plain = {1}, collected = {1};
    T_OK(coli_session_eval(s, ids, 200, hash_rows, &plain));
    const char *engine;
    coli__model_spec spec;
    coli__importance *im;
    T_OK(coli__engine_describe(coli__container_config(m->container), &engine, &spec));
    T_OK(coli__importance_create(m->container, &spec, &im));
    s->importance = im;
    coli_session_reset(s);
    T_OK(coli_session_eval(s, ids, 200, hash_rows, &collected));
    s->importance = NULL;
    T_TRUE(plain.h == collected.h);
    coli__importance_destroy(im);
    coli__model_spec_finish(&spec);
    coli_session_destroy(s);
    coli_model_close(m);
}

/* -- files --------------------------------------------------------------------------------------- */

/* Two entries: a dense matrix, and experts of which one was never used. */
static size_t small_file(uint8_t *data)
{
    static const char model[] = "0123456789abcdef0123456789abcdef";
    memset(data, 0, 400);
    memcpy(data, coli__imatrix_magic, 8);
    coli__put32(data + 8, 1);
    coli__put32(data + 12, 2);
    coli__put64(data + 16, 500);
    memcpy(data + 24, model, 32);
    uint8_t *p = data + 64;
    coli__put32(p, 1);
    coli__put32(p + 4, 1);
    coli__put32(p + 8, 3);
    p[16] = 'a';
    coli__put64(p + 24, 10);
    const float a[3] = {1, 2, 3};
    memcpy(p + 32, a, sizeof a);
    p += 48;
    coli__put32(p, 2);
    coli__put32(p + 4, 3);
    coli__put32(p + 8, 2);
    memcpy(p + 16, "bx", 2);
    coli__put64(p + 24, 1000000);
    coli__put64(p + 40, 16); // of the third
    const float b[6] = {1, 3, 0, 0, 4, 0};
    memcpy(p + 48, b, sizeof b);
    p += 72;
    return (size_t)(p - data);
}

static size_t seal(uint8_t *data, size_t n)
{
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(data, n));
    memcpy(data + n, sum.digest, 16);
    return n + 16;
}

T_TEST(columns)
{
    T_BEGIN;
    uint8_t data[500];
    const size_t n = seal(data, small_file(data));
    coli__imatrix *m;
    T_OK(coli__imatrix_parse("x", data, n, 3, &m));
    T_EQ(coli__imatrix_n_token(m), 500);
    T_STR(coli__imatrix_model(m), "0123456789abcdef0123456789abcdef");
    float h[3];
    T_TRUE(coli__imatrix_columns(m, "a", 3, h));
    T_FLE(fabs((double)h[0] - 0.51 / 1.01), 1e-6); // 1, 2, 3 with a floor of 0.01 of their mean
    T_FLE(fabs((double)h[2] - 1.51 / 1.01), 1e-6);
    T_TRUE(!coli__imatrix_columns(m, "a", 4, h));
    T_TRUE(!coli__imatrix_columns(m, "c", 3, h));
    // experts: one seen often is its own; one never seen is the layer's; 16 rows are half of either
    const double layer0 = (1000000. + 4 * 16) / 1000016, layer1 = 3000000. / 1000016;
    const double ratio[3] = {3, layer1 / layer0, (layer1 / 2) / (2 + layer0 / 2)};
    for (uint32_t e = 0; e < 3; e++) {
        T_TRUE(coli__imatrix_expert(m, "bx", e, 3, 2, h));
        const double mean = (1 + ratio[e]) / 2;
        T_FLE(fabs((double)h[1] / (double)h[0] - (ratio[e] / mean + 0.01) / (1 / mean + 0.01)),
              1e-3);
    }
    coli__imatrix_close(m);
}

/* Memory is the model's, whatever a file says about its columns. */
T_TEST(a_wide_entry_takes_no_memory)
{
    T_BEGIN;
    enum { WIDE = 1 << 20, BYTES = 64 + 16 + 8 + 8 + 4 * WIDE };
    uint8_t *data = calloc(BYTES + 16, 1), *wide = data + 64;
    uint8_t small[500];
    small_file(small);
    memcpy(data, small, 64);
    coli__put32(data + 12, 1);
    coli__put32(wide, 1);
    coli__put32(wide + 4, 1);
    coli__put32(wide + 8, WIDE);
    wide[16] = 'a';
    const size_t n = seal(data, BYTES);
    coli__imatrix *m;
    const uint64_t before = coli__memory_allocated();
    T_OK(coli__imatrix_parse("x", data, n, 3, &m));
    T_LE(coli__memory_allocated(), before + WIDE);
    float h;
    T_TRUE(!coli__imatrix_expert(m, "a", 0, 1, WIDE, &h)); // no expert of this model's
    coli__imatrix_close(m);
    free(data);
}

T_TEST(files_that_are_none)
{
    T_BEGIN;
    uint8_t data[500], bad[500];
    const size_t n_body = small_file(data), n = seal(data, n_body);
    coli__imatrix *m;
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *exact = malloc(cut + !cut);
        memcpy(exact, data, cut);
        T_FAILS(coli__imatrix_parse("x", exact, cut, 3, &m), COLI_E_FORMAT, "x: ");
        free(exact);
    }
    for (size_t at = 0; at < n; at++) { // a flipped bit, anywhere
        memcpy(bad, data, n);
        bad[at] ^= (uint8_t)(1u << at % 8);
        const coli_status status = coli__imatrix_parse("x", bad, n, 3, &m);
        T_TRUE(status == COLI_E_FORMAT || status == COLI_E_UNSUPPORTED);
    }
    static const struct {
        size_t at;
        uint32_t value;
        const char *message;
    } lies[] = {
        {8, 2, "version 2; expected 1"},
        {12, 3, "entry 2: is not there"},
        {12, 1, "bytes behind the last entry"},
        {12, 1u << 30, "entries; expected at most"},
        {24, 'x', "32 hex digits"},
        {64, 0, "entry 0: has no name"},
        {64, 500, "entry 0: has no name"},
        {64, 100, "entry 0: goes beyond"},
        {68, 0, "dimensions"},
        {72, 1u << 30, "dimensions"},
        {72, 1u << 20, "goes beyond"},
        {80, 'c', "is not behind the one before"},
        {96, 0x7F800000, "mean 0 is no mean"},
        {100, 0xBF800000, "mean 1 is no mean"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) { // with the right checksum
        memcpy(bad, data, n);
        coli__put32(bad + lies[i].at, lies[i].value);
        seal(bad, n_body);
        T_TRUE(coli__imatrix_parse("x", bad, n, 3, &m) != COLI_OK);
        if (!strstr(coli_error_message(), lies[i].message))
            fail_msg("\"%s\" lacks \"%s\"", coli_error_message(), lies[i].message);
    }
}

/* -- the converter ------------------------------------------------------------------------------- */

static coli_status convert(const char *imatrix, uint32_t n_threads, const char *out)
{
    const coli_convert_opts opts = {.struct_size = sizeof opts,
                                    .n_threads = n_threads,
                                    .imatrix = imatrix,
                                    .experts = "int4",
                                    .trunk = "int4"};
    return coli_convert(TEST_FIXTURES "/qwen36-tiny-c", out, &opts);
}

static coli__buf model_of(const char *dir)
{
    coli__buf bytes;
    char *path = world_path(dir, "model.coli");
    T_OK(coli__file_read(path, UINT32_MAX, &bytes));
    free(path);
    return bytes;
}

T_TEST(the_converter_uses_it)
{
    T_BEGIN;
    T_FAILS(convert(scratch("one.imatrix"), 1, scratch("other")), COLI_E_FORMAT,
            "imatrix of another model: expected ");
    T_FAILS(convert(MODEL "/model.coli", 1, scratch("other")), COLI_E_FORMAT, "no imatrix file");
    T_FAILS(convert("/nowhere", 1, scratch("other")), COLI_E_NOTFOUND, "/nowhere");
    T_TRUE(!coli__path_exists(scratch("other")));

    // of the very model, in whatever format: random ids will do
    char *dir = world_container(TEST_FIXTURES "/qwen36-tiny-c", "qwen36-tiny-c", "bf16", "bf16");
    coli_model *m = world_open(dir, 1, NULL);
    coli_session *s = world_session(m, 256, 0);
    const char *engine;
    coli__model_spec spec;
    coli__importance *im;
    T_OK(coli__engine_describe(coli__container_config(m->container), &engine, &spec));
    T_OK(coli__importance_create(m->container, &spec, &im));
    s->importance = im;
    int32_t ids[200];
    for (int i = 0; i < 200; i++) ids[i] = (i * 37 + 11) % 320;
    T_OK(coli_session_feed(s, ids, 200));
    coli__writer *w;
    T_OK(coli__writer_open(scratch("tiny.imatrix"), &w));
    T_OK(coli__importance_write(im, 200, w));
    T_OK(coli__writer_close(w));
    coli__importance_destroy(im);
    coli__model_spec_finish(&spec);
    coli_session_destroy(s);
    coli_model_close(m);
    free(dir);

    coli__buf first = {0};
    for (uint32_t n = 1; n <= 3; n++) {
        char name[16];
        snprintf(name, sizeof name, "with-%u", n);
        T_OK(convert(scratch("tiny.imatrix"), n, scratch(name)));
        coli__buf bytes = model_of(scratch(name));
        if (n == 1) {
            first = bytes;
            continue;
        }
        T_EQ(bytes.n_bytes, first.n_bytes);
        T_MEM(bytes.data, first.data, first.n_bytes);
        coli__buf_finish(&bytes);
    }
    T_OK(convert(NULL, 1, scratch("without")));
    coli__buf without = model_of(scratch("without"));
    T_EQ(without.n_bytes, first.n_bytes);
    T_TRUE(memcmp(without.data, first.data, first.n_bytes) != 0);
    T_OK(coli_verify(scratch("with-1"), NULL, NULL));
    coli__buf_finish(&first);
    coli__buf_finish(&without);
}

static struct sigaction guard; // of mappings; the test program puts its own in its place

static bool cut_short(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)what, (void)done, (void)total;
    T_EQ(truncate(user, 0), 0);
    return true;
}

/* While it is in use: the process lives, and nothing stays of what may have been made with zeros. */
T_TEST(an_imatrix_that_shrinks)
{
    T_BEGIN;
    coli__buf bytes;
    T_OK(coli__file_read(scratch("tiny.imatrix"), UINT32_MAX, &bytes));
    T_OK(coli__file_replace(scratch("shrinks"), bytes.data, bytes.n_bytes));
    T_EQ(sigaction(SIGBUS, &guard, NULL), 0);
    coli__buf_finish(&bytes);
    const coli_convert_opts opts = {.struct_size = sizeof opts,
                                    .n_threads = 1,
                                    .imatrix = scratch("shrinks"),
                                    .progress = cut_short,
                                    .user = (void *)(uintptr_t)scratch("shrinks")};
    T_FAILS(coli_convert(TEST_FIXTURES "/qwen36-tiny-c", scratch("shrunk"), &opts), COLI_E_IO,
            "shrinks: became shorter");
    T_TRUE(!coli__path_exists(scratch("shrunk")) && !coli__path_exists(scratch("shrunk.partial")));
}

/* What is synced is not what is tested, and a busy disk takes its time. */
static int no_sync(int fd)
{
    (void)fd;
    return 0;
}

/* A conversion whose imatrix is torn at one moment and which is killed at a later one. */
typedef struct torn_job {
    coli__convert_args args;
    int n_left_torn, n_left_killed;
} torn_job;

static bool tear_and_die(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)what, (void)done, (void)total;
    torn_job *job = user;
    if (job->n_left_torn-- == 0 && truncate(job->args.imatrix, 0) != 0) _exit(1);
    if (job->n_left_killed-- == 0) kill(getpid(), SIGKILL);
    return true;
}

static void convert_in_child(torn_job *job)
{
    fflush(NULL);
    const pid_t pid = fork();
    T_GE(pid, 0);
    if (pid == 0) {
        if (sigaction(SIGBUS, &guard, NULL) != 0) _exit(1);
        coli__convert(&job->args);
        _exit(0);
    }
    int how;
    T_EQ(waitpid(pid, &how, 0), pid);
    T_TRUE(WIFSIGNALED(how) ? WTERMSIG(how) == SIGKILL : WEXITSTATUS(how) == 0);
}

/* As a copy that keeps the time, or a disk that answers again, brings it back. */
static void bring_back(const char *file, const coli__buf *bytes, const struct stat *was)
{
    const struct timespec times[2] = {was->st_atim, was->st_mtim};
    T_OK(coli__file_replace(file, bytes->data, bytes->n_bytes));
    T_EQ(utimensat(AT_FDCWD, file, times, 0), 0);
}

/* What was made with zeros in an imatrix's place is not in the journal, however the process ends: the same
 * conversion with the file as it was makes the container that an undisturbed one makes. */
T_TEST(a_torn_imatrix_a_kill_and_the_next_attempt)
{
    T_BEGIN;
    coli__buf imatrix, expected, made;
    struct stat was;
    char *file = world_path(world_scratch(), "torn"),
         *out = world_path(world_scratch(), "torn.out"),
         *partial = world_path(world_scratch(), "torn.out.partial");
    T_OK(coli__file_read(scratch("tiny.imatrix"), UINT32_MAX, &imatrix));
    T_OK(coli__file_replace(file, imatrix.data, imatrix.n_bytes));
    T_EQ(stat(file, &was), 0);
    const coli__convert_args plain = {.src = TEST_FIXTURES "/qwen36-tiny-c",
                                      .out = out,
                                      .describe = coli__engine_describe,
                                      .n_thread = 1,
                                      .tell_bytes = 1,
                                      .imatrix = file,
                                      .experts = {COLI_W_I4, 64, false, true},
                                      .trunk = {COLI_W_I4, 64, false, true}};
    T_OK(coli__convert(&plain));
    expected = model_of(out);
    coli__dir_remove(out);
    int n_went_on = 0;
    const coli__sys calls = coli__sys_calls;
    coli__sys_calls.fsync = no_sync;
    for (int torn = 3; torn < 60; torn += 14)
        for (int later = 1; later < 20; later += 6) {
            torn_job job = {plain, torn, torn + later};
            job.args.progress = tear_and_die;
            job.args.user = &job;
            convert_in_child(&job);
            n_went_on += coli__path_exists(partial);
            bring_back(file, &imatrix, &was);
            if (!coli__path_exists(out)) T_OK(coli__convert(&plain));
            made = model_of(out);
            T_EQ(made.n_bytes, expected.n_bytes);
            T_MEM(made.data, expected.data, expected.n_bytes);
            coli__buf_finish(&made);
            coli__dir_remove(out);
        }
    coli__sys_calls = calls;
    T_GE(n_went_on, 6);
    coli__buf_finish(&imatrix);
    coli__buf_finish(&expected);
    free(file);
    free(out);
    free(partial);
}

int main(void)
{
    coli__map map;
    if (coli__map_open_guarded(MODEL "/model.coli", &map) != COLI_OK) return 1;
    coli__map_close(&map);
    sigaction(SIGBUS, NULL, &guard);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_and_chunks_do_not_show),
        cmocka_unit_test(experts_see_the_rows_that_are_routed_to_them),
        cmocka_unit_test(the_first_layer_reads_normed_embeddings),
        cmocka_unit_test(collecting_changes_no_logit),
        cmocka_unit_test(columns),
        cmocka_unit_test(a_wide_entry_takes_no_memory),
        cmocka_unit_test(files_that_are_none),
        cmocka_unit_test(the_converter_uses_it),
        cmocka_unit_test(an_imatrix_that_shrinks),
        cmocka_unit_test(a_torn_imatrix_a_kill_and_the_next_attempt),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
