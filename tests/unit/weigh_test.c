/* weigh_test.c - what uses of a prompt weigh, and what copies a machine affords. */
#include <math.h>

#include "t.h"

#include "libcoli/src/base/alloc.h"
#include "libcoli/src/moe/afford.h"
#include "libcoli/src/moe/weigh.h"

enum { N_LAYER = 2, N_EXPERT = 4, N_USED = 2 };

static void expect(const coli__weigh *w, uint32_t layer, uint32_t how, const uint32_t *past,
                   uint32_t unit, const uint32_t *want)
{
    uint32_t counts[N_EXPERT];
    T_EQ(coli__weigh_counts(w, layer, how, past, counts), unit);
    for (uint32_t e = 0; e < N_EXPERT; e++) T_EQ(counts[e], want[e]);
}

T_TEST(uses_late_uses_and_the_past)
{
    T_BEGIN;
    coli__weigh w;
    T_OK(coli__weigh_init(&w, N_LAYER, N_EXPERT));
    // four rows of layer 1, in two chunks: 0 in all, 1 in the first, 2 in the last two
    coli__weigh_use(&w, 1, (const int32_t[]){0, 1, 0, -1}, 2, N_USED);
    coli__weigh_use(&w, 1, (const int32_t[]){0, 2, 2, 0}, 2, N_USED);
    expect(&w, 1, 0, NULL, 1, (const uint32_t[]){4, 1, 2, 0});
    // 64 + 192 * row / 4: 64, 112, 160, 208
    expect(&w, 1, COLI__WEIGH_TAIL, NULL, 160, (const uint32_t[]){544, 64, 368, 0});
    // 25 rows of 2 uses, in shares of 1/4 and 3/4
    const uint32_t past[] = {0, 0, 1, 3};
    expect(&w, 1, COLI__WEIGH_PRIOR, past, 64, (const uint32_t[]){256, 64, 928, 2400});
    expect(&w, 1, COLI__WEIGH_PRIOR | COLI__WEIGH_TAIL, past, 160,
           (const uint32_t[]){544, 64, 1168, 2400});
    expect(&w, 1, COLI__WEIGH_PRIOR, (const uint32_t[N_EXPERT]){0}, 64,
           (const uint32_t[]){256, 64, 128, 0});
    expect(&w, 0, COLI__WEIGH_TAIL, NULL, 160, (const uint32_t[N_EXPERT]){0}); // the other layer
    coli__weigh_prompt(&w);
    expect(&w, 1, 0, NULL, 1, (const uint32_t[N_EXPERT]){0});
    coli__weigh_finish(&w);
    coli__weigh_finish(&w);
    coli__weigh_finish(NULL);
}

T_TEST(lack_of_memory)
{
    T_BEGIN;
    for (uint64_t nth = 1; nth <= 4; nth++) {
        coli__weigh w;
        coli__alloc_fail_at(nth);
        const coli_status status = coli__weigh_init(&w, N_LAYER, N_EXPERT);
        coli__alloc_fail_at(0);
        T_EQ(status, nth <= 3 ? COLI_E_NOMEM : COLI_OK);
        coli__weigh_finish(&w);
    }
}

/* The worked case of afford.c, and its edges. */
T_TEST(what_a_swap_must_gain)
{
    T_BEGIN;
    coli__speeds s = {.copy_ns = 1000, .host_ns = 300, .device_ns = 100};
    T_FLE(fabs(coli__afford_uses(&s, 400, 40) - 0.075), 1e-12);
    T_FLE(fabs(coli__afford_uses(&s, 0, 40) - 0.125), 1e-12);
    T_FLE(coli__afford_uses(&s, 1000, 40), 0); // nobody waits
    s.waits = true;
    T_FLE(fabs(coli__afford_uses(&s, 1000, 40) - 0.125), 1e-12);
    s.device_ns = 300;
    T_TRUE(isinf(coli__afford_uses(&s, 0, 40))); // a hit saves nothing
    s.copy_ns = 0;
    T_FLE(coli__afford_uses(&s, 0, 40), 0);
}

