/* route_run.c - cache-aware routing in a running model: what it leaves alone, that its runs can be
 * repeated, what it looks at and when, and what it counts. */
#include "swapped_run.h"

#include "libcoli/src/base/alloc.h"

static const char demo[] = TEST_MODELS "/hummingbird";

static coli_route_opts route_opts(void)
{
    coli_route_opts o = {.struct_size = sizeof o};
    T_OK(coli_route_default(&o));
    T_TRUE(!o.cache_route && !o.agree && !o.live && o.j == 2 && o.m == 12);
    T_TRUE(o.p == 0 && o.alpha == 1);
    o.cache_route = o.agree = true;
    return o;
}

static coli_session *session_of(coli_model *m, uint32_t n_chunk, const coli_route_opts *route)
{
    coli_session *s;
    const coli_session_opts opts = {
        .struct_size = sizeof opts, .n_ctx = 256, .n_chunk = n_chunk, .route = route};
    T_OK(coli_session_create(m, &opts, &s));
    return s;
}

static coli_model *model_of(const char *dir, double percent, uint32_t n_threads, const char *isa)
{
    coli_model_opts opts = backend_opts(percent, false, NULL);
    opts.n_threads = n_threads;
    opts.isa = isa;
    coli_model *m;
    T_OK(coli_model_open(dir, &opts, &m));
    return m;
}

static coli_route_stats stats_of(const coli_model *m)
{
    coli_route_stats s = {.struct_size = sizeof s};
    T_OK(coli_model_get_route_stats(m, &s));
    return s;
}

/* All logits, ids and weights of a prompt, and what the model has counted so far. */
static digest digest_with(coli_model *m, uint32_t n_chunk, const coli_route_opts *route,
                          coli_route_stats *stats)
{
    coli_session *s = session_of(m, n_chunk, route);
    const digest d = digest_in(s, N_PROMPT);
    coli_session_destroy(s);
    if (stats) *stats = stats_of(m);
    return d;
}

/* ---- what it leaves alone ------------------------------------------------------------------ */

T_TEST(off_is_as_before)
{
    T_BEGIN;
    const digest want = digest_run(demo, NULL, 2, 512, N_PROMPT);
    coli_route_stats s;
    coli_model *m = model_of(demo, 25, 2, NULL);
    T_EQ(digest_with(m, 512, NULL, &s).h, want.h);
    T_EQ(s.route_slots + s.route_swaps + s.n_compared + s.n_row, 0);
    T_TRUE(s.swap_pct == 0 && s.route_agree == 0 && s.route_kl == 0);

    coli_route_opts meter = route_opts();
    meter.cache_route = false;
    T_EQ(digest_with(m, 512, &meter, &s).h, want.h);
    const uint64_t n_row = (uint64_t)N_PROMPT * want.n_layer;
    T_EQ(s.route_slots + s.route_swaps, 0);
    T_EQ(s.n_row, n_row);
    T_EQ(s.n_compared, n_row * want.k);
    T_TRUE(s.route_agree == 100 && s.route_kl == 0);
    coli_model_close(m);
}

/* Nothing that could be preferred: no device, all on the device, all ranks sure, none but the true in
 * the window. */
T_TEST(nothing_to_prefer_is_plain)
{
    T_BEGIN;
    const digest want = digest_run(demo, NULL, 2, 512, N_PROMPT);
    for (int i = 0; i < 4; i++) {
        coli_route_opts o = route_opts();
        if (i == 2) o.j = want.k;
        if (i == 3) o.m = want.k;
        if (i < 2) o.j = 0;
        const double percent = i == 1 ? 100 : 50;
        coli_model *m = i == 0 ? world_open(demo, 2, NULL) : model_of(demo, percent, 2, NULL);
        coli_route_stats s;
        const digest got = digest_with(m, 512, &o, &s);
        T_EQ(got.h, want.h);
        T_EQ(s.route_swaps, 0);
        T_EQ(s.route_slots, (uint64_t)N_PROMPT * want.n_layer * want.k);
        T_TRUE(s.swap_pct == 0 && s.route_agree == 100 && s.route_kl == 0);
        coli_model_close(m);
    }
}

static bool keep_all(void *ctx, coli__st_out *tensor)
{
    (void)ctx;
    (void)tensor;
    return true;
}

