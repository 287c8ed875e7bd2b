/* pages_test.c - part of a mapping is replaced by a copy in huge pages, and nobody sees it. */
#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include "digest.h"
#include "libcoli/src/base/memory.h"
#include "libcoli/src/run/model.h"

enum { MIB = 1 << 20, N_BYTES = 9 * MIB + 777 };

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 2654435761u >> 13);
}

static char *make_file(void) // free()
{
    char *path = world_path(world_scratch(), "bytes");
    uint8_t *bytes = malloc(N_BYTES);
    for (size_t i = 0; i < N_BYTES; i++) bytes[i] = pattern(i);
    T_OK(coli__file_replace(path, bytes, N_BYTES));
    free(bytes);
    return path;
}

static void same_bytes(const coli__map *map)
{
    for (size_t i = 0; i < N_BYTES; i++)
        if (map->data[i] != pattern(i)) T_EQ(i, -1);
}

/* Whole huge pages inside the bytes, and no others. */
static uint64_t whole_pages(const uint8_t *at, uint64_t n_bytes)
{
    const uintptr_t begin = ((uintptr_t)at + 2 * MIB - 1) / (2 * MIB),
                    end = ((uintptr_t)at + (uintptr_t)n_bytes) / (2 * MIB);
    return end > begin ? (uint64_t)(end - begin) * 2 * MIB : 0;
}

static uint64_t copy_huge(const void *data, uint64_t n_bytes)
{
    uint64_t n;
    T_OK(coli__pages_copy_huge(data, n_bytes, &n));
    return n;
}

T_TEST(a_copy_in_its_place)
{
    T_BEGIN;
    char *path = make_file();
    static const uint64_t spans[][2] = {
        {0, N_BYTES}, {0, 100}, {5, 2 * MIB}, {MIB, 6 * MIB}, {3 * MIB + 1, 5 * MIB}};
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
        coli__map map;
        T_OK(coli__map_open_guarded(path, &map));
        const uint8_t *at = map.data + spans[i][0];
        const uint64_t n = copy_huge(at, spans[i][1]);
        if (n > 0 || !coli__pages_can_be_huge())
            T_EQ(n, coli__pages_can_be_huge() ? whole_pages(at, spans[i][1]) : 0);
        same_bytes(&map);
        T_EQ(copy_huge(at, spans[i][1]), n); // once more does no harm
        same_bytes(&map);
        T_TRUE(coli__map_is_whole(&map));
        coli__map_close(&map);
    }
    free(path);
}

#ifdef SYS_mremap

/* The system's, unless it is to fail as it may: before or after the target is gone. */
static enum { MOVES, FAILS_FIRST, FAILS_HALF_WAY } moving;

void *mremap(void *old, size_t n_old, size_t n_new, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    void *target = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
    va_end(rest);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a system call's result
    if (moving == MOVES) return (void *)syscall(SYS_mremap, old, n_old, n_new, flags, target);
    if (moving == FAILS_HALF_WAY) munmap(target, n_new);
    errno = ENOMEM;
    return MAP_FAILED;
}

T_TEST(a_move_that_fails_loses_nothing)
{
    T_BEGIN;
    char *path = make_file();
    coli__map map;
    T_OK(coli__map_open_guarded(path, &map));
    for (moving = FAILS_FIRST; moving <= FAILS_HALF_WAY; moving++) {
        T_EQ(copy_huge(map.data, N_BYTES), 0);
        same_bytes(&map);
    }
    moving = MOVES;
    T_EQ(copy_huge(map.data, N_BYTES),
         coli__pages_can_be_huge() ? whole_pages(map.data, N_BYTES) : 0);
    same_bytes(&map);
    coli__map_close(&map);
    free(path);
}

#endif

