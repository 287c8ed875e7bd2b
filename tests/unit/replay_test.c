/* replay_test.c - policies and the clock on traces so small that they are followed by hand. */
#include "coli/coli.h"
#include "libcoli/src/base/alloc.h"
#include "traces.h"

/* Foreign residents {3, 4}, of which 4 is the colder.  The prompt's set is {0, 1}, 0 used before 1. */
static void small_world(traces *t)
{
    *t = (traces){.all = {.n_expert = 5, .n_expert_used = 1}};
    traces_add(t, "a", "0 0 1 | 2 0 1 2 2 3 2");
    traces_add(t, "b", "3 3 3 | 4");
}

static coli__replay_result run(const traces *t, coli__replay_opts o)
{
    coli__replay_result result;
    T_OK(coli__replay_run(&t->all, 0, &o, &result));
    return result;
}

typedef struct hand {
    const char *policy;
    uint64_t n_hit, n_prompt_upload, n_upload;
} hand;

T_TEST(policies_by_hand)
{
    T_BEGIN;
    static const hand hands[] = {
        {"foreign", 1, 0, 0}, // 3
        {"others", 1, 0, 0},  // there is but one other
        {"same", 5, 0, 0},    // 2 four times, 0 three: {0, 2}
        {"prefill", 2, 2, 0}, // {0, 1}
        {"oracle", 5, 0, 0},  // 2 four times, then 0 by id: {0, 2}
        /* 2 for 0, 0 for 1, 1 for 2, 2 for 0, hit, 3 for 1, hit */
        {"lru", 2, 2, 5},
        /* {0, 2} at first; 1 and 3 are never used again, so they are not worth a slot */
        {"belady", 5, 0, 0},
        {"replan", 2, 2, 0}, // 0 for 4 and 1 for 3: the prompt's set
    };
    traces t;
    small_world(&t);
    for (size_t i = 0; i < sizeof hands / sizeof *hands; i++) {
        const coli__replay_result r = run(&t, traces_opts(hands[i].policy, 2));
        if (r.n_hit != hands[i].n_hit) print_error("%s\n", hands[i].policy);
        T_EQ(r.n_hit, hands[i].n_hit);
        T_EQ(r.n_prefill_upload, hands[i].n_prompt_upload);
        T_EQ(r.n_upload, hands[i].n_upload);
    }
}

T_TEST(belady_keeps_what_is_used_sooner)
{
    T_BEGIN;
    traces t = {.all = {.n_expert = 4, .n_expert_used = 1}};
    /* {0, 1} at first; 2 is used sooner than 0, and goes in for it; then 0 is missed and stays out,
     * for nobody uses it again */
    traces_add(&t, "a", "0 | 1 0 2 1 2 1 0");
    const coli__replay_result r = run(&t, traces_opts("belady", 2));
    T_EQ(r.n_hit, 5);
    T_EQ(r.n_upload, 1);
}

T_TEST(class_lru_keeps_what_is_used_often)
{
    T_BEGIN;
    traces t = {.all = {.n_expert = 4, .n_expert_used = 1}};
    traces_add(&t, "a", "0 0 0 0 1 | 2 0");
    T_EQ(run(&t, traces_opts("lru", 2)).n_hit, 0);       // 0 is the older one
    T_EQ(run(&t, traces_opts("class-lru", 2)).n_hit, 1); // 1 was used once
}

/* The prompt uses 0 0 5 7 10 9 1 0, residents are {0, 1, 2, 3}: one swap brings 4, two bring 5. */
T_TEST(why_a_replan_pays)
{
    T_BEGIN;
    traces t = {.all = {.n_expert = 8, .n_expert_used = 2}};
    traces_add(&t, "a", "45 45 43 45 34 52 34 52 34 52 34 52 34 52 34 56 | 45 43 52 46 34 54");
    traces_add(&t, "b", "01 23 | 01 23");
    coli__replay_opts o = traces_opts("replan", 4);
    T_EQ(run(&t, traces_opts("foreign", 4)).n_hit, 3);
    o.cap = 1;
    T_EQ(run(&t, o).n_hit, 8);
    o.cap = 2;
    T_EQ(run(&t, o).n_hit, 11);
    o.cap = 1000; // 6, used once, loses to 2, used five times
    T_EQ(run(&t, o).n_prefill_upload, 2);
    o.min_count = 10; // 5 was used nine times
    T_EQ(run(&t, o).n_prefill_upload, 1);
}