T_TEST(a_top_two_model_swaps_nothing)
{
    T_BEGIN;
    char checkpoint[128];
    snprintf(checkpoint, sizeof checkpoint, "%s/top2", world_scratch());
    const char *sed = "s/\"num_experts_per_tok\": 4/\"num_experts_per_tok\": 2/";
    world_checkpoint(TEST_FIXTURES "/qwen36-tiny-a", checkpoint, sed, keep_all, NULL);
    char *dir = world_container(checkpoint, "two", "int4", "int8");
    const digest want = digest_run(dir, NULL, 2, 512, N_PROMPT);
    T_EQ(want.k, 2);
    coli_model *m = model_of(dir, 50, 2, NULL);
    coli_route_opts o = route_opts();
    coli_route_stats s;
    T_EQ(digest_with(m, 512, &o, &s).h, want.h);
    T_TRUE(s.swap_pct == 0 && s.route_agree == 100 && s.route_kl == 0);
    T_EQ(s.route_slots, (uint64_t)N_PROMPT * want.n_layer * 2);
    o.j = 1; // and yet there is something to swap
    digest_with(m, 512, &o, &s);
    T_TRUE(s.route_swaps > 0);
    coli_model_close(m);
    free(dir);
}

/* ---- a run can be repeated ----------------------------------------------------------------- */

T_TEST(same_bytes_everywhere)
{
    T_BEGIN;
    static const uint32_t threads[] = {1, 2, 5}, cuts[] = {512, 64, 7, 1};
    coli_route_opts o = route_opts();
    o.alpha = 0.75f;
    const digest plain = digest_run(demo, NULL, 2, 512, N_PROMPT);
    coli_model *m = model_of(demo, 25, 2, "scalar");
    coli_route_stats first, s;
    const digest want = digest_with(m, 512, &o, &first);
    coli_model_close(m);
    T_TRUE(want.h != plain.h);
    T_TRUE(first.route_swaps > 0 && first.route_kl > 0);
    T_EQ(first.route_swaps, first.route_swaps_vram); // the rest is mapped: one level
    T_TRUE(fabs(first.route_agree + first.swap_pct - 100) < 1e-9);
    for (const char *const *isa = world_isas(); *isa; isa++)
        for (size_t t = 0; t < 3; t++)
            for (size_t c = 0; c < 4; c++) {
                if (!strcmp(*isa, "scalar") && (t != 1 || c != 2)) continue; // slow
                m = model_of(demo, 25, threads[t], *isa);
                const digest got = digest_with(m, cuts[c], &o, &s);
                if (got.h != want.h)
                    print_error("%s, %u threads, chunk %u:\n", *isa, threads[t], cuts[c]);
                T_EQ(got.h, want.h);
                T_MEM(&s, &first, sizeof s); // the meters, too
                coli_model_close(m);
            }
    print_message("    swap %.1f %%, agree %.1f %%, kl %.4f\n", first.swap_pct, first.route_agree,
                  first.route_kl);
}

/* ---- what it looks at, and when ------------------------------------------------------------ */

static const int32_t run_prompt[] = {3, 141, 59, 26, 5, 35, 89, 79, 32, 38};
enum { N_RUN_PROMPT = sizeof run_prompt / sizeof *run_prompt };

/* A turn of ten tokens and six; maybe with a swap in every layer after each.  out (RUN_ROWS, RUN_VOCAB) */
static void turn(coli_session *s, coli_model *m, bool swaps, float *out)
{
    T_OK(coli_session_feed(s, run_prompt, N_RUN_PROMPT));
    for (uint32_t i = 0;; i++) {
        memcpy(out + i * RUN_VOCAB, coli_session_logits(s), RUN_VOCAB * sizeof *out);
        if (i == RUN_TOKENS) break;
        if (swaps) run_swap(m, i);
        const int32_t id = (int32_t)(7 * i + 1);
        T_OK(coli_session_feed(s, &id, 1));
    }
}

static float still[2][RUN_FLOATS], moved[2][RUN_FLOATS];

/* Two turns where experts stay, and where they move in the first. */
static void two_turns(bool live)
{
    coli_route_opts o = route_opts();
    o.live = live;
    o.j = 1;
    for (int swaps = 0; swaps < 2; swaps++) {
        coli_model *m = model_of(run_dir, 50, 2, NULL);
        coli_session *s = session_of(m, 4, &o);
        turn(s, m, swaps, swaps ? moved[0] : still[0]);
        turn(s, m, false, swaps ? moved[1] : still[1]);
        T_TRUE(stats_of(m).route_swaps > 0);
        coli_session_destroy(s);
        coli_model_close(m);
    }
}