/* What is a copy does not depend on the file any more, but whether all of it is there is still known. */
T_TEST(a_file_that_shrinks)
{
    T_BEGIN;
    char *path = make_file();
    coli__map map;
    T_OK(coli__map_open_guarded(path, &map));
    const uint64_t n = copy_huge(map.data, N_BYTES);
    T_EQ(truncate(path, 0), 0);
    const uintptr_t begin = ((uintptr_t)map.data + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    const size_t first = begin - (uintptr_t)map.data;
    for (size_t i = 0; i < n; i++) T_EQ(map.data[first + i], pattern(first + i));
    T_TRUE(!coli__map_is_whole(&map));
    coli__map_close(&map);
    free(path);
}

static coli_model *open_with(const char *dir, uint32_t huge)
{
    coli_model *m;
    const coli_model_opts opts = {
        .struct_size = sizeof opts, .backend = "none", .huge_pages = huge};
    T_OK(coli_model_open(dir, &opts, &m));
    return m;
}

/* Whose head alone has nine MB at least; trunk NULL: int8. */
static void make_model(const char *dir, const char *trunk)
{
    const coli_synth_opts synth = {.struct_size = sizeof synth,
                                   .like = "hummingbird",
                                   .trunk = trunk,
                                   .d_model = 2048,
                                   .n_layer = 4,
                                   .n_vocab = N_VOCAB_MAX,
                                   .n_expert = 4,
                                   .n_expert_used = 2,
                                   .d_ff = 64};
    T_OK(coli_synth(dir, &synth));
}

T_TEST(a_model_computes_the_same)
{
    T_BEGIN;
    char *dir = world_path(world_scratch(), "model");
    make_model(dir, NULL);
    coli_model *m = open_with(dir, COLI_HUGE_OFF);
    T_EQ(m->huge_bytes, 0);
    const digest expected = digest_of(m, 16, 20);
    coli_model_close(m);

    m = open_with(dir, COLI_HUGE_ON);
    if (coli__pages_can_be_huge()) T_LE(4 * MIB, m->huge_bytes);
    T_LE(m->huge_bytes, coli__model_trunk_bytes(m->container) - m->embedding->n_bytes);
    const digest got = digest_of(m, 16, 20);
    T_TRUE(got.h == expected.h);
    coli_model_close(m);

    m = open_with(dir, COLI_HUGE_AUTO); // too small for it
    T_EQ(m->huge_bytes, 0);
    coli_model_close(m);
    const coli_model_opts wrong = {.struct_size = sizeof wrong, .huge_pages = 3};
    T_FAILS(coli_model_open(dir, &wrong, &m), COLI_E_INVALID, "huge_pages");
    free(dir);
}

typedef struct told {
    uint64_t done, total;
} told;

static bool listen_to(void *user, const char *what, uint64_t done, uint64_t total)
{
    told *t = user;
    (void)what;
    T_LE(done, total);
    *t = (told){done, total};
    return true;
}

/* Who makes no tokens need not wait for a trunk, however large: opening reads it for who listens, and
 * tells how far it is, to the byte. */
T_TEST(only_who_listens_waits)
{
    T_BEGIN;
    char *dir = world_path(world_scratch(), "large");
    make_model(dir, "f32");
    coli_model *m = open_with(dir, COLI_HUGE_AUTO);
    T_EQ(m->huge_bytes, 0);
    const uint64_t trunk_bytes = coli__model_trunk_bytes(m->container);
    T_LE(64 * MIB, trunk_bytes);
    coli_model_close(m);

    told t = {0};
    const coli_model_opts opts = {
        .struct_size = sizeof opts, .backend = "none", .progress = listen_to, .user = &t};
    const bool copies =
        coli__pages_can_be_huge() && coli__memory_available() / 2 > trunk_bytes + 64 * MIB;
    T_OK(coli_model_open(dir, &opts, &m));
    if (copies) T_LE(4 * MIB, m->huge_bytes);
    T_LE(trunk_bytes, t.total);
    T_EQ(t.done, t.total);
    coli_model_close(m);

    t = (told){0}; // alignment leaves gaps between tensors of this format
    const coli_model_opts asks = {.struct_size = sizeof asks,
                                  .backend = "none",
                                  .huge_pages = COLI_HUGE_ON,
                                  .progress = listen_to,
                                  .user = &t};
    free(dir);
    dir = world_container(TEST_FIXTURES "/qwen36-tiny-c", "tiny", "int4", "int8-g64-f16");
    T_OK(coli_model_open(dir, &asks, &m));
    T_EQ(t.done, t.total);
    coli_model_close(m);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_in_its_place),
#ifdef SYS_mremap
        cmocka_unit_test(a_move_that_fails_loses_nothing),
#endif
        cmocka_unit_test(a_file_that_shrinks),
        cmocka_unit_test(a_model_computes_the_same),
        cmocka_unit_test(only_who_listens_waits),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
