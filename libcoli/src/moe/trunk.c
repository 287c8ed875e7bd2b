/* trunk.c - see trunk.h.  What is decided stands in place.c; here are its inputs, the race that a device
 * has to win before anything is placed automatically, the copies, and the line that tells. */
#include "trunk.h"

#include <string.h>

#include "../backend/race.h"
#include "../base/alloc.h"

/* -- offers ------------------------------------------------------------------------------------ */

coli_status coli__trunk_offer(coli__trunk *t, coli__component component, uint32_t layer,
                              const coli__mat *const *mats, uint32_t n_mat)
{
    if (t->n == t->cap) {
        const uint32_t cap = t->cap ? 2 * t->cap : 128;
        coli__trunk_piece *grown = coli__realloc(t->pieces, cap, sizeof *grown);
        if (!grown) return COLI_E_NOMEM;
        t->pieces = grown;
        t->cap = cap;
    }
    coli__trunk_piece *p = &t->pieces[t->n++];
    *p = (coli__trunk_piece){.component = component, .layer = layer, .n_mat = n_mat};
    for (uint32_t i = 0; i < n_mat; i++) p->mats[i] = *mats[i];
    return COLI_OK;
}

void coli__trunk_finish(coli__trunk *t)
{
    coli__free(t->pieces);
    *t = (coli__trunk){0};
}

/* What of a piece is one copy: the expert, or each matrix. */
static uint32_t n_block(const coli__trunk_piece *p)
{
    return p->component == COLI__SHEXP ? 1 : p->n_mat;
}

static coli__dense_block block_of(const coli__trunk_piece *p, uint32_t i)
{
    if (p->component == COLI__SHEXP)
        return (coli__dense_block){{&p->mats[0], &p->mats[1], &p->mats[2]}, 3};
    return (coli__dense_block){{&p->mats[i]}, 1};
}

/* -- the world --------------------------------------------------------------------------------- */

/* Everything that a decision sees. */
typedef struct world {
    coli__place_world w;
    coli__place_device devices[COLI__MAX_DEVICE];
    double *p[COLI__MAX_DEVICE];
    coli__offer *offers;    // (n)
    coli__placing *placing; // (n)
} world;

static void world_finish(world *x)
{
    for (uint32_t i = 0; i < COLI__MAX_DEVICE; i++) coli__free(x->p[i]);
    coli__free(x->offers);
    coli__free(x->placing);
}

/* As an offer; its footprint is the largest of those devices that compute it. */
static coli__offer offer_of(const coli__devices *devices, const coli__trunk_piece *p)
{
    coli__offer o = {.component = p->component, .layer = p->layer};
    for (uint32_t i = 0; i < p->n_mat; i++) o.bytes += coli__mat_size(&p->mats[i]);
    for (uint32_t d = 0; d < coli__devices_n(devices); d++) {
        uint64_t sum = 0, n_bytes = 0;
        bool able = true;
        for (uint32_t i = 0; i < n_block(p) && able; i++) {
            able = coli__devices_dense_footprint(devices, d, block_of(p, i), &n_bytes);
            sum += n_bytes;
        }
        if (!able) continue;
        o.devices |= UINT32_C(1) << d;
        if (sum > o.footprint) o.footprint = sum;
    }
    return o;
}

static coli_status world_init(world *x, const coli__trunk *t, const coli__trunk_args *a)
{
    *x = (world){.w = {.n_device = coli__devices_n(a->devices), .devices = x->devices}};
    x->offers = coli__calloc(t->n, sizeof *x->offers);
    x->placing = coli__calloc(t->n, sizeof *x->placing);
    if (!x->offers || !x->placing) return COLI_E_NOMEM;
    for (uint32_t i = 0; i < t->n; i++) x->offers[i] = offer_of(a->devices, &t->pieces[i]);
    coli__tier_slot(a->tier, &x->w.slot_footprint, &x->w.expert_bytes);
    for (uint32_t d = 0; d < x->w.n_device; d++) {
        x->devices[d].room = coli__devices_room(a->devices, d);
        if (!a->tier) continue;
        COLI_TRY(coli__tier_chances(a->tier, d, a->n_expert_used, a->heat, &x->p[d],
                                    &x->devices[d].n_expert));
        x->devices[d].p = x->p[d];
    }
    return COLI_OK;
}