T_TEST(an_allowance_is_kept)
{
    T_BEGIN;
    traces t;
    small_world(&t);
    coli__replay_opts o = traces_opts("lru", 2);
    o.allowance = 2; // the prompt's set, and no more
    T_EQ(run(&t, o).n_hit, 2);
    T_EQ(run(&t, o).n_upload, 0);
    o.allowance = 4; // one more from the fourth token on, and one with the last, which hits
    const coli__replay_result r = run(&t, o);
    T_EQ(r.n_prefill_upload, 2);
    T_EQ(r.n_upload, 1);
}

/* One layer, experts of 1000 bytes, a row of 64 values, everything at 1 GB/s:
 *
 *     device     in 10 us + 68 ns, two launches of 5 us, 1 us of weights, out 10 us + 257 ns
 *     processor  1 us for the shared expert, 1 us for the miss
 *     trunk      7 us */
T_TEST(the_clock)
{
    T_BEGIN;
    traces t = {.all = {.n_expert = 2, .n_expert_used = 2}};
    traces_add(&t, "a", "01 | 01 01");
    coli__replay_opts o = traces_opts("foreign", 1);
    o.machine.link_bytes_per_s = 1000000000;
    o.machine.latency_ns = 10000;
    o.machine.kernel_ns = 5000;
    o.machine.trunk_token_ns = 7000;
    o.machine.trunk_row_ns = 1000;
    coli__replay_result r = run(&t, o);
    const double device = 10068 + 10000 + 1000 + 10257;
    T_EQ(r.prefill_ns, 1000 + device);
    T_EQ(r.decode_ns, 2 * (7000 + device));
    T_EQ(r.n_hit, 2);
    o.machine.cpu_bytes_per_s = 10000000; // now the device waits for the processor
    T_EQ(run(&t, o).decode_ns, 2 * (7000 + 200000));
    o.n_slot = 2; // nothing is missed: the shared expert alone
    T_EQ(run(&t, o).decode_ns, 2 * (7000 + 100000));
    o.machine.expert_mac = 300000; // 0.3 ms each at 1 GMAC/s, more than reading
    T_EQ(run(&t, o).decode_ns, 2 * (7000 + 300000));
}

T_TEST(an_upload_lands_when_it_is_done)
{
    T_BEGIN;
    traces t = {.all = {.n_expert = 4, .n_expert_used = 1}};
    traces_add(&t, "a", "0 | 0 0 0 0");
    traces_add(&t, "b", "3 | 3");
    coli__replay_opts o = traces_opts("replan", 1);
    T_EQ(run(&t, o).n_hit, 4);
    o.machine.link_bytes_per_s =
        1000000000;            // 1 us; a token takes 2 us, so it is there with the first
    T_EQ(run(&t, o).n_hit, 3); // but one: the prompt's layer was the last
    o.machine.slow = 100;      // longer than the answer
    const coli__replay_result r = run(&t, o);
    T_EQ(r.n_hit, 0);
    T_EQ(r.n_prefill_upload, 1);
    o.machine.waits = true; // the prompt pays
    T_EQ(run(&t, o).n_hit, 4);
    T_EQ(run(&t, o).prefill_ns - r.prefill_ns, 100000);
}

T_TEST(options_that_make_no_sense)
{
    T_BEGIN;
    traces t;
    small_world(&t);
    coli__replay_result r;
    coli__replay_opts o = traces_opts("nobody", 2);
    T_FAILS(coli__replay_run(&t.all, 0, &o, &r), COLI_E_INVALID, "no policy");
    o = traces_opts("lru", 0);
    T_FAILS(coli__replay_run(&t.all, 0, &o, &r), COLI_E_INVALID, "1 to 5 residents, found 0");
    o = traces_opts("lru", 6);
    T_FAILS(coli__replay_run(&t.all, 0, &o, &r), COLI_E_INVALID, "found 6");
    o = traces_opts("lru", 2);
    o.machine.cpu_bytes_per_s = 0;
    T_FAILS(coli__replay_run(&t.all, 0, &o, &r), COLI_E_INVALID, "speed");
}