T_TEST(how_many_copies_fit)
{
    T_BEGIN;
    coli__speeds s = {.copy_ns = 1000};
    T_EQ(coli__afford_copies(&s, 999), 0);
    T_EQ(coli__afford_copies(&s, 3500), 3);
    T_TRUE(coli__afford_copies(&s, 1e18) == UINT64_MAX);
    s.waits = true; // nobody shares the link with them
    T_TRUE(coli__afford_copies(&s, 1) == UINT64_MAX);
    s = (coli__speeds){.copy_ns = 0};
    T_TRUE(coli__afford_copies(&s, 0) == UINT64_MAX);
}

/* The worked case of afford.c, and its edges. */
T_TEST(what_passes_through_a_device)
{
    T_BEGIN;
    const uint32_t rows[] = {40, 30, 20, 10};
    const coli__speeds s = {.pass_ns = 10, .pass_row_ns = 0.1, .host_row_ns = 1};
    T_EQ(coli__afford_stream(&s, 1, rows, 4), 2);
    T_EQ(coli__afford_stream(&s, 2, rows, 4), 3); // 19.5 < 30; and 10 rows take 10 here, 11 there
    T_EQ(coli__afford_stream(&s, 1, rows, 1), 1); // alone, it need only be faster there
    T_EQ(coli__afford_stream(&s, 1, rows + 3, 1), 0); // which it is not
    T_EQ(coli__afford_stream(&s, 1, rows, 0), 0);
    T_EQ(coli__afford_stream(&s, 0, rows, 4), 0);
    coli__speeds unknown = s;
    unknown.pass_ns = 0;
    T_EQ(coli__afford_stream(&unknown, 1, rows, 4), 0);
    unknown = s;
    unknown.host_row_ns = 0;
    T_EQ(coli__afford_stream(&unknown, 1, rows, 4), 0);
    const coli__speeds slow = {.pass_ns = 1, .pass_row_ns = 1, .host_row_ns = 1};
    T_EQ(coli__afford_stream(&slow, 1, rows, 4), 0); // rows are no faster there
    const coli__speeds fast = {.pass_ns = 1, .host_row_ns = 1};
    T_EQ(coli__afford_stream(&fast, 1, rows, 4), 4);
}

/* Copies of 10 that begin in ten layers, with so much idle time before each of them. */
static uint32_t paced(double idle_ns, double copy_ns)
{
    coli__pace p = {0};
    uint32_t n = 0;
    T_TRUE(copy_ns == 0 || !coli__pace_may(&p, copy_ns)); // nothing is known yet
    for (int layer = 0; layer < 10; layer++) {
        coli__pace_idle(&p, idle_ns, copy_ns);
        for (int i = 0; i < 10 && coli__pace_may(&p, copy_ns); i++, n++)
            coli__pace_took(&p, copy_ns);
    }
    return n;
}

T_TEST(copies_that_hold_back)
{
    T_BEGIN;
    T_EQ(paced(35, 10), 30); // three per layer, and what is left of each gap is past
    T_EQ(paced(10, 10), 10); // one
    T_EQ(paced(4, 10), 3);   // one in three layers
    T_EQ(paced(0, 10), 0);   // never
    T_EQ(paced(0, 0), 100);  // they take no time
    coli__pace p = {0};
    for (int layer = 0; layer < 1000; layer++) coli__pace_idle(&p, 12, 10);
    T_TRUE(coli__pace_may(&p, 12) && !coli__pace_may(&p, 12.1)); // time is not saved up
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uses_late_uses_and_the_past),
        cmocka_unit_test(lack_of_memory),
        cmocka_unit_test(what_a_swap_must_gain),
        cmocka_unit_test(how_many_copies_fit),
        cmocka_unit_test(copies_that_hold_back),
        cmocka_unit_test(what_passes_through_a_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