/* -- deciding ---------------------------------------------------------------------------------- */

/* The largest matrix that is to go to a device; NULL: none goes there. */
static const coli__mat *largest_on(const coli__trunk *t, const world *x, uint32_t device)
{
    const coli__mat *best = NULL;
    for (uint32_t i = 0; i < t->n; i++) {
        if (x->placing[i].device != (int32_t)device) continue;
        for (uint32_t j = 0; j < t->pieces[i].n_mat; j++) {
            const coli__mat *w = &t->pieces[i].mats[j];
            if (!best || (uint64_t)w->n_out * w->n_in > (uint64_t)best->n_out * best->n_in)
                best = w;
        }
    }
    return best;
}

static uint32_t ordinal_of(const coli__trunk_args *a, uint32_t device)
{
    return coli__device_ordinal(coli__devices_at(a->devices, device));
}

/* False: the device is no faster than the processor. */
static bool is_worth_it(const coli__trunk_args *a, uint32_t device, const coli__mat *w)
{
    coli__race race;
    if (!coli__race_run(coli__devices_at(a->devices, device), a->kernels, a->pool, w, &race) ||
        coli__place_pays(race.device_ns, race.host_ns))
        return true;
    coli__devices_note(a->devices,
                       "trunk: not on device %u: it takes %.1f us for a matrix of %u x %u, the "
                       "processor %.1f us",
                       ordinal_of(a, device), race.device_ns * 1e-3, race.n_out, race.n_in,
                       race.host_ns * 1e-3);
    return false;
}

/* By worth; then again without the devices that are too slow, until none is. */
static void decide(const coli__trunk *t, const coli__trunk_args *a, world *x)
{
    uint32_t usable = UINT32_MAX, tried = 0;
    for (bool again = true; again;) {
        again = false;
        coli__place_auto(&x->w, usable, false, x->offers, t->n, x->placing);
        for (uint32_t d = 0; d < x->w.n_device && !a->no_race; d++) {
            const coli__mat *w = largest_on(t, x, d);
            if (!w || tried >> d & 1) continue;
            tried |= UINT32_C(1) << d;
            if (is_worth_it(a, d, w)) continue;
            usable &= ~(UINT32_C(1) << d);
            again = true;
        }
    }
    for (uint32_t i = 0; i < t->n; i++)
        if (x->placing[i].why == COLI__WHY_UNABLE && x->offers[i].devices)
            x->placing[i].why = COLI__WHY_SLOWER;
}

/* -- copying and telling ----------------------------------------------------------------------- */

/* A copy that fails leaves that matrix, or expert, to the processor. */
static void copy_piece(const coli__trunk_piece *p, coli__devices *devices, uint32_t device)
{
    for (uint32_t i = 0; i < n_block(p); i++)
        if (coli__devices_put_dense(devices, device, block_of(p, i)) != COLI_OK &&
            coli__device_alive(coli__devices_at(devices, device)))
            coli__devices_note(devices, "trunk: %s of layer %u stays on the processor: %s",
                               coli__component_name(p->component), p->layer, coli_error_message());
}

/* "lmhead, 12 of 30 dnproj": the pieces that are there for this reason; false: none. */
static bool list_pieces(const coli__trunk *t, const world *x, int32_t device, coli__place_why why,
                        coli__buf *out)
{
    for (uint32_t c = 0; c < COLI__N_COMPONENT; c++) {
        uint32_t n = 0, n_offered = 0;
        for (uint32_t i = 0; i < t->n; i++) {
            if (t->pieces[i].component != c) continue;
            n_offered++;
            n += x->placing[i].device == device && x->placing[i].why == why;
        }
        if (n == 0) continue;
        if (out->n_bytes) coli__buf_str(out, ", ");
        if (n < n_offered) coli__buf_printf(out, "%u of ", n);
        if (n_offered > 1) coli__buf_printf(out, "%u ", n_offered);
        coli__buf_printf(out, "%s", coli__component_name((coli__component)c));
    }
    return out->data != NULL; // without memory there is nothing to tell
}

/* "trunk: lmhead, 12 of 30 dnproj on device 0 instead of 1203 experts; 18 of 30 dnproj on the processor:
 * the experts in its place are worth more" */