T_TEST(a_turn_goes_by_its_beginning)
{
    T_BEGIN;
    two_turns(false);
    T_MEM(still[0], moved[0], sizeof still[0]);
    T_TRUE(memcmp(still[1], moved[1], sizeof still[1]) != 0); // the next turn has looked again
}

T_TEST(live_follows_step_by_step)
{
    T_BEGIN;
    two_turns(true);
    const size_t prompt = RUN_VOCAB * sizeof(float);
    T_MEM(still[0], moved[0], prompt); // before the first swap
    T_TRUE(memcmp(still[0], moved[0], sizeof still[0]) != 0);
}

/* One token at a time begins no turn, but the first after a reset does. */
T_TEST(when_a_turn_begins)
{
    T_BEGIN;
    coli_route_opts o = route_opts();
    coli_model *m = model_of(run_dir, 50, 2, NULL);
    coli_session *s = session_of(m, 4, &o);
    T_TRUE(s->router->turn_begins);
    const int32_t one = 3;
    T_OK(coli_session_feed(s, &one, 1));
    T_TRUE(!s->router->turn_begins);
    uint8_t before[RUN_LAYERS * RUN_EXPERTS];
    const coli__levels *l = &s->router->levels;
    T_EQ(l->n_layer, RUN_LAYERS);
    T_EQ(l->n_expert, RUN_EXPERTS);
    memcpy(before, l->level, sizeof before);
    uint32_t n_vram = 0;
    for (size_t i = 0; i < sizeof before; i++) {
        T_TRUE(before[i] == COLI_LEVEL_RAM || before[i] == COLI_LEVEL_VRAM);
        n_vram += before[i] == COLI_LEVEL_VRAM;
    }
    T_EQ(n_vram, backend_stats(m).n_expert);
    run_swap(m, 0);
    T_OK(coli_session_feed(s, &one, 1));
    T_MEM(l->level, before, sizeof before);
    coli_session_reset(s);
    T_OK(coli_session_feed(s, &one, 1));
    T_TRUE(memcmp(l->level, before, sizeof before) != 0);
    for (uint32_t i = 0; i < RUN_LAYERS; i++) {
        const coli__ct_experts *layer = coli__container_experts(m->container, i);
        coli__slot slot;
        for (uint32_t e = 0; e < RUN_EXPERTS; e++)
            T_EQ(coli__levels_of(l, layer->layer)[e],
                 coli__tier_find(m->tier, layer, e, &slot) ? COLI_LEVEL_VRAM : COLI_LEVEL_RAM);
    }
    coli_session_destroy(s);
    coli_model_close(m);
}

/* Experts move by heat in the first turn; the second looks when their copies have landed. */
T_TEST(a_turn_after_swaps_can_be_repeated)
{
    T_BEGIN;
    enum { N_TOKEN = 80 };
    coli_route_opts o = route_opts();
    digest want = {0};
    for (uint32_t i = 0; i < 3; i++) {
        coli_model *m = model_of(demo, 25, 1 + i, NULL);
        coli_session *s = session_of(m, 0, &o);
        T_OK(coli_session_feed(s, run_prompt, N_RUN_PROMPT));
        for (int32_t t = 0; t < N_TOKEN; t++) {
            const int32_t id = 300 + t % 7;
            T_OK(coli_session_feed(s, &id, 1));
        }
        T_TRUE(backend_stats(m).n_swap > 0);
        const digest got = digest_in(s, N_PROMPT);
        if (i == 0) want = got;
        T_EQ(got.h, want.h);
        coli_session_destroy(s);
        coli_model_close(m);
    }
}

/* ---- levels ------------------------------------------------------------------------------- */

/* With n_slot experts of each layer in RAM; percent below 0: and no device. */
static coli_model *model_in_ram(double percent, uint32_t n_threads, uint32_t n_slot)
{
    coli_model_opts opts = backend_opts(percent < 0 ? 0 : percent, false, NULL);
    if (percent < 0) opts.backend = "none";
    opts.n_threads = n_threads;
    opts.ram_experts = n_slot;
    coli_model *m;
    T_OK(coli_model_open(demo, &opts, &m));
    return m;
}

typedef struct outcome {
    digest d;
    coli_route_stats route;
    coli_store_stats store;
} outcome;

