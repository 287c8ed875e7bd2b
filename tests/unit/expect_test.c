/* expect_test.c - from bytes and speeds to a range of tokens per second: worked examples, and what must hold
 * for any. */
#include "t.h"

#include "libcoli/src/run/expect.h"

/* 1 GB from memory at 40 to 50 GB/s; nothing else takes time. */
static coli__expect_in memory_alone(void)
{
    return (coli__expect_in){.ram_bytes = 1000000000,
                             .kv_bytes = 500000000,
                             .n_mac = 1,
                             .ram = {40, 50},
                             .gmac = {100, 100}};
}

static coli_plan_result expected(const coli__expect_in *in)
{
    coli_plan_result r = {.struct_size = sizeof r};
    coli__expect(in, &r);
    return r;
}

static void expect_near(double found, double wanted)
{
    T_FGE(found, wanted * (1 - 1e-9));
    T_FLE(found, wanted * (1 + 1e-9));
}

T_TEST(memory_by_hand)
{
    T_BEGIN;
    const coli__expect_in in = memory_alone();
    const coli_plan_result r = expected(&in);
    expect_near(r.ram_ms_min, 1e3 / (50 * 0.95));
    expect_near(r.ram_ms_max, 1e3 / (40 * 0.6));
    expect_near(r.tok_s_max, 47.5);
    expect_near(r.tok_s_min, 24);
    expect_near(r.tok_s_full_max, 47.5 / 1.5);
    expect_near(r.tok_s_full_min, 16);
    T_EQ(r.bound, COLI_BOUND_MEMORY);
}

T_TEST(everything_by_hand)
{
    T_BEGIN;
    coli__expect_in in = memory_alone();
    in.disk_bytes = 100000000; // at 2 to 4 GB/s: 12.5 ms at best, 50 at worst
    in.disk[0] = 2;
    in.disk[1] = 4;
    in.vram_bytes = 300000000; // 3 ms, 4.5
    in.vram = 100;
    in.n_sync = 200; // of 5 to 10 us, and 500 to 1000 for drawing: 1.5 ms, 2 * 3
    in.sync_us[0] = 5;
    in.sync_us[1] = 10;
    in.sample_us[0] = 500;
    in.sample_us[1] = 1000;
    const coli_plan_result r = expected(&in);
    expect_near(r.disk_ms_min, 12.5);
    expect_near(r.disk_ms_max, 50);
    expect_near(r.vram_ms_min, 3);
    expect_near(r.vram_ms_max, 4.5);
    expect_near(r.other_ms_min, 1.5);
    expect_near(r.other_ms_max, 6);
    expect_near(r.tok_s_max,
                1e3 / (1e3 / 47.5 + 1.5)); // the slowest of those that run side by side
    expect_near(r.tok_s_min, 1e3 / (1e3 / 24.0 + 50 + 4.5 + 6));
    T_EQ(r.bound, COLI_BOUND_DISK);
}

T_TEST(what_takes_most_is_named)
{
    T_BEGIN;
    coli__expect_in in = memory_alone();
    in.n_mac = 2000000000; // 20 ms at 100 GMAC/s, 80 at a quarter
    T_EQ(expected(&in).bound, COLI_BOUND_COMPUTE);
    in = memory_alone();
    in.n_sync = 1000;
    in.sync_us[0] = in.sync_us[1] = 100;
    T_EQ(expected(&in).bound, COLI_BOUND_OTHER);
    in = memory_alone();
    in.vram_bytes = 1000000000;
    in.vram = 10;
    T_EQ(expected(&in).bound, COLI_BOUND_DEVICE);
}

/* Nothing is made up. */
T_TEST(unknown_speeds_give_no_range)
{
    T_BEGIN;
    coli__expect_in in = memory_alone();
    in.disk_bytes = 1;
    T_TRUE(expected(&in).tok_s_max == 0 && expected(&in).ram_ms_max == 0);
    in = memory_alone();
    in.vram_bytes = 1;
    T_TRUE(expected(&in).tok_s_max == 0);
    in = memory_alone();
    in.ram[0] = 0;
    T_TRUE(expected(&in).tok_s_max == 0);
    in = memory_alone();
    in.gmac[0] = 0;
    T_TRUE(expected(&in).tok_s_max == 0);
}

static coli__expect_in drawn(t_rng *rng)
{
    coli__expect_in in = {.ram_bytes = 1 + t_below(rng, 1u << 30),
                          .kv_bytes = t_below(rng, 1u << 30),
                          .disk_bytes = t_below(rng, 2) ? t_below(rng, 1u << 28) : 0,
                          .vram_bytes = t_below(rng, 2) ? t_below(rng, 1u << 28) : 0,
                          .n_mac = t_u64(rng) >> 32,
                          .n_sync = t_below(rng, 300),
                          .vram = 1 + 100 * t_unit(rng)};
    double *const ranges[] = {in.ram, in.disk, in.gmac, in.sync_us, in.sample_us};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        ranges[i][0] = 0.1 + 50 * t_unit(rng);
        ranges[i][1] = ranges[i][0] * (1 + t_unit(rng));
    }
    return in;
}

/* The range is one; a full context is never faster; fewer bytes or a faster machine never slower. */
T_PROP(ranges_are_sound, 2000)
{
    coli__expect_in in = drawn(&rng);
    const coli_plan_result r = expected(&in);
    T_TRUE(r.tok_s_min > 0);
    T_FLE(r.tok_s_min, r.tok_s_max);
    T_FLE(r.tok_s_full_min, r.tok_s_min);
    T_FLE(r.tok_s_full_max, r.tok_s_max);
    T_FLE(r.ram_ms_min, r.ram_ms_max);
    T_FLE(r.disk_ms_min, r.disk_ms_max);
    T_FLE(r.vram_ms_min, r.vram_ms_max);
    T_FLE(r.other_ms_min, r.other_ms_max);
    coli__expect_in less = in;
    less.ram_bytes /= 2;
    less.disk_bytes /= 2;
    T_FGE(expected(&less).tok_s_min, r.tok_s_min);
    T_FGE(expected(&less).tok_s_max, r.tok_s_max);
    coli__expect_in faster = in;
    faster.ram[0] *= 2;
    faster.ram[1] *= 2;
    T_FGE(expected(&faster).tok_s_min, r.tok_s_min);
    T_FGE(expected(&faster).tok_s_max, r.tok_s_max);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_by_hand),           cmocka_unit_test(everything_by_hand),
        cmocka_unit_test(what_takes_most_is_named), cmocka_unit_test(unknown_speeds_give_no_range),
        cmocka_unit_test(ranges_are_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
