/* cuda_prop.c - the cuda plugin, emulated, gives the bits of coli/exact.h: all formats, random shapes,
 * numbers of rows and experts, joins, flags, whatever runs beside. */
#include "../support/cudaemu.h"

/* An expert's formats: gate and up have one group. */
static void random_formats(t_rng *rng, uint32_t formats[3])
{
    formats[0] = t_below(rng, COLI_BK_N_FORMAT);
    do formats[1] = t_below(rng, 3) ? formats[0] : t_below(rng, COLI_BK_N_FORMAT);
    while (coli_bk_layout_of(formats[0], 1).group != coli_bk_layout_of(formats[1], 1).group);
    formats[2] = t_below(rng, 3) ? formats[0] : t_below(rng, COLI_BK_N_FORMAT);
}

static void upload_experts(coli_bk_device *dev, uint64_t *seed, const uint32_t formats[3],
                           uint32_t d, uint32_t f, expert *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        T_OK(coli__ref_expert_block(seed, formats, d, f, &out[i].source));
        BK(bk.tensor_upload(dev, &out[i].source, &out[i].tensor), COLI_BK_OK);
    }
}

static const uint32_t some_rows[] = {0, 1, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33};

T_PROP(groups, 60)
{
    coli_bk_device *dev = emu_open("");
    uint64_t seed = t_u64(&rng);
    uint32_t formats[3], n_row[64];
    random_formats(&rng, formats);
    const uint32_t n_experts = t_range(&rng, 1, 4), n_expert = t_below(&rng, 10),
                   d = t_range(&rng, 1, 300), f = t_range(&rng, 1, 150), n_x = t_range(&rng, 1, 20);
    for (uint32_t i = 0; i < n_expert; i++) n_row[i] = some_rows[t_below(&rng, 14)];
    expert experts[4];
    upload_experts(dev, &seed, formats, d, f, experts, n_experts);
    for (int i = 0; i < 3; i++) {
        group g;
        group_make(&g, &seed, experts, n_experts, n_expert, n_row, n_x, i == 2);
        if (i > 0 && n_expert > 0) group_join(&g, &seed, t_below(&rng, 5));
        group_compute(&g);
        group_run(dev, &g);
        group_free(&g);
    }
    for (uint32_t i = 0; i < n_experts; i++) expert_free(dev, &experts[i]);
    emu_close(dev);
}

int main(void)
{
    emu_load();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
