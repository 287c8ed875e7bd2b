/* budget_test.c - what fits: the cases worked by hand, and sizes at the edges of 64 bits. */
#include "t.h"

#include "libcoli/src/math/matrix.h"
#include "libcoli/src/moe/budget.h"

static const uint64_t GIB = (uint64_t)1 << 30;

/* -- a device ---------------------------------------------------------------------------------- */

T_TEST(b2_an_expert_is_its_matrices_and_nothing_else)
{
    T_BEGIN;
    static const struct {
        const char *format;
        uint64_t n_bytes; // of a 35B's expert: gate and up (512, 2048), down (2048, 512)
    } cases[] = {{"int4-row-f32", 1585152},
                 {"int4-g64-f32", 1769472},
                 {"int8-row-f32", 3158016},
                 {"int4-g64-f16", 1671168}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli__wfmt fmt;
        uint64_t gate, down;
        T_OK(coli__wfmt_parse(cases[i].format, &fmt));
        T_TRUE(coli__mat_bytes(fmt, 512, 2048, &gate, NULL));
        T_TRUE(coli__mat_bytes(fmt, 2048, 512, &down, NULL));
        T_EQ(2 * gate + down, cases[i].n_bytes);
    }
}

T_TEST(b3_one_byte_less_is_one_expert_less)
{
    T_BEGIN;
    // sizes of experts in several formats and shapes, as a device's footprint rounds them
    static const uint64_t slots[] = {458752,  450560,  655360,  49152,   385024,
                                     1703936, 1892352, 3178496, 3170304, 1};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        T_EQ(coli__budget_slots(2 * slots[i] - 1, slots[i], 256), 1);
        T_EQ(coli__budget_slots(2 * slots[i], slots[i], 256), 2);
        T_EQ(coli__budget_slots(slots[i] - 1, slots[i], 256), 0);
    }
}

T_TEST(b4_seven_gib_of_a_35b)
{
    T_BEGIN;
    const uint64_t n = 40 * 256;
    T_EQ(coli__budget_slots(7 * GIB, 1703936, n), 4411);
    T_EQ(coli__budget_slots(7 * GIB, 1892352, n), 3971);
    T_EQ(coli__budget_slots(100 * GIB, 1703936, n), (int64_t)n); // never more than there are
    T_EQ(coli__budget_slots(GIB, 0, n), 0);
}

/* -- RAM --------------------------------------------------------------------------------------- */

static coli__ram_ask ask_35b(void)
{
    return (coli__ram_ask){.free_bytes = COLI__BUDGET_UNKNOWN,
                           .resident_bytes = 3000000000,
                           .slot_bytes = 1769472,
                           .n_layer = 40,
                           .n_expert = 256};
}

T_TEST(a5_experts_of_each_layer)
{
    T_BEGIN;
    static const struct {
        uint64_t ram_gb;
        uint32_t cap;
        bool all, is_short;
    } cases[] = {{8, 70, false, false},
                 {16, 183, false, false},
                 {24, 256, true, false}, // 296, but there are no more
                 {2, 1, false, true},
                 {3, 1, false, true}}; // the residents take all of it
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli__ram_ask ask = ask_35b();
        ask.ram_bytes = cases[i].ram_gb * 1000000000;
        const coli__ram_budget b = coli__budget_ram(&ask);
        T_EQ(b.cap, cases[i].cap);
        T_EQ(b.budget_bytes, ask.ram_bytes);
        T_EQ(b.holds_all, cases[i].all);
        T_EQ(b.is_short, cases[i].is_short);
    }
}

T_TEST(a5_without_a_word_88_percent_of_what_is_free)
{
    T_BEGIN;
    coli__ram_ask ask = ask_35b();
    ask.free_bytes = 20000000000;
    coli__ram_budget b = coli__budget_ram(&ask);
    T_EQ(b.cap, 248);
    T_EQ(b.expert_bytes, 17600000000);
    T_EQ(b.budget_bytes, 20600000000);
    ask.free_bytes = 0;
    b = coli__budget_ram(&ask);
    T_EQ(b.cap, 1);
    T_TRUE(b.is_short);
}

