/* trunk_test.c - the dense trunk of a model on fake devices: what is placed, why not, and what is told.
 *
 * The simulated clock decides who wins the race, so the outcome is the same on every machine: FAST takes
 * some ns for any product, SLOW a second. */
#include "backends.h"

#include "libcoli/src/backend/race.h"
#include "libcoli/src/moe/heat_file.h"
#include "libcoli/src/moe/trunk.h"

enum { N_LAYER = 8, N_EXPERT = 16, N_USED = 4, N_HOT = N_LAYER * N_USED }; // of qwen36-tiny-a
enum { N_DENSE = 6 * 3 + 2 * 4 + 1, N_SHARED = N_LAYER * 3 };              // its matrices

#define SPEED_FAST "link=1000TB/s latency=0ns kernel=0ns bw=1000TB/s"
#define FAST       "page=64B " SPEED_FAST
#define SLOW       "page=64B kernel=1s"

static char *dir;
static char notes[8192];

static void take_note(void *user, const char *line)
{
    (void)user;
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s\n", line);
}

static bool noted(const char *text)
{
    if (strstr(notes, text)) return true;
    print_error("no \"%s\" in:\n%s", text, notes);
    return false;
}

static coli_status try_open(const char *options, const char *place, double vram, coli_model **m)
{
    notes[0] = 0;
    const coli_model_opts opts = {.struct_size = sizeof opts,
                                  .n_threads = 2,
                                  .backend = backend_file,
                                  .backend_options = options,
                                  .vram_unit = vram > 0 ? COLI_VRAM_BYTES : COLI_VRAM_AUTO,
                                  .vram = vram,
                                  .place = place,
                                  .note = take_note};
    return coli_model_open(dir, &opts, m);
}

static coli_model *open_on(const char *options, const char *place, double vram)
{
    coli_model *m;
    T_OK(try_open(options, place, vram, &m));
    return m;
}

static coli_device_use use_of(const coli_model *m, uint32_t i)
{
    coli_device_use use = {.struct_size = sizeof use};
    T_OK(coli_model_get_device(m, i, &use));
    return use;
}

/* What opening leaves of a device's memory is what the books say. */
static void check_books(const coli_model *m)
{
    T_TRUE(coli__tier_is_sound(m->tier));
    for (uint32_t i = 0; i < coli__devices_n(m->devices); i++) {
        coli_bk_mem_info memory;
        T_OK(coli__device_memory(coli__devices_at(m->devices, i), &memory));
        T_EQ(memory.total_bytes - memory.free_bytes, coli__devices_used(m->devices, i));
        T_LE(use_of(m, i).vram_bytes, use_of(m, i).allowance_bytes);
    }
}

/* ---- the race -------------------------------------------------------------------------------- */

/* A simulated device takes what it says: a transfer in, one kernel, one out.  Of a matrix with many
 * rows the first are enough. */
T_TEST(race_by_the_clock_of_the_device)
{
    T_BEGIN;
    coli_model *m = open_on("link=1000TB/s bw=1000TB/s latency=1ms kernel=3ms", "off", 0);
    const coli__ct_tensor *head;
    coli__race race;
    T_OK(coli__container_find(m->container, "lm_head.weight", 320, 64, &head));
    T_TRUE(coli__race_run(coli__devices_at(m->devices, 0), m->kernels, m->pool, &head->mat, &race));
    T_TRUE(race.n_out == 320 && race.n_in == 64);
    T_TRUE(fabs(race.device_ns - 5e6) < 100);
    T_TRUE(race.host_ns > 0);
    check_books(m); // its copy is gone
    coli_model_close(m);
}

T_TEST(v14_the_processor_is_faster)
{
    T_BEGIN;
    const double vram = 300000;
    coli_model *off = open_on(SLOW, "off", vram), *m = open_on(SLOW, NULL, vram);
    const coli_backend_stats s = backend_stats(m), t = backend_stats(off);
    T_TRUE(noted("trunk: not on device 0: it takes 1000020."));
    T_EQ(s.n_matrix, 0);
    T_EQ(s.n_expert, t.n_expert); // all bytes are the experts' again
    T_EQ(s.vram_bytes, t.vram_bytes);
    check_books(m);
    coli_model_close(m);
    coli_model_close(off);
}

T_TEST(the_device_is_faster)
{
    T_BEGIN;
    coli_model *m = open_on(FAST, NULL, 0);
    T_EQ(backend_stats(m).n_matrix, N_DENSE + N_SHARED);
    T_TRUE(noted("trunk: lmhead, 6 dnproj, 6 dnout, 2 attnproj, 8 shexp on device 0\n"));
    check_books(m);
    coli_model_close(m);
}