/* A turn that fills the RAM, and the same prompt again, of which the outcome is. */
static outcome second_turn(coli_model *m, uint32_t n_chunk, const coli_route_opts *o)
{
    outcome r = {.store = {.struct_size = sizeof r.store}};
    coli_session *s = session_of(m, n_chunk, o);
    digest_in(s, N_PROMPT);
    const coli_route_stats first = stats_of(m);
    coli_session_reset(s);
    r.d = digest_in(s, N_PROMPT);
    r.route = stats_of(m);
    r.route.route_swaps -= first.route_swaps;
    r.route.route_swaps_vram -= first.route_swaps_vram;
    T_OK(coli_model_get_store_stats(m, &r.store));
    coli_session_destroy(s);
    return r;
}

static const uint32_t chunks[] = {32, 7, 512, 1};

T_TEST(memory_alone)
{
    T_BEGIN;
    const digest plain = digest_run(demo, NULL, 2, 512, N_PROMPT);
    coli_route_opts o = route_opts();
    coli_model *m = model_in_ram(-1, 2, 16);
    coli_route_stats cold;
    T_EQ(digest_with(m, 512, &o, &cold).h, plain.h); // nothing was read yet: nothing is preferred
    T_EQ(cold.route_swaps, 0);
    coli_model_close(m);

    digest want = {0};
    for (uint32_t i = 0; i < 4; i++) { // also where chunks use more experts than there are slots
        m = model_in_ram(-1, 1 + i, 16);
        const outcome got = second_turn(m, chunks[i], &o);
        T_TRUE(got.route.route_swaps > 0);
        T_EQ(got.route.route_swaps_vram, 0);
        if (i == 0) want = got.d;
        T_EQ(got.d.h, want.h);
        T_TRUE(got.d.h != plain.h);
        coli_model_close(m);
    }
}

T_TEST(memory_and_a_device)
{
    T_BEGIN;
    coli_route_opts o = route_opts();
    digest want = {0};
    for (uint32_t i = 0; i < 4; i++) {
        coli_model *m = model_in_ram(25, 1 + i, 16);
        const outcome got = second_turn(m, chunks[i], &o);
        T_TRUE(got.route.route_swaps_vram > 0);
        T_TRUE(got.route.route_swaps > got.route.route_swaps_vram); // two levels
        if (i == 0) want = got.d;
        T_EQ(got.d.h, want.h);
        coli_model_close(m);
    }
}

/* What it is for, without a device: fewer experts are read. */
T_TEST(fewer_reads)
{
    T_BEGIN;
    uint64_t n_miss[3];
    for (uint32_t i = 0; i < 3; i++) {
        coli_route_opts o = route_opts();
        o.live = i == 2;
        coli_model *m = model_in_ram(-1, 2, 16);
        const outcome got = second_turn(m, 1, i ? &o : NULL);
        n_miss[i] = got.store.n_miss;
        print_message("    %s: %" PRIu64 " misses\n",
                      i == 0   ? "off"
                      : i == 1 ? "on"
                               : "live",
                      n_miss[i]);
        coli_model_close(m);
    }
    T_TRUE(n_miss[1] < n_miss[0] && n_miss[2] < n_miss[1]);
}

/* Where experts are said to be, without a device: as with one that holds them. */
T_TEST(a_placement_that_is_said)
{
    T_BEGIN;
    coli_route_opts o = route_opts();
    coli_model *m = model_of(demo, 25, 2, NULL);
    coli_route_stats want_stats, got_stats;
    const digest want = digest_with(m, 512, &o, &want_stats);
    const uint32_t n = m->shape.n_moe_layer * m->shape.n_expert;
    uint8_t *levels = calloc(n, 1);
    for (uint32_t i = 0; i < n; i++) {
        const coli__ct_experts *layer = coli__container_experts(m->container, i / 64);
        coli__slot slot;
        T_EQ(layer->n_expert, 64);
        levels[i] =
            coli__tier_find(m->tier, layer, i % 64, &slot) ? COLI_LEVEL_VRAM : COLI_LEVEL_RAM;
    }
    coli_model_close(m);
    m = world_open(demo, 2, NULL);
    o.levels = levels;
    T_EQ(digest_with(m, 7, &o, &got_stats).h, want.h);
    T_MEM(&got_stats, &want_stats, sizeof got_stats);
    levels[n - 1] = 3;
    coli_session *s;
    const coli_session_opts opts = {.struct_size = sizeof opts, .route = &o};
    T_FAILS(coli_session_create(m, &opts, &s), COLI_E_INVALID,
            "expert 63 of layer 7: expected a coli_level, found 3");
    free(levels);
    coli_model_close(m);
}

