/* plan.c - orders and swaps.
 *
 * The idea of the re-plan.  VRAM should hold the experts that this prompt uses most.  The ideal set
 * is easy to write down, but every expert that enters costs an upload.  So the present set is
 * improved by the swaps that pay most, best first, and no further than they pay:
 *
 *     newcomers, most used first     e4 10   e5 9   e6 1
 *     victims, least used first      e0 0    e1 0   e2 5   e3 7
 *                                    swap    swap   stop: 1 is not more than 5
 *
 * Invariants, each a property of the same number in tests/prop/plan_prop.c:
 *   (1) Every swap raises the summed count of the residents, on its own device.
 *   (2) The plan of cap c is the beginning of the plan of cap c + 1.
 *   (3) An uncapped plan, carried out, leaves an empty plan.
 *   (4) No expert stands in two swaps; newcomers are known and not taken, victims resident and not
 *       taken, and both have the same home.
 *   (5) The names of the devices do not matter.
 *   (6) Under constant heat slow swaps come to an end: each raises the residents' heat.
 *
 * Heat decides only between victims of equal count.  Sorting is by a 64-bit rank and then by id, in
 * place and by our own function: qsort may order equals as it likes, and may ask for memory.
 *
 * Not here: counting (heat.c), what waits for the queue (replan.c), carrying out. */
#include "plan.h"

#include <assert.h>
#include <string.h>

#include "heat.h"

/* ---- sorting ------------------------------------------------------------------------------- */

static bool before(coli__plan_key a, coli__plan_key b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.id < b.id;
}

/* Let keys[at] sink to its place in the heap of n keys whose largest is on top. */
static void sink(coli__plan_key *keys, size_t n, size_t at)
{
    const coli__plan_key moved = keys[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && before(keys[child], keys[child + 1])) child++;
        if (!before(moved, keys[child])) break;
        keys[at] = keys[child];
        at = child;
    }
    keys[at] = moved;
}

static void sort_keys(coli__plan_key *keys, size_t n)
{
    for (size_t at = n / 2; at > 0; at--) sink(keys, n, at - 1);
    for (size_t end = n; end > 1; end--) {
        const coli__plan_key largest = keys[0];
        keys[0] = keys[end - 1];
        keys[end - 1] = largest;
        sink(keys, end - 1, 0);
    }
}

/* ---- what a world says of an expert -------------------------------------------------------- */

static uint32_t heat_of(const coli__plan_world *w, uint32_t id)
{
    return w->heat ? w->heat[id] : 0;
}

/* ---- the re-plan --------------------------------------------------------------------------- */

/* A newcomer's rank falls with its count; a victim's rises with count, then heat. */
static uint64_t newcomer_rank(uint32_t count)
{
    return UINT32_MAX - count;
}
static uint32_t newcomer_count(coli__plan_key key)
{
    return UINT32_MAX - (uint32_t)key.rank;
}
static uint64_t victim_rank(uint32_t count, uint32_t heat)
{
    return (uint64_t)count << 32 | heat;
}
static uint32_t victim_count(coli__plan_key key)
{
    return (uint32_t)(key.rank >> 32);
}

/* Newcomers to the front of keys, victims to the back, each in order: no expert is both. */
static void collect(const coli__plan_world *w, const coli__plan_ask *ask, uint32_t first,
                    uint32_t n, coli__plan_key *keys, uint32_t *n_newcomer, uint32_t *n_victim)
{
    uint32_t n_in = 0, n_out = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t id = first + i, count = ask->counts[i];
        if (count > 0 && coli__plan_is_free(w, id, COLI__PLACE_KNOWN))
            keys[n_in++] = (coli__plan_key){newcomer_rank(count), id};
        else if (coli__plan_is_free(w, id, COLI__PLACE_RESIDENT))
            keys[n - ++n_out] = (coli__plan_key){victim_rank(count, heat_of(w, id)), id};
    }
    sort_keys(keys, n_in);
    sort_keys(keys + n - n_out, n_out);
    *n_newcomer = n_in;
    *n_victim = n_out;
}

