/* world.h - models for tests: fixtures converted into a scratch directory, and files read back. */
#ifndef COLI_TEST_WORLD_H
#define COLI_TEST_WORLD_H

#include <unistd.h>

#include "t.h"

#include "coli/coli.h"
#include "libcoli/src/base/file.h"
#include "libcoli/src/base/threads.h"
#include "libcoli/src/math/kernels.h"
#include "libcoli/src/model/safetensors.h"

/* coli__sys_calls.disk_free of a disk without end, for those who only begin to write. */
static inline int world_much_room(const char *dir, uint64_t *n_bytes)
{
    (void)dir;
    *n_bytes = UINT64_MAX;
    return 0;
}

/* A directory of this process, removed at exit with the containers made in it. */
static inline const char *world_scratch(void)
{
    static char path[64];
    if (!*path) {
        const char *tmp = getenv("TMPDIR");
        const uint64_t unique = coli__clock_ns() ^ (uint64_t)getpid() << 16;
        snprintf(path, sizeof path, "%.40s/coli-test-%08x", tmp ? tmp : "/tmp", (uint32_t)unique);
        if (coli__dir_create(path) != COLI_OK) abort();
    }
    return path;
}

static inline void world_forget(void) // a group teardown may call it
{
    char **names;
    size_t n;
    T_OK(coli__dir_list(world_scratch(), &names, &n));
    for (size_t i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", world_scratch(), names[i]);
        coli__dir_remove(path); // whichever of the two it is
        coli__file_remove(path);
        coli__free(names[i]);
    }
    coli__free(names);
    coli__dir_remove(world_scratch());
    if (coli__path_exists(world_scratch())) print_error("could not remove %s\n", world_scratch());
}

static inline int world_teardown(void **state)
{
    (void)state;
    world_forget();
    return 0;
}

static inline char *world_path(const char *dir, const char *name) // free()
{
    char *path = malloc(strlen(dir) + strlen(name) + 2);
    sprintf(path, "%s/%s", dir, name);
    return path;
}

/* Convert `checkpoint` once per (name, formats); the container's path, to be freed. */
static inline char *world_container(const char *checkpoint, const char *name, const char *experts,
                                    const char *trunk)
{
    char dir[256];
    snprintf(dir, sizeof dir, "%s/%s-%s-%s", world_scratch(), name, experts, trunk);
    if (!coli__path_exists(dir)) {
        const coli_convert_opts opts = {
            .struct_size = sizeof opts, .experts = experts, .trunk = trunk};
        T_OK(coli_convert(checkpoint, dir, &opts));
    }
    return strdup(dir);
}

static inline coli_model *world_open(const char *dir, uint32_t n_threads, const char *isa)
{
    coli_model *m;
    const coli_model_opts opts = {.struct_size = sizeof opts, .n_threads = n_threads, .isa = isa};
    T_OK(coli_model_open(dir, &opts, &m));
    return m;
}

static inline coli_session *world_session_kv(coli_model *m, uint32_t n_ctx, uint32_t n_chunk,
                                             coli_kv kv)
{
    coli_session *s;
    const coli_session_opts opts = {
        .struct_size = sizeof opts, .n_ctx = n_ctx, .n_chunk = n_chunk, .kv = kv};
    T_OK(coli_session_create(m, &opts, &s));
    return s;
}

static inline coli_session *world_session(coli_model *m, uint32_t n_ctx, uint32_t n_chunk)
{
    return world_session_kv(m, n_ctx, n_chunk, COLI_KV_F16);
}

/* What is planned for a source that is converted like this (opts: formats and recipe) is what is planned for
 * the container that was made of it. */
static inline void world_planned_alike(const char *src, const char *container,
                                       const coli_plan_opts *opts)
{
    const coli_model_opts model = {.struct_size = sizeof model, .n_threads = 2, .backend = "none"};
    coli_plan_opts o = *opts, plain = {.struct_size = sizeof plain, .model = &model};
    coli_plan_result a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
    o.struct_size = sizeof o;
    o.model = &model;
    T_OK(coli_plan_make(src, &o, &a));
    T_OK(coli_plan_make(container, &plain, &b));
    T_TRUE(a.is_imagined && a.is_of_source && !b.is_imagined && !b.is_of_source);
    b.is_imagined = b.is_of_source = true;
    b.available_bytes = a.available_bytes; // asked for at two moments
    b.ram_bytes = a.ram_bytes;
    T_MEM(&a, &b, sizeof a);
    T_TRUE(a.expert_bytes > 0 && a.trunk_bytes > 0);
}

