/* replan_prop.c - what must hold after any sequence of prompts, plans, drains and swaps by others.
 * Numbers are those of the invariants in replan.c.
 *
 * The model keeps a list of swaps with a note of the prompt that planned each, and knows nothing of
 * marks: who is pending is looked up in the list. */
#include "plans.h"

#include "libcoli/src/moe/replan.h"

typedef struct waiting {
    coli__swap swap;
    uint32_t prompt;
} waiting;

typedef struct model {
    uint32_t n_layer, n_expert, n;
    int32_t cap;
    uint8_t place[PLANS_MAX], home[PLANS_MAX];
    coli__plan_world w;
    coli__replan r;
    uint32_t counts[PLANS_MAX], prompt;
    uint32_t n_swap[8], planned_in[8];
    waiting list[PLANS_MAX];
    uint32_t n_list;
    uint64_t n_planned, n_begun, n_skipped;
    uint32_t room; // how often begin() says true
} model;

static void remove_at(model *m, uint32_t i)
{
    memmove(&m->list[i], &m->list[i + 1], (--m->n_list - i) * sizeof *m->list);
}

static bool is_waiting(const model *m, uint32_t id)
{
    for (uint32_t i = 0; i < m->n_list; i++)
        if (m->list[i].swap.in == id || m->list[i].swap.out == id) return true;
    return false;
}

/* ---- the steps ----------------------------------------------------------------------------- */

static void step_use(model *m, t_rng *rng)
{
    const uint32_t layer = t_below(rng, m->n_layer);
    int32_t ids[6];
    for (int i = 0; i < 6; i++) {
        ids[i] = (int32_t)t_below(rng, m->n_expert + 1) - 1;
        if (ids[i] >= 0) m->counts[layer * m->n_expert + (uint32_t)ids[i]]++;
    }
    coli__replan_use(&m->r, layer, ids, 6);
}

static void step_prompt(model *m)
{
    memset(m->counts, 0, sizeof m->counts);
    memset(m->n_swap, 0, sizeof m->n_swap);
    m->prompt++;
    coli__replan_prompt(&m->r);
}

static void step_plan(model *m, t_rng *rng)
{
    const int32_t layer = (int32_t)t_below(rng, m->n_layer + 1) - 1;
    for (uint32_t l = 0; l < m->n_layer; l++) {
        if (layer >= 0 && l != (uint32_t)layer) continue;
        for (uint32_t i = m->planned_in[l] == m->prompt ? m->n_list : 0; i < m->n_list;) {
            const coli__swap s = m->list[i].swap;
            const bool there = s.in / m->n_expert == l || s.out / m->n_expert == l;
            if (there && m->list[i].prompt != m->prompt) {
                remove_at(m, i);
                m->n_skipped++;
            } else {
                i++;
            }
        }
        m->planned_in[l] = m->prompt;
    }
    uint8_t taken[PLANS_MAX];
    for (uint32_t i = 0; i < m->n; i++) taken[i] = is_waiting(m, i);
    coli__plan_world w = m->w;
    w.taken = taken;
    int32_t cap = layer < 0 ? m->cap * (int32_t)m->n_layer : m->cap;
    for (uint32_t l = 0; l < m->n_layer; l++)
        if (layer < 0 || l == (uint32_t)layer) cap -= (int32_t)m->n_swap[l];
    coli__plan_key keys[PLANS_MAX];
    coli__swap swaps[PLANS_MAX];
    const uint32_t first = layer < 0 ? 0 : (uint32_t)layer * m->n_expert;
    const coli__plan_ask ask = {layer, cap, m->counts + first};
    const uint32_t n = coli__plan_swaps(&w, &ask, keys, swaps, NULL);
    for (uint32_t i = 0; i < n; i++) {
        m->list[m->n_list++] = (waiting){swaps[i], m->prompt};
        m->n_swap[swaps[i].in / m->n_expert]++;
    }
    m->n_planned += n;
    T_EQ(coli__replan_plan(&m->r, &m->w, layer, NULL), n);
}

/* Those at the front that can no longer be. */
static void skip_stale(model *m)
{
    while (m->n_list && (m->place[m->list[0].swap.in] != COLI__PLACE_KNOWN ||
                         m->place[m->list[0].swap.out] != COLI__PLACE_RESIDENT)) {
        remove_at(m, 0);
        m->n_skipped++;
    }
}

/* The real one calls it; the model has to agree on which swap is next. */
static bool begin(void *ctx, coli__swap s)
{
    model *m = ctx;
    skip_stale(m);
    T_TRUE(m->n_list > 0 && m->list[0].swap.in == s.in && m->list[0].swap.out == s.out);
    if (m->room == 0) return false;
    m->room--;
    m->place[s.out] = COLI__PLACE_KNOWN;
    m->place[s.in] = COLI__PLACE_QUEUED;
    remove_at(m, 0);
    m->n_begun++;
    return true;
}