/* The choice was made by where experts were; that the device is gone now changes who computes them. */
T_TEST(a_lost_device_does_not_change_a_turn)
{
    T_BEGIN;
    coli_route_opts o = route_opts();
    for (uint32_t at = 0; at < 60; at += 10) {
        coli_model *m = model_of(run_dir, 50, 2, NULL);
        coli_session *s = session_of(m, 4, &o);
        T_OK(coli_session_feed(s, run_prompt, 1)); // where experts are is known from here on
        shim_set(at ? SHIM_LOSE : SHIM_NONE, at, NULL, NULL);
        for (int32_t i = 0; i < RUN_ROWS; i++) {
            T_OK(coli_session_feed(s, &run_prompt[i + 1], 1));
            memcpy((at ? moved : still)[0] + i * RUN_VOCAB, coli_session_logits(s),
                   RUN_VOCAB * sizeof(float));
        }
        T_EQ(backend_stats(m).n_device_lost, at > 0);
        coli_session_destroy(s);
        coli_model_close(m);
        shim_set(SHIM_NONE, 0, NULL, NULL);
        if (at) T_MEM(moved[0], still[0], sizeof still[0]);
    }
}

/* ---- what it counts ------------------------------------------------------------------------ */

typedef struct uses {
    const coli_model *m;
    uint32_t count[RUN_LAYERS][RUN_EXPERTS];
} uses;

static bool count_uses(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                       const int32_t *expert_ids, const float *expert_w)
{
    (void)pos;
    (void)logits;
    (void)expert_w;
    uses *u = user;
    const uint32_t k = u->m->shape.n_expert_used;
    for (uint32_t l = 0; l < RUN_LAYERS; l++)
        for (uint32_t i = 0; i < n_row * k; i++)
            u->count[l][expert_ids[(size_t)l * n_row * k + i]]++;
    return true;
}

/* Heat, and with it re-planning, counts what was chosen. */
T_TEST(heat_counts_the_chosen)
{
    T_BEGIN;
    coli_route_opts o = route_opts();
    o.j = 0;
    coli_model *m = model_of(run_dir, 50, 2, NULL);
    coli_session *s = session_of(m, 4, &o);
    uses u = {.m = m};
    T_OK(coli_session_eval(s, run_prompt, N_RUN_PROMPT, count_uses, &u));
    T_TRUE(stats_of(m).route_swaps > 0);
    T_MEM(coli__tier_heat(m->tier), u.count, sizeof u.count);
    const coli_backend_stats b = backend_stats(m);
    T_EQ(b.n_row_device + b.n_row_host, (uint64_t)N_RUN_PROMPT * RUN_LAYERS * 4);
    coli_session_destroy(s);
    coli_model_close(m);
}

/* More of what is used is on the device: what it is for. */
T_TEST(more_hits_with_smaller_j)
{
    T_BEGIN;
    uint64_t n_hit[4], n_swap[4];
    for (uint32_t j = 0; j < 4; j++) {
        coli_model *m = model_of(demo, 25, 2, NULL);
        coli_route_opts o = route_opts();
        o.j = j < 3 ? j : 6;
        coli_route_stats s;
        digest_with(m, 512, &o, &s);
        n_hit[j] = backend_stats(m).n_row_device;
        n_swap[j] = s.route_swaps;
        print_message("    J %u: %.1f %% on the device, swap %.1f %%\n", o.j,
                      100.0 * (double)n_hit[j] / (double)s.route_slots, s.swap_pct);
        coli_model_close(m);
    }
    T_TRUE(n_hit[0] > n_hit[1] && n_hit[1] > n_hit[2] && n_hit[2] > n_hit[3]);
    T_TRUE(n_swap[0] > n_swap[1] && n_swap[1] > n_swap[2] && n_swap[2] > 0 && n_swap[3] == 0);
}

T_TEST(sessions_add_up)
{
    T_BEGIN;
    coli_model *m = model_of(demo, 25, 2, NULL);
    coli_route_opts o = route_opts();
    coli_route_stats one, two, three;
    digest_with(m, 512, &o, &one);
    digest_with(m, 512, &o, &two);
    T_EQ(two.route_swaps, 2 * one.route_swaps);
    T_EQ(two.route_slots, 2 * one.route_slots);
    T_TRUE(two.kl_sum == 2 * one.kl_sum && two.route_kl == one.route_kl);
    o.agree = false; // then only swaps
    digest_with(m, 512, &o, &three);
    T_EQ(three.route_swaps, 3 * one.route_swaps);
    T_EQ(three.n_row, two.n_row);
    T_EQ(three.n_compared, two.n_compared);
    T_TRUE(three.kl_sum == two.kl_sum);
    coli_model_close(m);
}