/* The logits of n_tok positions: of the model in dir, fed some tokens of its n_vocab one by one. */
static inline void world_logits(const char *dir, int32_t n_vocab, int32_t n_tok, float *out)
{
    coli_model *m = world_open(dir, 2, NULL);
    coli_session *s = world_session_kv(m, 64, 0, COLI_KV_F32); // f16 would round twice
    for (int32_t i = 0; i < n_tok; i++) {
        const int32_t id = (i * 37 + 11) % n_vocab;
        T_OK(coli_session_feed(s, &id, 1));
        memcpy(out + (size_t)i * (size_t)n_vocab, coli_session_logits(s),
               (size_t)n_vocab * sizeof *out);
    }
    coli_session_destroy(s);
    coli_model_close(m);
}

static inline int world_by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over positions of how far logits are apart, as a part of their size.  (Where a rounding
 * turns a near-tie of the router, a position is far off; that is the router's, not the format's.) */
static inline double world_apart(const float *a, const float *b, int32_t n_vocab, int32_t n_tok)
{
    double each[64];
    T_LE(n_tok, 64);
    for (int32_t t = 0; t < n_tok; t++, a += n_vocab, b += n_vocab) {
        double error2 = 0, size2 = 0;
        for (int32_t k = 0; k < n_vocab; k++) {
            error2 += ((double)a[k] - (double)b[k]) * ((double)a[k] - (double)b[k]);
            size2 += (double)a[k] * (double)a[k];
        }
        each[t] = sqrt(error2 / size2);
    }
    qsort(each, (size_t)n_tok, sizeof *each, world_by_size);
    return each[n_tok / 2];
}

/* A copy of a one-file checkpoint whose tensors an edit may change, or drop by returning false.
 * `sed` is a script for its config.json ("" for none). */
typedef bool (*world_edit)(void *ctx, coli__st_out *tensor);

static inline void world_checkpoint(const char *from, const char *to, const char *sed,
                                    world_edit edit, void *ctx)
{
    T_OK(coli__dir_create(to));
    char text[1024];
    snprintf(text, sizeof text, "sed '%s' %s/config.json > %s/config.json", sed, from, to);
    T_EQ(system(text), 0);
    snprintf(text, sizeof text, "%s/model.safetensors", from);
    coli__st *st;
    T_OK(coli__st_open(text, &st));
    coli__st_out *out = calloc(coli__st_count(st), sizeof *out);
    uint32_t n = 0;
    for (uint32_t i = 0; i < coli__st_count(st); i++) {
        const coli__st_tensor *t = coli__st_at(st, i);
        out[n] =
            (coli__st_out){.name = t->name, .dtype = t->dtype, .rank = t->rank, .data = t->data};
        memcpy(out[n].shape, t->shape, sizeof t->shape);
        n += edit(ctx, &out[n]);
    }
    snprintf(text, sizeof text, "%s/model.safetensors", to);
    T_OK(coli__st_write(text, out, n));
    free(out);
    coli__st_close(st);
}

/* Every ISA that this machine can run, NULL-ended. */
static inline const char *const *world_isas(void)
{
    static const char *isas[8];
    if (!isas[0]) {
        const coli__kernels *k;
        size_t n = 0;
        for (const char *const *isa = coli__kernels_names; *isa && n + 1 < 8; isa++)
            if (coli__kernels_get(*isa, &k) == COLI_OK) isas[n++] = *isa;
    }
    return isas;
}

static inline const coli__st_tensor *world_tensor(const coli__st *st, const char *fmt,
                                                  const char *a, const char *b)
{
    char name[128];
    snprintf(name, sizeof name, fmt, a, b);
    const coli__st_tensor *t = coli__st_find(st, name);
    if (!t) {
        print_error("the fixture lacks %s\n", name);
        fail();
    }
    return t;
}

/* A whole tensor, malloc'd. */
static inline float *world_f32(const coli__st_tensor *t)
{
    float *out = malloc((size_t)t->n_elem * sizeof *out + 1);
    T_OK(coli__st_to_f32(t, 0, t->n_elem, out));
    return out;
}

static inline int32_t *world_i32(const coli__st_tensor *t)
{
    T_EQ(t->dtype, COLI_DT_I32);
    int32_t *out = malloc((size_t)t->n_bytes + 1);
    memcpy(out, t->data, (size_t)t->n_bytes);
    return out;
}

#endif