T_TEST(a_system_that_does_not_tell_is_taken_to_have_enough)
{
    T_BEGIN;
    const coli__ram_ask ask = ask_35b();
    const coli__ram_budget b = coli__budget_ram(&ask);
    T_EQ(b.cap, 256);
    T_TRUE(b.holds_all && !b.is_short);
    T_TRUE(b.budget_bytes == COLI__BUDGET_UNKNOWN);
}

T_TEST(exactly_enough_for_all_is_enough)
{
    T_BEGIN;
    coli__ram_ask ask = ask_35b();
    ask.ram_bytes = ask.resident_bytes + (uint64_t)40 * 256 * ask.slot_bytes;
    T_TRUE(coli__budget_ram(&ask).holds_all);
    ask.ram_bytes--;
    const coli__ram_budget b = coli__budget_ram(&ask);
    T_TRUE(!b.holds_all);
    T_EQ(b.cap, 255);
}

T_TEST(what_devices_hold_needs_no_ram)
{
    T_BEGIN;
    coli__ram_ask ask = ask_35b();
    ask.ram_bytes = 8000000000; // 70 of each layer
    const coli__ram_budget b = coli__budget_ram(&ask);
    uint32_t n_vram[40];
    for (int l = 0; l < 40; l++) n_vram[l] = 186;
    coli__split s = coli__budget_split(n_vram, 40, 256, &b);
    T_EQ(s.n_vram, 40 * 186);
    T_EQ(s.n_ram, 40 * 70);
    T_EQ(s.n_disk, 0);
    T_EQ(s.most, 70);
    n_vram[7]--; // one more is one too many, however much room the other layers have
    for (int l = 0; l < 7; l++) n_vram[l]++;
    s = coli__budget_split(n_vram, 40, 256, &b);
    T_EQ(s.n_vram, 40 * 186 + 6);
    T_EQ(s.n_disk, 1);
    T_EQ(s.most, 71);
    memset(n_vram, 0, sizeof n_vram);
    s = coli__budget_split(n_vram, 40, 256, &b);
    T_EQ(s.n_ram, 40 * 70);
    T_EQ(s.n_disk, 40 * 186);
    for (int l = 0; l < 40; l++) n_vram[l] = 256;
    s = coli__budget_split(n_vram, 40, 256, &b);
    T_EQ(s.n_ram + s.n_disk + s.most, 0);
}

T_TEST(a_shorter_context_makes_room)
{
    T_BEGIN;
    // 1000 bytes for a token
    T_EQ(coli__budget_shorter_ctx(8192, 8192000, 1), 7936);
    T_EQ(coli__budget_shorter_ctx(8192, 8192000, 4096000), 4096);
    T_EQ(coli__budget_shorter_ctx(8192, 8192000, 4096001), 3840);
    T_EQ(coli__budget_shorter_ctx(8192, 8192000, 8192000), 0);
    T_EQ(coli__budget_shorter_ctx(8192, 8192000, 8192001), 0);
    T_EQ(coli__budget_shorter_ctx(8192, 0, 1), 0); // no keys, no help
}

T_TEST(sizes_that_no_memory_has_do_not_wrap)
{
    T_BEGIN;
    coli__ram_ask ask = ask_35b();
    ask.slot_bytes = UINT64_MAX / 2; // times 40 layers
    ask.ram_bytes = UINT64_MAX - 1;
    coli__ram_budget b = coli__budget_ram(&ask);
    T_TRUE(b.is_short);
    T_EQ(b.cap, 1);
    ask = ask_35b();
    ask.resident_bytes = UINT64_MAX - 10;
    ask.free_bytes = UINT64_MAX - 1;
    b = coli__budget_ram(&ask);
    T_TRUE(b.is_short);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b2_an_expert_is_its_matrices_and_nothing_else),
        cmocka_unit_test(b3_one_byte_less_is_one_expert_less),
        cmocka_unit_test(b4_seven_gib_of_a_35b),
        cmocka_unit_test(a5_experts_of_each_layer),
        cmocka_unit_test(a5_without_a_word_88_percent_of_what_is_free),
        cmocka_unit_test(a_system_that_does_not_tell_is_taken_to_have_enough),
        cmocka_unit_test(exactly_enough_for_all_is_enough),
        cmocka_unit_test(what_devices_hold_needs_no_ram),
        cmocka_unit_test(a_shorter_context_makes_room),
        cmocka_unit_test(sizes_that_no_memory_has_do_not_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
