/* replay_golden.c - numbers that must not change, on the traces of tests/fixtures/traces.
 *
 * Those of field256 are published (README.md there): an independent program found them with the same
 * rules, so they are an oracle for the reader, the heat of foreign prompts, the plan and the sets that
 * stand still.  Uploads take no time there. */
#include "coli/coli.h"
#include "t.h"

static const double shares[5] = {0.125, 0.25, 0.375, 0.5, 0.8};

typedef struct column {
    const char *policy;
    uint32_t cap;
    double hit_rates[5];
} column;

static const column field256[] = {
    {"foreign", 0, {.248, .433, .584, .713, .924}},
    {"others", 0, {.298, .474, .625, .751, .940}},
    {"replan", 6, {.333, .508, .650, .765, .948}},
    {"replan", 12, {.384, .561, .688, .793, .956}},
    {"replan", 24, {.407, .605, .727, .820, .960}},
    {"replan", COLI_REPLAY_NO_CAP, {.406, .609, .738, .828, .960}},
    {"prefill", 0, {.405, .603, .737, .823, .949}},
    {"oracle", 0, {.634, .812, .902, .953, 1.000}},
};

/* Ours alone, to see what a change changes. */
static const column ours_field256[] = {
    {"lru", 0, {.543, .739, .842, .905, .980}},
    {"class-lru", 0, {.595, .767, .859, .914, .980}},
    {"replan-online", 24, {.611, .770, .858, .912, .981}},
    {"belady", 0, {.756, .879, .935, .966, 1.000}},
};
static const column ours_hummingbird[] = {
    {"foreign", 0, {.1255, .2508, .3810, .5101, .8037}},
    {"replan", COLI_REPLAY_NO_CAP, {.2070, .3689, .5091, .6350, .8843}},
    {"replan-online", COLI_REPLAY_NO_CAP, {.2156, .3784, .5204, .6469, .8896}},
    {"class-lru", 0, {.1872, .3271, .4804, .6078, .8718}},
};

static double mean_hit_rate(coli_replay *r, const column *c, double share)
{
    coli_replay_info info = {.struct_size = sizeof info};
    T_OK(coli_replay_get_info(r, &info));
    coli_replay_machine m = {.struct_size = sizeof m};
    T_OK(coli_replay_machine_default(&m));
    m.link_bytes_per_s = 0;
    coli_replay_result *results = calloc(info.n_prompt, sizeof *results);
    const coli_replay_opts opts = {.struct_size = sizeof opts,
                                   .n_resident = (uint32_t)(share * info.n_expert + 0.5),
                                   .policy = c->policy,
                                   .cap = c->cap,
                                   .machine = &m};
    T_OK(coli_replay_run(r, &opts, results));
    double sum = 0;
    for (uint32_t i = 0; i < info.n_prompt; i++) sum += results[i].hit_rate;
    free(results);
    return sum / info.n_prompt;
}

static void compare(const char *name, const column *columns, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/traces/%s", TEST_FIXTURES, name);
    coli_replay *r;
    T_OK(coli_replay_open(path, NULL, &r));
    int n_wrong = 0;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 5; k++) {
            const double found = mean_hit_rate(r, &columns[i], shares[k]);
            if (fabs(found - columns[i].hit_rates[k]) <= 0.0005 + 1e-9) continue;
            print_error("%s: %s, cap %u, at %.1f %%: expected %.3f, found %.4f\n", name,
                        columns[i].policy, columns[i].cap, shares[k] * 100, columns[i].hit_rates[k],
                        found);
            n_wrong++;
        }
    coli_replay_close(r);
    T_EQ(n_wrong, 0);
}

T_TEST(published_numbers)
{
    T_BEGIN;
    compare("field256", field256, sizeof field256 / sizeof *field256);
}

T_TEST(our_numbers)
{
    T_BEGIN;
    compare("field256", ours_field256, sizeof ours_field256 / sizeof *ours_field256);
    compare("hummingbird", ours_hummingbird, sizeof ours_hummingbird / sizeof *ours_hummingbird);
}

/* Swaps that wait for an idle link have no price in time to first token, on a link where the others
 * do, and end up with the hits of the re-plan. */
T_TEST(swaps_that_hold_back_cost_no_time)
{
    T_BEGIN;
    coli_replay *r;
    T_OK(coli_replay_open(TEST_FIXTURES "/traces/field256", NULL, &r));
    coli_replay_info info = {.struct_size = sizeof info};
    T_OK(coli_replay_get_info(r, &info));
    coli_replay_machine m = {.struct_size = sizeof m};
    T_OK(coli_replay_machine_default(&m));
    m.link_bytes_per_s = 20000000;
    static const char *const policies[] = {"foreign", "replan", "replan-hold"};
    double ttft[3] = {0}, hits[3] = {0};
    coli_replay_result *results = calloc(info.n_prompt, sizeof *results);
    for (int i = 0; i < 3; i++) {
        const coli_replay_opts opts = {
            .struct_size = sizeof opts, .n_resident = 96, .policy = policies[i], .machine = &m};
        T_OK(coli_replay_run(r, &opts, results));
        for (uint32_t k = 0; k < info.n_prompt; k++) {
            ttft[i] += results[k].ttft_ms;
            hits[i] += results[k].hit_rate / info.n_prompt;
        }
    }
    free(results);
    coli_replay_close(r);
    T_FGE(ttft[1], 1.5 * ttft[0]);
    T_FLE(ttft[2], 1.02 * ttft[0]);
    T_FGE(hits[2], hits[1] - 0.005);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_numbers),
        cmocka_unit_test(our_numbers),
        cmocka_unit_test(swaps_that_hold_back_cost_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