/* Without the race, or where it cannot be measured, what was decided stands; lists and "all" are obeyed. */
T_TEST(the_placement_stands)
{
    T_BEGIN;
    coli_model *m;
    const coli_model_opts opts = {.struct_size = sizeof opts,
                                  .backend = backend_file,
                                  .backend_options = SLOW,
                                  .no_trunk_probe = true};
    T_OK(coli_model_open(dir, &opts, &m));
    T_EQ(backend_stats(m).n_matrix, N_DENSE + N_SHARED);
    coli_model_close(m);
    m = open_on(SLOW " refuse=group_stats", NULL, 0);
    T_EQ(backend_stats(m).n_matrix, N_DENSE + N_SHARED);
    coli_model_close(m);
    m = open_on(SLOW, "all", 0);
    T_EQ(backend_stats(m).n_matrix, N_DENSE + N_SHARED);
    coli_model_close(m);
    m = open_on(SLOW, "shexp=0:3", 0);
    T_EQ(backend_stats(m).n_matrix, 9);
    T_TRUE(noted(
        "trunk: 3 of 8 shexp on device 0; lmhead, 6 dnproj, 6 dnout, 2 attnproj, 5 of 8 shexp on "
        "the processor: as asked\n"));
    coli_model_close(m);
}

/* The slow one of two gets nothing, the other one what it can hold. */
T_TEST(one_of_two_is_slow)
{
    T_BEGIN;
    coli_model *m = open_on("devices=2 page=64B dev0.kernel=1s dev1.link=1000TB/s dev1.latency=0ns "
                            "dev1.kernel=0ns dev1.bw=1000TB/s",
                            NULL, 0);
    T_TRUE(noted("trunk: not on device 0: "));
    T_TRUE(noted("trunk: lmhead, 6 dnproj, 6 dnout, 2 attnproj, 8 shexp on device 1\n"));
    T_EQ(coli__devices_matrix_bytes(m->devices, 0), 0);
    T_TRUE(coli__devices_matrix_bytes(m->devices, 1) > 0);
    check_books(m);
    coli_model_close(m);
}

/* ---- against experts ------------------------------------------------------------------------- */

static uint64_t slot_of(coli_model *m)
{
    uint64_t slot, bytes;
    coli__tier_slot(m->tier, &slot, &bytes);
    return slot;
}

/* Four experts of each layer are used by every token, the others never. */
static void write_heat(const coli_model *m, const char *path)
{
    coli__heat_file f;
    T_OK(coli__heat_file_init(&f, coli__container_identity(m->container), N_LAYER, N_EXPERT));
    for (uint32_t l = 0; l < N_LAYER; l++)
        for (uint32_t e = 0; e < N_USED; e++) f.count[l * N_EXPERT + 3 * e] = 1000;
    T_OK(coli__heat_file_write(path, &f));
    coli__heat_file_finish(&f);
}

static coli_model *open_with_heat(const char *path, uint64_t vram)
{
    notes[0] = 0;
    coli_model *m;
    const coli_model_opts opts = {.struct_size = sizeof opts,
                                  .backend = backend_file,
                                  .backend_options = FAST,
                                  .vram_unit = COLI_VRAM_BYTES,
                                  .vram = (double)vram,
                                  .heat = path,
                                  .heat_readonly = true,
                                  .note = take_note};
    T_OK(coli_model_open(dir, &opts, &m));
    return m;
}

static uint32_t n_hot(const coli_model *m)
{
    uint32_t n = 0;
    coli__slot place;
    for (uint32_t l = 0; l < N_LAYER; l++)
        for (uint32_t e = 0; e < N_USED; e++)
            n += coli__tier_find(m->tier, coli__container_experts(m->container, l), 3 * e, &place);
    return n;
}

