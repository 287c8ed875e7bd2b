/* moe_waves.c - runs whose experts are in a store, and guesses about the next layer (see moe.c). */
#include "moe_parts.h"

/* The experts of the layer behind this one, from row t of this one's input. */
void coli__moe_guess_row(const coli__moe_job *j, uint32_t t)
{
    coli__moe *m = j->m;
    float *logits = m->guess_logits + (size_t)t * m->n_expert;
    coli__moe_router_panels(m, m->guess_layer, t, 1, 0, coli__divide_up(m->n_expert, COLI_PANEL),
                            logits);
    const size_t at = (size_t)t * m->n_used;
    coli__route_softmax_topk(m->k, logits, m->n_expert, m->n_used, m->guess_ids + at,
                             m->guess_w + at);
}

/* -- waves ------------------------------------------------------------------------------------- */

/* The runs [done, end) of one call of run_waves, in an order that changes as experts arrive:
 *
 *     | computed | here, held | asked for, held | neither |
 *                done         here              asked     end        */
typedef struct waves {
    coli__moe_job *j;
    coli__store *store;
    uint32_t done, here, asked, end;
} waves;

/* Hold what is here or coming, and put it first. */
static void hold_what_is_there(waves *w)
{
    coli__moe *m = w->j->m;
    for (uint32_t i = w->done; i < w->end; i++) {
        const coli__store_state state =
            coli__store_hold(w->store, w->j->layer->experts, m->runs[i].expert);
        const coli__run *r = &m->runs[i];
        for (uint32_t p = r->first; p < r->first + r->n; p++)
            m->pair_source[p].row = state == COLI__STORE_ABSENT;
        if (state == COLI__STORE_ABSENT) continue;
        coli__moe_swap_runs(m, i, w->asked);
        if (state == COLI__STORE_HERE) coli__moe_swap_runs(m, w->asked, w->here++);
        w->asked++;
    }
    coli__store_forget_guesses(w->store);
}

/* Ask for what there are slots for, and see what has come. */
static coli_status receive(waves *w, bool wait)
{
    coli__moe *m = w->j->m;
    const coli__ct_experts *x = w->j->layer->experts;
    while (w->asked < w->end && coli__store_ask(w->store, x, m->runs[w->asked].expert)) w->asked++;
    if (wait) coli__pool_phase(w->j->pool, 0, COLI_PHASE_WAITING);
    const coli_status status = coli__store_collect(w->store, wait);
    if (wait) coli__pool_phase(w->j->pool, 0, COLI_PHASE_OTHER);
    if (status != COLI_OK) return status;
    for (uint32_t i = w->here; i < w->asked; i++)
        if (coli__store_block(w->store, x, m->runs[i].expert)) coli__moe_swap_runs(m, i, w->here++);
    for (uint32_t i = w->done; i < w->here; i++)
        m->runs[i].block = coli__store_block(w->store, x, m->runs[i].expert);
    return COLI_OK;
}

static void release_runs(waves *w, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        coli__store_release(w->store, w->j->layer->experts, w->j->m->runs[i].expert);
}

/* The next layer's step is what the first `inner` guesses about. */
void coli__moe_plan_guess(coli__moe_job *j)
{
    coli__moe *m = j->m;
    const size_t next = (size_t)(j->layer - m->layers) + 1;
    m->guess_layer = NULL;
    if (!coli__store_guesses(m->store) || j->n_tok > COLI__MOE_GUESS_ROWS || next >= m->n_layer)
        return;
    m->guess_layer = &m->layers[next];
    m->n_guess_row = j->n_guess = j->n_tok;
}

/* Read what was guessed and is on no device. */
static void use_guess(const coli__moe *m)
{
    for (uint32_t i = 0; i < m->n_guess_row * m->n_used; i++) {
        coli__slot slot;
        const coli__ct_experts *x = m->guess_layer->experts;
        if (!coli__tier_find(m->tier, x, (uint32_t)m->guess_ids[i], &slot))
            coli__store_guess(m->store, x, &m->guess_ids[i], 1);
    }
}

/* How many of this layer's experts were guessed. */
void coli__moe_score_guess(const coli__moe_job *j)
{
    const coli__moe *m = j->m;
    if (m->guess_layer != j->layer || m->n_guess_row != j->n_tok) return;
    uint64_t n_right = 0;
    for (uint32_t i = 0; i < j->n_tok * m->n_used; i++) {
        const int32_t *guesses = m->guess_ids + i / m->n_used * m->n_used;
        for (uint32_t k = 0; k < m->n_used; k++) n_right += guesses[k] == m->ids[i];
    }
    coli__store_guessed(m->store, j->n_tok * m->n_used, n_right);
}

/* While others wait for a slot, a wave is a quarter of the slots, so that the slots of one are filled
 * while the next is computed. */
static uint32_t wave_size(const waves *w)
{
    const uint32_t n = w->here - w->done, share = coli__store_n_slot(w->store) / 4;
    if (w->asked == w->end || n <= share) return n;
    return share ? share : 1;
}

/* Runs [first, first+n) through `inner` and, but for the last wave where no group has to be waited for
 * before the join, through `outer_part`.  The shared expert's `inner` goes with the first wave, or
 * fills the time until something has arrived.  What the last wave uses stays held. */
static coli_status compute_waves(waves *w, uint32_t n_block_shared)
{
    const coli__moe *m = w->j->m;
    const bool keep_last = m->n_held == 0 && m->n_passing == 0, guesses = w->j->n_guess > 0;
    COLI_TRY(receive(w, false));
    for (bool is_first = true;; is_first = false) {
        const uint32_t n = wave_size(w);
        const bool is_last = w->done + n == w->end;
        if (n > 0 || is_first) coli__moe_run_inner(w->j, w->done, n, is_first ? n_block_shared : 0);
        if (is_first && guesses) use_guess(w->j->m);
        if (is_last && keep_last) return COLI_OK;
        if (n > 0) coli__moe_run_outer_part(w->j, w->done, n);
        release_runs(w, w->done, w->done + n);
        w->done += n;
        if (is_last) return COLI_OK;
        COLI_TRY(receive(w, w->here == w->done));
    }
}

coli_status coli__moe_run_waves(coli__moe_job *j, uint32_t first, uint32_t n,
                                uint32_t n_block_shared)
{
    waves w = {j, j->m->store, first, first, first, first + n};
    hold_what_is_there(&w);
    const coli_status status = compute_waves(&w, n_block_shared);
    if (status != COLI_OK) release_runs(&w, w.done, w.asked);
    j->first_left = w.done;
    return status;
}

/* What the join used may go. */
void coli__moe_release_last_wave(coli__moe_job *j)
{
    waves w = {.j = j, .store = j->m->store};
    release_runs(&w, j->first_left, j->m->n_run - 1);
}
