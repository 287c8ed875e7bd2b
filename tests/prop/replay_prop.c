/* replay_prop.c - what holds for policies in any world.
 *
 *   (1) No policy that uploads only what was just missed, or nothing, has more hits than Belady's.
 *   (2) With room for all experts everything hits and nothing moves.
 *   (3) Residents chosen at random hit as often as they are many.
 *   (4) An allowance is never overdrawn, and one that is never reached changes nothing.
 *   (5) Hits are never more than uses; the clock never runs backwards; what waits costs no less. */
#include "libcoli/src/base/alloc.h"
#include "traces.h"

typedef struct world {
    coli__traces all;
    coli__trace at[8];
    char topics[8][2];
} world;

/* Rows of a Markov kind: an expert of the row before stays with some probability, others are drawn,
 * low ids more often. */
static void fill_trace(coli__trace *t, const coli__traces *all, uint32_t stay, t_rng *rng)
{
    t->ids = coli__calloc((size_t)t->n_layer * t->n_row, t->n_id * sizeof *t->ids);
    assert_non_null(t->ids);
    for (uint32_t row = 0; row < t->n_layer * t->n_row; row++) {
        int32_t *ids = t->ids + (size_t)row * t->n_id;
        for (uint32_t k = 0; k < t->n_id; k++) {
            bool again = row > 0 && t_below(rng, 100) < stay;
            for (bool taken = true; taken; again = false) {
                const uint32_t x = t_below(rng, all->n_expert), y = t_below(rng, all->n_expert);
                ids[k] = again ? ids[(int64_t)k - t->n_id] : (int32_t)(x < y ? x : y);
                taken = false;
                for (uint32_t i = 0; i < k; i++) taken = taken || ids[i] == ids[k];
            }
        }
    }
}

static void world_random(world *w, t_rng *rng)
{
    *w = (world){0};
    w->all.traces = w->at;
    w->all.n_trace = t_range(rng, 1, 5);
    w->all.n_layer = t_range(rng, 1, 3);
    w->all.n_expert = t_range(rng, 4, 24);
    w->all.n_expert_used = t_range(rng, 1, 4);
    const uint32_t stay = t_below(rng, 100);
    for (uint32_t i = 0; i < w->all.n_trace; i++) {
        w->topics[i][0] = (char)('a' + t_below(rng, 3));
        w->at[i] = (coli__trace){.name = w->topics[i],
                                 .topic = w->topics[i],
                                 .n_prompt = t_range(rng, 1, 40),
                                 .n_layer = w->all.n_layer,
                                 .n_id = w->all.n_expert_used};
        w->at[i].n_row = w->at[i].n_prompt + t_range(rng, 1, 60);
        fill_trace(&w->at[i], &w->all, stay, rng);
    }
}

static void world_finish(world *w)
{
    for (uint32_t i = 0; i < w->all.n_trace; i++) coli__free(w->at[i].ids);
}

static coli__replay_result run(const world *w, coli__replay_opts o)
{
    coli__replay_result r;
    T_OK(coli__replay_run(&w->all, 0, &o, &r));
    return r;
}

static uint64_t n_use(const world *w)
{
    return (uint64_t)(w->at[0].n_row - w->at[0].n_prompt) * w->all.n_layer * w->all.n_expert_used;
}

T_PROP(belady_is_the_bound, 400)
{
    static const char *const policies[] = {"uniform", "foreign", "others", "same",     "prefill",
                                           "replan",  "lru",     "oracle", "class-lru"};
    world w;
    world_random(&w, &rng);
    const uint32_t n_slot = t_range(&rng, 1, w.all.n_expert);
    const uint64_t bound = run(&w, traces_opts("belady", n_slot)).n_hit;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        coli__replay_opts o = traces_opts(policies[i], n_slot);
        o.seed = t_u64(&rng);
        T_LE(run(&w, o).n_hit, bound);
    }
    world_finish(&w);
}

T_PROP(room_for_all_is_enough, 100)
{
    world w;
    world_random(&w, &rng);
    for (uint32_t i = 0; i < coli__replay_n_policy; i++) {
        const coli__replay_result r =
            run(&w, traces_opts(coli__replay_policies[i].name, w.all.n_expert));
        T_EQ(r.n_hit, n_use(&w));
        T_EQ(r.n_prefill_hit, (uint64_t)w.at[0].n_prompt * w.all.n_layer * w.all.n_expert_used);
        T_EQ(r.n_upload + r.n_prefill_upload, 0);
    }
    world_finish(&w);
}

/* The mean over n sets is a mean of n draws from [0, 1] around the share: six standard errors. */
T_PROP(chance_hits_by_share, 20)
{
    enum { N = 400 };
    world w;
    world_random(&w, &rng);
    coli__replay_opts o = traces_opts("uniform", t_range(&rng, 1, w.all.n_expert));
    double sum = 0;
    for (uint32_t i = 0; i < N; i++) {
        o.seed = t_u64(&rng);
        sum += (double)run(&w, o).n_hit / (double)n_use(&w);
    }
    const double share = (double)o.n_slot / w.all.n_expert;
    T_FLE(fabs(sum / N - share), 6 * sqrt(share * (1 - share) / N) + 1e-9);
    world_finish(&w);
}

T_PROP(allowances_are_kept, 200)
{
    world w;
    world_random(&w, &rng);
    coli__replay_opts o = traces_opts("lru", t_range(&rng, 1, w.all.n_expert));
    o.policy = t_below(&rng, coli__replay_n_policy);
    const coli__replay_result free_one = run(&w, o);
    o.allowance = t_below(&rng, 200);
    coli__replay_result r = run(&w, o);
    T_LE(r.n_upload + r.n_prefill_upload, o.allowance);
    /* More in each token than there could be. */
    o.allowance = 1000 * (uint64_t)w.at[0].n_row * w.all.n_layer;
    r = run(&w, o);
    T_MEM(&r, &free_one, sizeof r);
    world_finish(&w);
}

T_PROP(time_passes, 200)
{
    world w;
    world_random(&w, &rng);
    coli__replay_opts o = traces_opts("lru", t_range(&rng, 1, w.all.n_expert));
    o.policy = t_below(&rng, coli__replay_n_policy);
    o.machine.link_bytes_per_s = 1 + t_below(&rng, 1000000000);
    o.machine.n_copy = t_range(&rng, 1, 6);
    o.machine.latency_ns = t_below(&rng, 20000);
    const coli__replay_result r = run(&w, o);
    T_LE(r.n_hit, n_use(&w));
    T_TRUE(r.prefill_ns > 0 && r.decode_ns > 0);
    const coli__replay_result again = run(&w, o);
    T_MEM(&r, &again, sizeof r);
    o.machine.trunk_row_ns = 1000;
    T_FGE(run(&w, o).prefill_ns, r.prefill_ns);
    world_finish(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(belady_is_the_bound),  cmocka_unit_test(room_for_all_is_enough),
        cmocka_unit_test(chance_hits_by_share), cmocka_unit_test(allowances_are_kept),
        cmocka_unit_test(time_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
