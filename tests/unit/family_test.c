/* family_test.c - the sizes of the family: their published parameters, and that models with their heads
 * and experts, narrower, give the same bytes however they are computed. */
#include "digest.h"

static const struct {
    const char *like;
    uint32_t n_layer, n_expert, n_expert_used, d_model, d_ff;
    uint64_t n_param, n_precise; // of these, in bf16: routers and gates
} sizes[] = {
    {"qwen36-35b", 40, 256, 8, 2048, 512, 34660610688u,
     UINT64_C(40) * (256 + 1) * 2048 + 30 * 2 * 32 * 2048},
    {"qwen36-122b", 48, 256, 8, 3072, 1024, 122111526912u,
     UINT64_C(48) * (256 + 1) * 3072 + 36 * 2 * 64 * 3072},
    {"qwen36-397b", 60, 512, 10, 4096, 1024, 396346350336u,
     UINT64_C(60) * (512 + 1) * 4096 + 45 * 2 * 64 * 4096},
};
enum { N_SIZE = sizeof sizes / sizeof *sizes };

static bool stop_and_tell(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)what, (void)done;
    *(uint64_t *)user = total;
    return false;
}

/* With f32 everywhere a parameter has 4 bytes, one of a router or a gate 2: so the bytes tell how many
 * there are. */
T_TEST(parameters_are_those_that_are_published)
{
    T_BEGIN;
    coli__sys_calls.disk_free = world_much_room;
    for (size_t i = 0; i < N_SIZE; i++) {
        char *out = world_path(world_scratch(), sizes[i].like);
        uint64_t total = 0;
        const coli_synth_opts o = {.struct_size = sizeof o,
                                   .like = sizes[i].like,
                                   .experts = "f32",
                                   .trunk = "f32",
                                   .progress = stop_and_tell,
                                   .user = &total};
        T_FAILS(coli_synth(out, &o), COLI_E_CANCELLED, "stopped");
        T_EQ(total, 4 * sizes[i].n_param - 2 * sizes[i].n_precise);
        free(out);
    }
}

/* Four value heads to a key head and sixteen query heads to a key: rows together, one by one, and on
 * another number of threads. */
T_TEST(the_larger_sisters_run)
{
    T_BEGIN;
    for (size_t i = 1; i < N_SIZE; i++) { // the 35B's heads are those of many tests
        const coli_synth_opts o = {.struct_size = sizeof o,
                                   .like = sizes[i].like,
                                   .n_layer = 4,
                                   .d_model = 128,
                                   .d_ff = 64,
                                   .n_expert = 16,
                                   .n_vocab = 500};
        char *out = world_path(world_scratch(), "narrow");
        T_OK(coli_synth(out, &o));
        T_OK(coli_verify(out, NULL, NULL));
        const digest whole = digest_run(out, NULL, 2, 64, 40);
        T_TRUE(whole.h == digest_run(out, NULL, 1, 1, 40).h);
        T_TRUE(whole.h == digest_run(out, "scalar", 3, 7, 40).h);
        coli_model *m = world_open(out, 1, NULL);
        T_EQ(m->shape.n_expert_used, sizes[i].n_expert_used);
        coli_model_close(m);
        coli__dir_remove(out);
        free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_those_that_are_published),
        cmocka_unit_test(the_larger_sisters_run),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