static void tell(const coli__trunk *t, const coli__trunk_args *a, const world *x)
{
    static const char *const reasons[COLI__N_WHY] = {[COLI__WHY_ASKED] = "as asked",
                                                     [COLI__WHY_UNABLE] = "no device computes it",
                                                     [COLI__WHY_NO_ROOM] = "no room",
                                                     [COLI__WHY_EXPERTS] =
                                                         "the experts in its place are worth more",
                                                     [COLI__WHY_SLOWER] = "that is faster"};
    coli__buf line = {0};
    const char *gap = "trunk: ";
    for (uint32_t d = 0; d < x->w.n_device; d++) {
        coli__buf pieces = {0};
        uint32_t n_displaced = 0;
        for (uint32_t i = 0; i < t->n; i++)
            if (x->placing[i].device == (int32_t)d) n_displaced += x->placing[i].n_displaced;
        if (list_pieces(t, x, (int32_t)d, COLI__WHY_PLACED, &pieces)) {
            coli__buf_printf(&line, "%s%s on device %u", gap, pieces.data, ordinal_of(a, d));
            if (n_displaced) coli__buf_printf(&line, " instead of %u experts", n_displaced);
            gap = "; ";
        }
        coli__buf_finish(&pieces);
    }
    for (int why = COLI__WHY_ASKED; why < COLI__N_WHY; why++) {
        coli__buf pieces = {0};
        if (list_pieces(t, x, COLI__ON_HOST, (coli__place_why)why, &pieces)) {
            coli__buf_printf(&line, "%s%s on the processor: %s", gap, pieces.data, reasons[why]);
            gap = "; ";
        }
        coli__buf_finish(&pieces);
    }
    if (line.data) coli__devices_note(a->devices, "%s", line.data);
    coli__buf_finish(&line);
}

static bool is_offered(const coli__trunk *t, const char *name)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (strcmp(coli__component_name(t->pieces[i].component), name) == 0) return true;
    return false;
}

/* A list may name what another model has; a slip of the pen is worth a word. */
static void tell_unknown_names(const coli__trunk *t, const coli__trunk_args *a)
{
    for (uint32_t i = 0; i < a->list->n_item; i++)
        if (!is_offered(t, a->list->items[i].name))
            coli__devices_note(a->devices, "trunk: the model has no %s", a->list->items[i].name);
}

static coli_status choose(const coli__trunk *t, const coli__trunk_args *a, world *x)
{
    COLI_TRY(world_init(x, t, a));
    if (a->list->mode == COLI__PLACE_LIST)
        coli__place_listed(&x->w, a->list, x->offers, t->n, x->placing);
    else if (a->list->mode == COLI__PLACE_FIRST)
        coli__place_auto(&x->w, UINT32_MAX, true, x->offers, t->n, x->placing);
    else
        decide(t, a, x);
    return COLI_OK;
}

static bool has_work(const coli__trunk *t, const coli__trunk_args *a)
{
    return a->devices && t->n > 0 && a->list->mode != COLI__PLACE_OFF;
}

coli_status coli__trunk_reserve(const coli__trunk *t, const coli__trunk_args *a)
{
    if (!has_work(t, a)) return COLI_OK;
    coli__trunk_args args = *a;
    args.no_race = true;
    world x = {0};
    const coli_status status = choose(t, &args, &x);
    for (uint32_t i = 0; i < t->n && status == COLI_OK; i++)
        if (x.placing[i].device >= 0)
            coli__devices_take(a->devices, (uint32_t)x.placing[i].device, x.offers[i].footprint);
    world_finish(&x);
    return status;
}

coli_status coli__trunk_place(const coli__trunk *t, const coli__trunk_args *a)
{
    if (!has_work(t, a)) return COLI_OK;
    world x = {0};
    const coli_status status = choose(t, a, &x);
    if (status == COLI_OK) {
        for (uint32_t i = 0; i < t->n; i++)
            if (x.placing[i].device >= 0)
                copy_piece(&t->pieces[i], a->devices, (uint32_t)x.placing[i].device);
        tell_unknown_names(t, a);
        tell(t, a, &x);
    }
    world_finish(&x);
    return status;
}