/* One walk along all newcomers gives the devices' swaps already merged: each device goes through
 * the victims with a finger of its own.  Where a newcomer does not pay, the finger stays and the next
 * ones of that device do not pay either, for they are used no more. */
static uint32_t pair(const coli__plan_world *w, const coli__plan_key *newcomers,
                     uint32_t n_newcomer, const coli__plan_key *victims, uint32_t n_victim,
                     uint32_t cap, coli__swap *swaps)
{
    uint32_t finger[COLI__NO_HOME] = {0}, n = 0;
    for (uint32_t i = 0; i < n_newcomer && n < cap; i++) {
        const uint32_t home = coli__plan_home(w, newcomers[i].id);
        uint32_t at = finger[home];
        while (at < n_victim && coli__plan_home(w, victims[at].id) != home) at++;
        const bool pays = at < n_victim && newcomer_count(newcomers[i]) > victim_count(victims[at]);
        if (pays) swaps[n++] = (coli__swap){newcomers[i].id, victims[at].id};
        finger[home] = pays ? at + 1 : at;
    }
    return n;
}

uint32_t coli__plan_swaps(const coli__plan_world *w, const coli__plan_ask *ask,
                          coli__plan_key *keys, coli__swap *swaps, uint32_t *n_newcomer)
{
    uint32_t first = 0, n = w->n_layer * w->n_expert, n_in, n_out;
    if (n_newcomer) *n_newcomer = 0;
    if (!ask->counts || ask->cap <= 0) return 0;
    if (ask->layer >= 0) {
        if ((uint32_t)ask->layer >= w->n_layer) return 0;
        first = (uint32_t)ask->layer * w->n_expert;
        n = w->n_expert;
    }
    collect(w, ask, first, n, keys, &n_in, &n_out);
    if (n_newcomer) *n_newcomer = n_in;
    return pair(w, keys, n_in, keys + n - n_out, n_out, (uint32_t)ask->cap, swaps);
}

/* ---- the slow swap ------------------------------------------------------------------------- */

bool coli__plan_slow_swap(const coli__plan_world *w, uint32_t device, coli__swap *out)
{
    const uint32_t n = w->n_layer * w->n_expert;
    uint32_t hot = n, cold = n; // n: none
    for (uint32_t id = 0; id < n; id++) {
        if (coli__plan_home(w, id) != device) continue;
        const uint32_t heat = heat_of(w, id);
        if (w->place[id] == COLI__PLACE_KNOWN && (hot == n || heat > heat_of(w, hot))) hot = id;
        if (w->place[id] == COLI__PLACE_RESIDENT && (cold == n || heat < heat_of(w, cold)))
            cold = id;
    }
    if (hot == n || cold == n || !coli__heat_beats(heat_of(w, hot), heat_of(w, cold))) return false;
    *out = (coli__swap){hot, cold};
    return true;
}

/* ---- the warm start ------------------------------------------------------------------------ */

void coli__plan_order(uint32_t n_layer, uint32_t n_expert, const uint32_t *heat,
                      coli__plan_key *keys, uint32_t *ids)
{
    const uint32_t n = n_layer * n_expert;
    for (uint32_t id = 0; id < n; id++) {
        const uint32_t layer = id / n_expert, expert = id % n_expert;
        keys[id] = (coli__plan_key){heat ? UINT32_MAX - heat[id] : 0, expert * n_layer + layer};
    }
    sort_keys(keys, n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t expert = keys[i].id / n_layer, layer = keys[i].id % n_layer;
        ids[i] = layer * n_expert + expert;
    }
}

uint32_t coli__plan_fill(const coli__plan_world *w, const uint32_t *ids, uint32_t n_ids,
                         uint32_t *room, uint32_t n_device, uint32_t *chosen)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_ids; i++) {
        const uint32_t id = ids[i], home = coli__plan_home(w, id);
        if (w->place[id] > COLI__PLACE_KNOWN || home >= n_device || room[home] == 0) continue;
        room[home]--;
        chosen[n++] = id;
    }
    return n;
}