T_TEST(hot_experts_are_worth_more)
{
    T_BEGIN;
    char path[256];
    snprintf(path, sizeof path, "%s/hot.heat", world_scratch());
    coli_model *all = open_on(FAST, "all", 0);
    const uint64_t slot = slot_of(all), trunk = coli__devices_matrix_bytes(all->devices, 0);
    write_heat(all, path);
    coli_model_close(all);

    coli_model *m = open_with_heat(path, N_HOT * slot); // room for these alone
    T_EQ(backend_stats(m).n_matrix, 0);
    T_EQ(n_hot(m), N_HOT);
    T_TRUE(noted("on the processor: the experts in its place are worth more\n"));
    coli_model_close(m);
    m = open_with_heat(path, N_HOT * slot + trunk); // and for the trunk
    T_EQ(backend_stats(m).n_matrix, N_DENSE + N_SHARED);
    T_EQ(n_hot(m), N_HOT);
    T_TRUE(noted(" on device 0 instead of "));
    check_books(m);
    coli_model_close(m);
    m = open_on(FAST, NULL, (double)trunk); // without heat no expert is worth as much
    T_EQ(backend_stats(m).n_matrix, N_DENSE + N_SHARED);
    T_EQ(backend_stats(m).n_expert, 0);
    check_books(m);
    coli_model_close(m);
    m = open_on(FAST, NULL, (double)trunk - 1);
    T_TRUE(backend_stats(m).n_matrix < N_DENSE + N_SHARED);
    T_TRUE(noted(" on the processor: no room\n"));
    check_books(m);
    coli_model_close(m);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static uint32_t n_on(const coli_model *m, uint32_t device)
{
    return coli__tier_n_resident(m->tier, device);
}

T_TEST(devices_of_experts)
{
    T_BEGIN;
    static const struct {
        const char *place;
        uint32_t n[2];
    } cases[] = {{"off", {64, 64}},
                 {"lmhead=0", {0, 128}},
                 {"lmhead=1", {128, 0}},
                 {"lmhead=0,experts=all", {64, 64}},
                 {"experts=0", {128, 0}},
                 {"lmhead=1,experts=1", {0, 128}},
                 {"experts=cpu", {0, 0}},
                 {"lmhead=cpu", {64, 64}},
                 {"lmhead=0,shexp=1", {64, 64}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli_model *m = open_on("devices=2 " FAST, cases[i].place, 0);
        if (n_on(m, 0) != cases[i].n[0]) print_error("%s\n", cases[i].place);
        T_EQ(n_on(m, 0), cases[i].n[0]);
        T_EQ(n_on(m, 1), cases[i].n[1]);
        T_TRUE(strstr(notes, "does not compute") == NULL);
        check_books(m);
        coli_model_close(m);
    }
}

T_TEST(what_a_list_says_wrong)
{
    T_BEGIN;
    coli_model *m;
    T_FAILS(try_open(FAST, "lmhead", 0, &m), COLI_E_INVALID, "place: expected auto, off, all");
    T_FAILS(try_open(FAST, "lmhead=1", 0, &m), COLI_E_INVALID,
            "place: lmhead: device 1 is not among those in use");
    m = open_on(FAST, "lmhaed=0,dnproj=0:100,attnproj=0:3", 0);
    T_TRUE(noted("trunk: the model has no lmhaed\n"));
    T_EQ(backend_stats(m).n_matrix, 6 * 2); // the first layer of attention is the fourth
    coli_model_close(m);
    const coli_model_opts none = {
        .struct_size = sizeof none, .backend = "none", .place = "lmhead=7"};
    T_OK(coli_model_open(dir, &none, &m)); // there is no device to be the wrong one
    coli_model_close(m);
    const coli_model_opts wrong = {.struct_size = sizeof wrong, .backend = "none", .place = "x"};
    T_FAILS(coli_model_open(dir, &wrong, &m), COLI_E_INVALID, "place: expected");
}

/* Products need an entry that a plugin may lack; the shared expert is a group, which none lacks. */
T_TEST(a_plugin_without_products)
{
    T_BEGIN;
    coli_model *m = open_on(FAST " refuse=matmul,matmul_batch", NULL, 0);
    T_EQ(backend_stats(m).n_matrix, N_SHARED);
    T_TRUE(noted(
        "trunk: 8 shexp on device 0; lmhead, 6 dnproj, 6 dnout, 2 attnproj on the processor: no "
        "device computes it\n"));
    check_books(m);
    coli_model_close(m);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

T_TEST(no_memory_is_asked_for_per_token)
{
    T_BEGIN;
    coli_model *m =
        open_on("devices=2 " FAST, "dnproj=0:4+1,dnout=0,attnproj=1,shexp=0:3+1,lmhead=0", 0);
    coli_session *s = world_session(m, 64, 16);
    int32_t ids[20];
    for (int32_t i = 0; i < 20; i++) ids[i] = 7 * i + 1;
    T_OK(coli_session_feed(s, ids, 20));
    const uint64_t n_alloc = coli__alloc_count();
    T_OK(coli_session_feed(s, ids, 20));
    T_OK(coli_session_feed(s, ids, 1));
    T_EQ(coli__alloc_count(), n_alloc);
    coli_session_destroy(s);
    coli_model_close(m);
}

static int setup(void **state)
{
    (void)state;
    dir = world_container(TEST_FIXTURES "/qwen36-tiny-a", "tiny", "int4", "int8");
    return 0;
}

static int teardown(void **state)
{
    free(dir);
    return world_teardown(state);
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(race_by_the_clock_of_the_device),
        cmocka_unit_test(v14_the_processor_is_faster),
        cmocka_unit_test(the_device_is_faster),
        cmocka_unit_test(the_placement_stands),
        cmocka_unit_test(one_of_two_is_slow),
        cmocka_unit_test(hot_experts_are_worth_more),
        cmocka_unit_test(devices_of_experts),
        cmocka_unit_test(what_a_list_says_wrong),
        cmocka_unit_test(a_plugin_without_products),
        cmocka_unit_test(no_memory_is_asked_for_per_token),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