T_TEST(nothing_is_allocated)
{
    T_BEGIN;
    coli_route_opts o = route_opts();
    coli_model *m = model_of(run_dir, 50, 2, NULL);
    for (int live = 0; live < 2; live++) {
        o.live = live;
        coli_session *s = session_of(m, 4, &o);
        T_OK(coli_session_feed(s, run_prompt, N_RUN_PROMPT));
        const uint64_t before = coli__alloc_count();
        T_OK(coli_session_feed(s, run_prompt, N_RUN_PROMPT));
        T_OK(coli_session_feed(s, run_prompt, 1));
        T_EQ(coli__alloc_count(), before);
        coli_session_destroy(s);
    }
    coli_model_close(m);
}

/* ---- what it refuses ----------------------------------------------------------------------- */

T_TEST(options_that_make_no_sense)
{
    T_BEGIN;
    coli_model *m = model_of(run_dir, 50, 2, NULL);
    coli_session *s;
    coli_route_opts o;
    const coli_session_opts opts = {.struct_size = sizeof opts, .route = &o};
#define REFUSES(change, text)                                                                      \
    o = route_opts();                                                                              \
    change;                                                                                        \
    T_FAILS(coli_session_create(m, &opts, &s), COLI_E_INVALID, text);                              \
    T_TRUE(s == NULL)
    REFUSES(o.struct_size = 2, "coli_route_opts: struct_size is 2");
    REFUSES(o.cache_route = o.agree = false, "expected cache_route or agree");
    REFUSES(o.m = 0, "m: expected 1 or more");
    REFUSES(o.p = -0.5f, "p: expected 0 to 1, found -0.5");
    REFUSES(o.p = NAN, "p: expected 0 to 1");
    REFUSES(o.alpha = 1.5f, "alpha: expected 0 to 1, found 1.5");
#undef REFUSES
    coli_route_stats stats = {.struct_size = 1};
    T_FAILS(coli_model_get_route_stats(m, &stats), COLI_E_INVALID, "struct_size is 1");
    T_FAILS(coli_model_get_route_stats(NULL, &stats), COLI_E_INVALID, "struct_size is 1");
    T_FAILS(coli_model_get_route_stats(m, NULL), COLI_E_INVALID, "is NULL");
    T_FAILS(coli_route_default(NULL), COLI_E_INVALID, "is NULL");
    o = route_opts();
    const uint64_t before = coli__alloc_count();
    T_OK(coli_session_create(m, &opts, &s));
    const uint64_t n = coli__alloc_count() - before;
    coli_session_destroy(s);
    for (uint64_t nth = n - 1; nth <= n; nth++) { // the router's own two, which come last
        coli__alloc_fail_at(nth);
        const coli_status status = coli_session_create(m, &opts, &s);
        coli__alloc_fail_at(0);
        T_EQ(status, COLI_E_NOMEM);
        T_TRUE(s == NULL);
    }
    coli_model_close(m);
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    if (!backend_is_there()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(off_is_as_before),
        cmocka_unit_test(nothing_to_prefer_is_plain),
        cmocka_unit_test(a_top_two_model_swaps_nothing),
        cmocka_unit_test(same_bytes_everywhere),
        cmocka_unit_test(a_turn_goes_by_its_beginning),
        cmocka_unit_test(live_follows_step_by_step),
        cmocka_unit_test(when_a_turn_begins),
        cmocka_unit_test(a_turn_after_swaps_can_be_repeated),
        cmocka_unit_test(memory_alone),
        cmocka_unit_test(memory_and_a_device),
        cmocka_unit_test(fewer_reads),
        cmocka_unit_test(a_placement_that_is_said),
        cmocka_unit_test(a_lost_device_does_not_change_a_turn),
        cmocka_unit_test(heat_counts_the_chosen),
        cmocka_unit_test(more_hits_with_smaller_j),
        cmocka_unit_test(sessions_add_up),
        cmocka_unit_test(nothing_is_allocated),
        cmocka_unit_test(options_that_make_no_sense),
    };
    return cmocka_run_group_tests(tests, run_setup, run_teardown);
}