/* Each allocation fails once, and nothing is lost. */
T_TEST(memory_may_run_out)
{
    T_BEGIN;
    traces t;
    small_world(&t);
    const coli__replay_opts o = traces_opts("replan-online", 2);
    coli_status status = COLI_E_NOMEM;
    for (uint64_t nth = 1; status != COLI_OK; nth++) {
        coli__replay_result r;
        coli__alloc_fail_at(nth);
        status = coli__replay_run(&t.all, 0, &o, &r);
        coli__alloc_fail_at(0);
        T_TRUE(status == COLI_OK || status == COLI_E_NOMEM);
        T_LE(nth, 40);
    }
}

/* ---- the public functions ------------------------------------------------------------------- */

static coli_replay *open_field(uint32_t n_threads)
{
    coli_replay *r;
    const coli_replay_part part = {.struct_size = sizeof part, .n_threads = n_threads};
    T_OK(coli_replay_open(TEST_FIXTURES "/traces/field256", &part, &r));
    return r;
}

T_TEST(threads_do_not_show)
{
    T_BEGIN;
    coli_replay *one = open_field(1), *three = open_field(3);
    coli_replay_result a[24], b[24];
    const coli_replay_opts opts = {
        .struct_size = sizeof opts, .n_resident = 64, .policy = "replan-online"};
    T_OK(coli_replay_run(one, &opts, a));
    T_OK(coli_replay_run(three, &opts, b));
    T_MEM(a, b, sizeof a);
    coli_replay_close(one);
    coli_replay_close(three);
}

T_TEST(public_functions_say_what_is_wrong)
{
    T_BEGIN;
    coli_replay *r = open_field(1);
    coli_replay_info info = {.struct_size = sizeof info};
    T_OK(coli_replay_get_info(r, &info));
    T_EQ(info.n_prompt, 24);
    T_EQ(info.n_layer, 3);
    T_EQ(info.n_expert, 256);
    T_EQ(info.n_expert_used, 8);
    T_EQ(info.n_answer_row, 24 * 300);
    coli_replay_result results[24];
    coli_replay_opts opts = {.struct_size = sizeof opts, .n_resident = 64, .policy = "lur"};
    T_FAILS(coli_replay_run(r, &opts, results), COLI_E_INVALID,
            "no policy \"lur\"; there are uniform, ");
    opts.policy = NULL;
    T_FAILS(coli_replay_run(r, &opts, results), COLI_E_INVALID, "no policy \"\"");
    opts.policy = "lru";
    opts.n_resident = 257;
    T_FAILS(coli_replay_run(r, &opts, results), COLI_E_INVALID, "1 to 256 residents, found 257");
    coli_replay_policy policy = {.struct_size = sizeof policy};
    T_FAILS(coli_replay_get_policy(coli_replay_n_policy(), &policy), COLI_E_INVALID, "below");
    coli_replay_close(r);
    T_FAILS(coli_replay_open(TEST_FIXTURES "/traces/none", NULL, &r), COLI_E_NOTFOUND, "none.json");
    T_TRUE(r == NULL);
    coli_replay_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_by_hand),
        cmocka_unit_test(belady_keeps_what_is_used_sooner),
        cmocka_unit_test(class_lru_keeps_what_is_used_often),
        cmocka_unit_test(why_a_replan_pays),
        cmocka_unit_test(an_allowance_is_kept),
        cmocka_unit_test(the_clock),
        cmocka_unit_test(an_upload_lands_when_it_is_done),
        cmocka_unit_test(options_that_make_no_sense),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(threads_do_not_show),
        cmocka_unit_test(public_functions_say_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