static void step_drain(model *m, t_rng *rng)
{
    const uint32_t limit = t_below(rng, 6), n_begun = (uint32_t)m->n_begun;
    m->room = t_below(rng, 6);
    T_EQ(coli__replan_drain(&m->r, m->place, limit, begin, m), m->n_begun - n_begun);
    T_LE(m->n_begun - n_begun, limit);
    if (m->n_begun - n_begun == limit) return; // what is behind was not looked at
    skip_stale(m);
    T_TRUE(m->n_list == 0 || m->room == 0); // it went to the end, or was refused
}

/* Uploads end, others swap. */
static void step_world(model *m, t_rng *rng)
{
    for (uint32_t i = 0; i < m->n; i++) {
        if (m->place[i] == COLI__PLACE_QUEUED) m->place[i] = COLI__PLACE_RESIDENT;
        if (t_below(rng, 12) == 0) m->place[i] = plans_place("KRA"[t_below(rng, 3)]);
    }
}

/* ---- what holds ---------------------------------------------------------------------------- */

static void check(const model *m)
{
    const coli__replan *r = &m->r;
    T_EQ(r->n_planned, r->n_begun + r->n_skipped + r->n_pending); // (1)
    T_EQ(r->n_planned, m->n_planned);
    T_EQ(r->n_begun, m->n_begun);
    T_EQ(r->n_pending, m->n_list);
    uint32_t n_taken = 0;
    for (uint32_t i = 0; i < m->n_list; i++)
        T_MEM(&r->pending[i], &m->list[i].swap, sizeof m->list[i].swap);
    for (uint32_t i = 0; i < m->n; i++) {
        T_EQ(r->taken[i], is_waiting(m, i));
        n_taken += r->taken[i];
    }
    T_EQ(n_taken, 2 * m->n_list); // (2)
}

T_PROP(replan_1_2_3_over_random_sequences, 1500)
{
    model m = {.prompt = 1};
    m.n_layer = t_range(&rng, 1, 3);
    m.n_expert = t_range(&rng, 1, 12);
    m.n = m.n_layer * m.n_expert;
    m.cap = (int32_t)t_range(&rng, 1, 6);
    m.w = (coli__plan_world){
        .n_layer = m.n_layer, .n_expert = m.n_expert, .place = m.place, .home = m.home};
    for (uint32_t i = 0; i < m.n; i++) {
        m.place[i] = plans_place("KR"[t_below(&rng, 2)]);
        m.home[i] = (uint8_t)t_below(&rng, 2);
    }
    T_OK(coli__replan_init(&m.r, m.n_layer, m.n_expert, m.cap));
    for (int step = 0; step < 60; step++) {
        switch (t_below(&rng, 8)) {
        case 0:
            step_prompt(&m);
            break;
        case 1:
            step_world(&m, &rng);
            break;
        case 2:
        case 3:
            step_drain(&m, &rng);
            break;
        case 4:
        case 5:
            step_plan(&m, &rng);
            break;
        default:
            step_use(&m, &rng);
            break;
        }
        check(&m);
    }
    coli__replan_finish(&m.r);
}

T_PROP(replan_3_no_more_than_the_cap, 500)
{
    enum { E = 24 };
    uint8_t place[E];
    for (uint32_t i = 0; i < E; i++) place[i] = plans_place(i < E / 2 ? 'R' : 'K');
    const coli__plan_world w = {.n_layer = 1, .n_expert = E, .place = place};
    coli__replan r;
    const int32_t cap = (int32_t)t_range(&rng, 1, 8);
    T_OK(coli__replan_init(&r, 1, E, cap));
    for (int prompt = 0; prompt < 3; prompt++) {
        uint32_t n = 0;
        for (int chunk = 0; chunk < 5; chunk++) {
            int32_t ids[16];
            for (int i = 0; i < 16; i++) ids[i] = (int32_t)t_below(&rng, E);
            coli__replan_use(&r, 0, ids, 16);
            n += coli__replan_plan(&r, &w, 0, NULL);
            for (uint32_t i = 0; i < r.n_pending; i++) plans_apply(place, &r.pending[i], 1);
            coli__replan_drop(&r);
        }
        T_LE(n, cap);
        coli__replan_prompt(&r);
    }
    coli__replan_finish(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replan_1_2_3_over_random_sequences),
        cmocka_unit_test(replan_3_no_more_than_the_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
