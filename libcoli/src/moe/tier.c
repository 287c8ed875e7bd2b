/* tier.c - see tier.h.
 *
 * States of an expert (coli__place of plan.h), and who changes them:
 *
 *      known --queue_copy--> queued --land--> resident           filling (upload_all at the start,
 *                                                                fill_on_use later), and the newcomer
 *                                                                of a swap
 *      resident --coli__tier_swap (the victim)--> known          its slot is the newcomer's
 *      queued --land, the copy failed--> known                   a slot that was swapped is lost
 *      any --forget_device--> away                               its device is lost
 *
 * Slots.  A device has equal slots, tensors of one expert each.  A swap keeps the slot and overwrites
 * its content: nothing is allocated, and used == (residents + spares) * slot whenever nothing is queued.
 *
 * Spare slots are in the books from create on, so that trunk and residents get what they leave; they are
 * filled, with any expert, before those.  While a chunk is computed they belong to the device's stream
 * (stream.h), which may find that one is gone; the computing thread then strikes it from the books.
 *
 * Who touches what.  States and slots belong to the thread that computes.  A copy is a job in
 * its device's ring; the device's thread takes it, copies, and puts the result in; the computing
 * thread collects results between layers.  So an expert becomes resident only where no group is
 * open, and decoding never waits for a copy: a full ring refuses the swap.
 *
 * A victim is no longer resident from coli__tier_swap on, which runs while no group is open: so no
 * group can use its slot while it is overwritten.
 *
 * Which swaps, is steer.h's business.  What it is told of speeds is measured here, where somebody asks
 * for it: a copy's time by the device's own account, or, where it keeps none, by the clock around it; an
 * expert's time on the device likewise; on the processor by moe.c.  Each is the shortest seen lately: what
 * comes on top was waiting for something else.
 *
 * Locks: `mu` of each ring, for moments. */
#include "tier.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "../base/alloc.h"
#include "../base/memory.h"
#include "../base/threads.h"
#include "home.h"
#include "place.h"

enum { RING = 48 }; // copies queued on a device

typedef struct copy {
    coli__swap swap;               // out: NONE when filling
    const coli__ct_experts *layer; // of swap.in, and which of its experts that is
    uint32_t expert;
    coli_bk_source source;
    coli_bk_tensor *tensor; // of the slot; NULL: a new one
    bool in_place;
    coli_status status;
    double copy_ns, device_ns; // what it took, and what an expert takes there; 0: not known
} copy;

/* The copies of a device: [done, doing) have a result, [doing, end) wait or run. */
typedef struct ring {
    pthread_t thread;
    coli__device *dev;
    bool has_thread, measures;
    const coli__store *store; // NULL: sources are mapped
    void *staging;            // (coli__store_room) the thread's: what is copied was read to here
    coli_bk_group_stats seen; // the thread's

    pthread_mutex_t mu;
    pthread_cond_t changed;
    copy copies[RING];         // guarded by mu, but for the one that runs
    uint64_t done, doing, end; // counters; done is the computing thread's, end too
    bool stop;

    atomic_uint n_result; // doing - done, to look at without the lock
} ring;

enum { NONE = UINT32_MAX };

enum { LISTED = 1, TO_REPORT = 2 }; // of an expert that left; bits

/* The spare slots of a device. */
typedef struct spares {
    coli_bk_tensor *tensor[COLI__SPARE]; // NULL: there is none
    uint32_t n_booked;
    void *staging;          // (coli__store_room) what is copied was read to here
    double pass_ns, row_ns; // of those that passed, since the computing thread looked; 0: not known
} spares;

struct coli__tier {
    /* immutable after create */
    coli__devices *devices;
    const coli__container *container;
    uint32_t n_layer, n_expert; // layers with experts
    uint32_t *index;            // (by the layer's number) its index among those
    uint32_t n_index;
    bool starts_empty, home_by_layer, measures;
    uint32_t layer_split;
    uint32_t usable; // bit i: device i may hold experts
    uint32_t stream_rows;
    const coli__store *store; // NULL: experts are mapped

    /* the computing thread's */
    uint8_t *place;          // (n_layer, n_expert) coli__place
    uint8_t *home;           // (n_layer, n_expert) device, or COLI__NO_HOME
    coli_bk_tensor **tensor; // (n_layer, n_expert) of a resident
    coli__steer steer;
    coli__speeds speeds[COLI__MAX_DEVICE];
    bool speeds_are_set; // by a test
    uint64_t slot_bytes; // footprint
    uint32_t n_resident[COLI__MAX_DEVICE];
    uint32_t room[COLI__MAX_DEVICE]; // slots that nothing was queued for yet
    uint64_t n_queued;
    spares spares[COLI__MAX_DEVICE];     // a stream's, while one runs
    bool is_full[COLI__MAX_DEVICE];      // an upload found no room
    bool is_forgotten[COLI__MAX_DEVICE]; // lost, and its experts are away
    ring *rings[COLI__MAX_DEVICE];
    /* Who left and was not reported: a ring of experts, each in it once at most, so it holds all.  An
     * entry whose expert has come back stays, and is passed over. */
    uint32_t *evicted;   // (n_layer * n_expert)
    uint8_t *is_evicted; // (n_layer, n_expert) LISTED, TO_REPORT
    uint32_t first_evicted, n_evicted;

    /* numbers */
    uint64_t n_hit_at_mark, n_miss_at_mark;
    bool is_marked;
    uint64_t n_swap, n_in_place, n_swap_failed;
};

/* -- names ------------------------------------------------------------------------------------- */

static uint32_t id_of(const coli__tier *t, const coli__ct_experts *layer, uint32_t expert)
{
    return t->index[layer->layer] * t->n_expert + expert;
}

static const coli__ct_experts *layer_of(const coli__tier *t, uint32_t id)
{
    return coli__container_experts(t->container, id / t->n_expert);
}

coli__devices *coli__tier_devices(const coli__tier *t)
{
    return t ? t->devices : NULL;
}

bool coli__tier_find(const coli__tier *t, const coli__ct_experts *layer, uint32_t expert,
                     coli__slot *out)
{
    if (!t) return false;
    const uint32_t id = id_of(t, layer, expert);
    if (t->place[id] != COLI__PLACE_RESIDENT) return false;
    *out = (coli__slot){t->home[id], t->tensor[id]};
    return coli__device_alive(coli__devices_at(t->devices, t->home[id]));
}

/* -- the copying threads ----------------------------------------------------------------------- */

static void measure(ring *r, copy *c, uint64_t wall_ns)
{
    coli_bk_group_stats s;
    coli__device_group_stats(r->dev, &s);
    const double copy_ns = (s.upload_ms - r->seen.upload_ms) * 1e6;
    const double kernel_ns = (s.kernel_ms - r->seen.kernel_ms) * 1e6;
    c->copy_ns = copy_ns > 0 ? copy_ns : (double)wall_ns;
    if (s.n_expert > r->seen.n_expert && kernel_ns > 0)
        c->device_ns = kernel_ns / (double)(s.n_expert - r->seen.n_expert);
    if (s.upload_bytes > 0) r->seen = s; // else somebody used the lane, and there is no answer
}

static void run_copy(ring *r, copy *c)
{
    if (r->store) {
        const uint8_t *data;
        c->status = coli__store_read(r->store, c->layer, c->expert, r->staging, &data);
        c->source.data = data;
        if (c->status != COLI_OK) { // nothing to put into the slot: it goes, too
            coli__device_free(r->dev, c->tensor);
            return;
        }
    }
    const uint64_t begin_ns = r->measures ? coli__clock_ns() : 0;
    c->status = c->tensor ? coli__device_overwrite(r->dev, &c->tensor, &c->source, &c->in_place)
                          : coli__device_upload(r->dev, &c->source, &c->tensor);
    if (r->measures && c->status == COLI_OK) measure(r, c, coli__clock_ns() - begin_ns);
}

static void *ring_main(void *arg)
{
    ring *r = arg;
    coli__fp_enter();
    if (r->measures) coli__device_group_stats(r->dev, &r->seen);
    pthread_mutex_lock(&r->mu);
    for (;;) {
        while (!r->stop && r->doing == r->end) pthread_cond_wait(&r->changed, &r->mu);
        if (r->stop) break;
        copy *c = &r->copies[r->doing % RING];
        pthread_mutex_unlock(&r->mu);
        run_copy(r, c);
        pthread_mutex_lock(&r->mu);
        r->doing++;
        atomic_fetch_add(&r->n_result, 1);
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->mu);
    return NULL;
}

static coli_status ring_create(coli__device *dev, bool measures, ring **out)
{
    ring *r = *out = coli__calloc(1, sizeof *r);
    if (!r) return COLI_E_NOMEM;
    r->dev = dev;
    r->measures = measures;
    pthread_mutex_init(&r->mu, NULL);
    pthread_cond_init(&r->changed, NULL);
    const int error = coli__thread_start(&r->thread, ring_main, r);
    if (error)
        return coli__fail(COLI_E_NOMEM, "the copying thread of a device: %s", strerror(error));
    r->has_thread = true;
    return COLI_OK;
}

/* A copy that runs is waited for: the device's own limits end it. */
static void ring_destroy(ring *r)
{
    if (!r) return;
    pthread_mutex_lock(&r->mu);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mu);
    if (r->has_thread) pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mu);
    if (r->staging && !coli__device_hangs(r->dev))
        coli__pages_give(r->staging, coli__store_room(r->store));
    coli__free(r);
}

/* False when the ring is full. */
static bool ring_add(ring *r, const copy *c)
{
    pthread_mutex_lock(&r->mu);
    const bool has_room = r->end - r->done < RING;
    if (has_room) {
        r->copies[r->end++ % RING] = *c;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->mu);
    return has_room;
}

/* Take the oldest result, waiting for it if `wait`; false when there is none. */
static bool ring_take(ring *r, bool wait, copy *out)
{
    if (!wait && atomic_load(&r->n_result) == 0) return false;
    pthread_mutex_lock(&r->mu);
    while (wait && r->done == r->doing && r->doing != r->end)
        pthread_cond_wait(&r->changed, &r->mu);
    const bool has_one = r->done != r->doing;
    if (has_one) {
        *out = r->copies[r->done++ % RING];
        atomic_fetch_sub(&r->n_result, 1);
    }
    pthread_mutex_unlock(&r->mu);
    return has_one;
}

/* -- who left ---------------------------------------------------------------------------------- */

static void note_evicted(coli__tier *t, uint32_t id)
{
    const uint32_t n = t->n_layer * t->n_expert;
    if (!(t->is_evicted[id] & LISTED)) t->evicted[(t->first_evicted + t->n_evicted++) % n] = id;
    t->is_evicted[id] = LISTED | TO_REPORT;
}

uint32_t coli__tier_evicted_take(coli__tier *t, uint32_t *ids, uint32_t cap)
{
    uint32_t n = 0;
    while (t && n < cap && t->n_evicted > 0) {
        const uint32_t id = t->evicted[t->first_evicted];
        t->first_evicted = (t->first_evicted + 1) % (t->n_layer * t->n_expert);
        t->n_evicted--;
        if (t->is_evicted[id] & TO_REPORT) ids[n++] = id;
        t->is_evicted[id] = 0;
    }
    return n;
}

/* The shortest lately. */
static void note_ns(double *seen, double ns)
{
    if (ns <= 0) return;
    *seen = *seen == 0 || ns < *seen ? ns : *seen + (ns - *seen) / 64;
}

/* -- spare slots ------------------------------------------------------------------------------- */

/* Strike those that are gone from the books. */
static void book_spares(coli__tier *t, uint32_t device)
{
    spares *s = &t->spares[device];
    uint32_t n = 0;
    for (uint32_t i = 0; i < COLI__SPARE; i++) n += s->tensor[i] != NULL;
    for (; s->n_booked > n; s->n_booked--)
        coli__devices_slot_gone(t->devices, device, t->slot_bytes);
}

/* Of every device that may hold experts, as many as there is room for. */
static void reserve_spares(coli__tier *t)
{
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++)
        while (t->usable >> i & 1 && t->spares[i].n_booked < COLI__SPARE &&
               coli__devices_take(t->devices, i, t->slot_bytes))
            t->spares[i].n_booked++;
}

/* Where an expert can be copied from; false when it cannot be read. */
static bool find_source(coli__tier *t, uint32_t device, const coli__ct_experts *layer,
                        uint32_t expert, coli_bk_source *source)
{
    const uint8_t *data;
    if (!coli__devices_expert_source(t->devices, device, layer, expert, source)) return false;
    if (!t->store) return true;
    if (coli__store_read(t->store, layer, expert, t->spares[device].staging, &data) != COLI_OK)
        return false;
    source->data = data;
    return true;
}

static bool fill_spare(coli__tier *t, uint32_t device, coli_bk_tensor **out)
{
    coli_bk_source source;
    const uint64_t begin_ns = coli__clock_ns();
    if (!find_source(t, device, layer_of(t, 0), 0, &source) || // any expert
        coli__device_upload(coli__devices_at(t->devices, device), &source, out) != COLI_OK)
        return false;
    note_ns(&t->spares[device].pass_ns, (double)(coli__clock_ns() - begin_ns));
    return true;
}

static void fill_spares(coli__tier *t)
{
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++) {
        spares *s = &t->spares[i];
        for (uint32_t k = 0; k < s->n_booked && fill_spare(t, i, &s->tensor[k]);) k++;
        while (s->n_booked > 0 && !s->tensor[s->n_booked - 1]) { // the room is free again
            s->n_booked--;
            coli__devices_give(t->devices, i, t->slot_bytes);
        }
    }
}

uint64_t coli__tier_spare_bytes(const coli__tier *t, uint32_t device)
{
    return t ? t->spares[device].n_booked * t->slot_bytes : 0;
}

bool coli__tier_has_spare(const coli__tier *t, uint32_t device, uint32_t slot)
{
    return t->spares[device].tensor[slot] != NULL;
}

coli_bk_tensor *coli__tier_pass(coli__tier *t, uint32_t device, uint32_t slot,
                                const coli__ct_experts *layer, uint32_t expert)
{
    spares *s = &t->spares[device];
    coli_bk_source source;
    bool in_place;
    const uint64_t begin_ns = coli__clock_ns();
    if (!find_source(t, device, layer, expert, &source) ||
        coli__device_overwrite(coli__devices_at(t->devices, device), &s->tensor[slot], &source,
                               &in_place) != COLI_OK)
        return NULL;
    note_ns(&s->pass_ns, (double)(coli__clock_ns() - begin_ns));
    return s->tensor[slot];
}

void coli__tier_passed(coli__tier *t, uint32_t device, double row_ns)
{
    note_ns(&t->spares[device].row_ns, row_ns);
}

uint32_t coli__tier_stream_rows(const coli__tier *t)
{
    return t ? t->stream_rows : 0;
}

/* -- copies begin and land --------------------------------------------------------------------- */

static bool queue_copy(coli__tier *t, coli__swap swap, coli_bk_tensor *tensor)
{
    const uint32_t device = t->home[swap.in];
    copy c = {.swap = swap,
              .layer = layer_of(t, swap.in),
              .expert = swap.in % t->n_expert,
              .tensor = tensor};
    if (!coli__devices_expert_source(t->devices, device, c.layer, c.expert, &c.source))
        return false;
    if (!ring_add(t->rings[device], &c)) return false;
    t->place[swap.in] = COLI__PLACE_QUEUED;
    t->n_queued++;
    return true;
}

bool coli__tier_swap(coli__tier *t, coli__swap swap)
{
    if (t->place[swap.in] != COLI__PLACE_KNOWN || t->place[swap.out] != COLI__PLACE_RESIDENT ||
        t->home[swap.in] != t->home[swap.out])
        return false;
    if (!queue_copy(t, swap, t->tensor[swap.out])) return false;
    t->place[swap.out] = COLI__PLACE_KNOWN; // from here on computed by the processor
    t->tensor[swap.out] = NULL;
    t->n_resident[t->home[swap.out]]--;
    t->n_swap++;
    note_evicted(t, swap.out);
    return true;
}

/* A device was lost: what it held is no device's any more, and nothing is planned for it. */
static void forget_device(coli__tier *t, uint32_t device)
{
    if (t->is_forgotten[device]) return;
    t->is_forgotten[device] = true;
    coli__devices_give(t->devices, device,
                       (t->n_resident[device] + t->spares[device].n_booked) * t->slot_bytes);
    t->n_resident[device] = 0;
    t->spares[device] = (spares){.staging = t->spares[device].staging};
    for (uint32_t id = 0; id < t->n_layer * t->n_expert; id++)
        if (t->home[id] == device && t->place[id] != COLI__PLACE_QUEUED) {
            if (t->place[id] == COLI__PLACE_RESIDENT) note_evicted(t, id);
            t->place[id] = COLI__PLACE_AWAY;
            t->tensor[id] = NULL;
        }
}

/* A copy has ended. */
static void land(coli__tier *t, const copy *c)
{
    const uint32_t id = c->swap.in, device = t->home[id];
    const bool is_lost = !coli__device_alive(coli__devices_at(t->devices, device));
    t->n_queued--;
    if (!t->speeds_are_set) {
        note_ns(&t->speeds[device].copy_ns, c->copy_ns);
        note_ns(&t->speeds[device].device_ns, c->device_ns);
    }
    if (c->status == COLI_OK && !is_lost) {
        t->place[id] = COLI__PLACE_RESIDENT;
        t->tensor[id] = c->tensor;
        t->n_resident[device]++;
        t->n_in_place += c->in_place;
        t->is_evicted[id] &= (uint8_t)~TO_REPORT;
        return;
    }
    t->place[id] = is_lost ? COLI__PLACE_AWAY : COLI__PLACE_KNOWN;
    t->is_full[device] |= c->status == COLI_E_NOMEM;
    if (c->swap.out == NONE || is_lost) {
        coli__devices_give(t->devices, device, t->slot_bytes);
        t->room[device]++;
        return;
    }
    t->n_swap_failed++; // and the slot is gone: coli__device_overwrite has tried all
    coli__devices_slot_gone(t->devices, device, t->slot_bytes);
}

static void collect(coli__tier *t)
{
    copy c;
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++) {
        while (ring_take(t->rings[i], false, &c)) land(t, &c);
        book_spares(t, i);
        if (!coli__device_alive(coli__devices_at(t->devices, i))) forget_device(t, i);
    }
}

void coli__tier_settle(coli__tier *t)
{
    if (!t) return;
    copy c;
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++)
        while (ring_take(t->rings[i], true, &c)) land(t, &c);
    collect(t);
}

/* -- homes ------------------------------------------------------------------------------------- */

/* Experts that can be swapped for each other: all layers have the shape of the first. */
static bool same_shape(const coli__ct_experts *a, const coli__ct_experts *b)
{
    return a->n_expert == b->n_expert && a->d_model == b->d_model && a->d_ff == b->d_ff &&
           a->block_bytes == b->block_bytes && a->up_offset == b->up_offset &&
           a->down_offset == b->down_offset &&
           memcmp(&a->gate.fmt, &b->gate.fmt, sizeof a->gate.fmt) == 0 &&
           memcmp(&a->up.fmt, &b->up.fmt, sizeof a->up.fmt) == 0 &&
           memcmp(&a->down.fmt, &b->down.fmt, sizeof a->down.fmt) == 0;
}

bool coli__tier_can_stream(const coli__tier *t, uint32_t device, const coli__ct_experts *layer)
{
    return t->spares[device].n_booked > 0 && same_shape(layer_of(t, 0), layer) &&
           coli__device_alive(coli__devices_at(t->devices, device));
}

static bool may_hold(const coli__tier *t, uint32_t device, const coli__ct_experts *layer)
{
    coli_bk_source source;
    return same_shape(layer_of(t, 0), layer) &&
           coli__devices_expert_source(t->devices, device, layer, 0, &source);
}

/* The devices that can hold experts.  One that cannot must not be a home, or its experts would never
 * be anywhere; where none has room, none has, and all stay. */
static uint32_t list_devices(const coli__tier *t, uint8_t *list)
{
    uint32_t n = 0;
    for (int pass = 0; pass < 2 && n == 0; pass++)
        for (uint32_t i = 0; i < coli__devices_n(t->devices); i++)
            if (t->usable >> i & 1 && may_hold(t, i, layer_of(t, 0)) &&
                (pass == 1 || (coli__device_alive(coli__devices_at(t->devices, i)) &&
                               coli__devices_room(t->devices, i) >= t->slot_bytes)))
                list[n++] = (uint8_t)i;
    return n;
}

/* The home of each layer, as an index into the list. */
static coli_status home_layers(const coli__tier *t, const uint8_t *list, uint32_t n, uint8_t *home)
{
    if (t->layer_split > 0 && (n != 2 || t->layer_split > t->n_layer))
        return coli__fail(
            COLI_E_INVALID,
            "layer-split %u: layers for the first of two devices: there are %u layers "
            "and %u devices",
            t->layer_split, t->n_layer, n);
    double weights[COLI__MAX_DEVICE];
    for (uint32_t i = 0; i < n; i++) weights[i] = (double)coli__devices_room(t->devices, list[i]);
    coli__home_of_layers(weights, n, t->n_layer, home);
    for (uint32_t l = 0; t->layer_split > 0 && l < t->n_layer; l++) home[l] = l >= t->layer_split;
    return COLI_OK;
}

static coli_status find_homes(coli__tier *t)
{
    uint8_t list[COLI__MAX_DEVICE];
    const uint32_t n = list_devices(t, list);
    uint8_t *of_layer = coli__calloc(t->n_layer, sizeof *of_layer);
    if (!of_layer) return COLI_E_NOMEM;
    coli_status status = COLI_OK;
    if (t->home_by_layer && n > 0) status = home_layers(t, list, n, of_layer);
    for (uint32_t id = 0; status == COLI_OK && id < t->n_layer * t->n_expert; id++) {
        t->place[id] = COLI__PLACE_KNOWN; // mapped
        t->home[id] = COLI__NO_HOME;
        if (n == 0) continue;
        const uint32_t device = t->home_by_layer ? list[of_layer[id / t->n_expert]]
                                                 : coli__home_of_expert(list, n, id % t->n_expert);
        if (may_hold(t, device, layer_of(t, id))) t->home[id] = (uint8_t)device;
    }
    coli__free(of_layer);
    return status;
}

/* -- filling ----------------------------------------------------------------------------------- */

/* Of the experts wanted, each device's share: by how many have their home there. */
static void find_shares(const coli__tier *t, uint32_t *share)
{
    const uint64_t n = (uint64_t)t->n_layer * t->n_expert;
    const uint64_t wanted = coli__devices_wanted(t->devices, n);
    uint64_t n_home[COLI__MAX_DEVICE] = {0}, before = 0;
    for (uint64_t id = 0; id < n; id++)
        if (t->home[id] != COLI__NO_HOME) n_home[t->home[id]]++;
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++) {
        const uint64_t after = before + n_home[i];
        share[i] = (uint32_t)(wanted * after / n - wanted * before / n); // they add up to `wanted`
        before = after;
    }
}

/* Room for how many experts on each device. */
static void find_room(coli__tier *t)
{
    find_shares(t, t->room);
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++) {
        const uint64_t fit = coli__devices_room(t->devices, i) / t->slot_bytes;
        if (fit < t->room[i]) t->room[i] = (uint32_t)fit;
    }
}

/* Queue the copy of one expert; false when the ring is full. */
static bool upload(coli__tier *t, uint32_t id)
{
    const uint32_t device = t->home[id];
    const coli__swap into_nothing = {id, NONE};
    if (t->is_full[device] || !coli__device_alive(coli__devices_at(t->devices, device)) ||
        !coli__devices_take(t->devices, device, t->slot_bytes))
        return true; // it stays where it is
    if (queue_copy(t, into_nothing, NULL)) return true;
    coli__devices_give(t->devices, device, t->slot_bytes);
    return false;
}

static coli_status upload_all(coli__tier *t, const uint32_t *ids, uint32_t n)
{
    const uint64_t block = layer_of(t, 0)->block_bytes;
    for (uint32_t i = 0; i < n;) {
        copy c;
        if (upload(t, ids[i]))
            i++;
        else if (ring_take(t->rings[t->home[ids[i]]], true, &c))
            land(t, &c);
        collect(t);
        COLI_TRY(coli__devices_progress(t->devices, (i - t->n_queued) * block, n * block));
    }
    coli__tier_settle(t);
    return n ? coli__devices_progress(t->devices, n * block, n * block) : COLI_OK;
}

/* What came to be used and is nowhere, where there is room for it: as much as the queue takes. */
static void fill_on_use(coli__tier *t, uint32_t layer, const int32_t *ids, size_t n_id)
{
    bool has_room = false;
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++) has_room |= t->room[i] > 0;
    for (size_t i = 0; has_room && i < n_id; i++) {
        if (ids[i] < 0) continue;
        const uint32_t id = layer * t->n_expert + (uint32_t)ids[i], device = t->home[id];
        if (t->place[id] != COLI__PLACE_KNOWN || device == COLI__NO_HOME || t->room[device] == 0)
            continue;
        if (!upload(t, id)) return;
        if (t->place[id] == COLI__PLACE_QUEUED)
            t->room[device]--;
        else
            t->room[device] = 0; // nothing more goes there
    }
}

/* Whom devices have room for, hottest first: ids (n_layer * n_expert).  That room is then taken. */
static coli_status choose(coli__tier *t, const uint32_t *stored, uint32_t *ids, uint32_t *n_chosen)
{
    const uint32_t n = t->n_layer * t->n_expert;
    const coli__plan_world w = {t->n_layer, t->n_expert, t->place, t->home, NULL, NULL};
    coli__plan_key *keys = coli__calloc(n, sizeof *keys);
    if (!keys) return COLI_E_NOMEM;
    coli__plan_order(t->n_layer, t->n_expert, stored, keys, ids);
    *n_chosen = coli__plan_fill(&w, ids, n, t->room, coli__devices_n(t->devices), ids);
    coli__free(keys);
    return COLI_OK;
}

coli_status coli__tier_fill(coli__tier *t, const uint32_t *stored)
{
    if (!t) return COLI_OK;
    fill_spares(t);
    COLI_TRY(find_homes(t));
    find_room(t);
    coli__steer_start(&t->steer, stored);
    const uint32_t n = t->n_layer * t->n_expert;
    uint32_t *ids = coli__calloc(n, sizeof *ids), n_chosen = 0;
    coli_status status = ids ? COLI_OK : COLI_E_NOMEM;
    if (status == COLI_OK && !t->starts_empty) status = choose(t, stored, ids, &n_chosen);
    if (status == COLI_OK) status = upload_all(t, ids, n_chosen);
    coli__free(ids);
    if (status != COLI_OK) return status;
    return coli__devices_placed(t->devices, t->n_resident, n,
                                t->usable && t->home[0] == COLI__NO_HOME, t->starts_empty);
}

coli_status coli__tier_would_hold(coli__tier *t, uint32_t *n_of_device, uint32_t *n_of_layer)
{
    memset(n_of_device, 0, COLI__MAX_DEVICE * sizeof *n_of_device);
    memset(n_of_layer, 0, t->n_layer * sizeof *n_of_layer);
    COLI_TRY(find_homes(t));
    find_room(t);
    uint32_t *ids = coli__calloc((size_t)t->n_layer * t->n_expert, sizeof *ids), n = 0;
    if (!ids) return COLI_E_NOMEM;
    const coli_status status = choose(t, NULL, ids, &n);
    for (uint32_t i = 0; i < n; i++) {
        n_of_device[t->home[ids[i]]]++;
        n_of_layer[ids[i] / t->n_expert]++;
    }
    coli__free(ids);
    return status;
}

/* -- what the trunk competes with -------------------------------------------------------------- */

void coli__tier_slot(const coli__tier *t, uint64_t *slot_bytes, uint64_t *expert_bytes)
{
    *slot_bytes = t ? t->slot_bytes : 0;
    *expert_bytes = t ? layer_of(t, 0)->block_bytes : 0;
}

coli_status coli__tier_chances(coli__tier *t, uint32_t device, uint32_t n_used,
                               const uint32_t *heat, double **p, uint32_t *n)
{
    *n = 0;
    *p = coli__calloc((size_t)t->n_layer * t->n_expert, sizeof **p);
    if (!*p) return COLI_E_NOMEM;
    COLI_TRY(find_homes(t)); // once more when the trunk has taken its room
    uint32_t share[COLI__MAX_DEVICE];
    find_shares(t, share);
    *n = coli__place_chances(t->n_layer, t->n_expert, n_used, t->home, device, heat, *p);
    if (share[device] < *n) *n = share[device];
    return COLI_OK;
}

/* -- create ------------------------------------------------------------------------------------ */

static coli_status allocate(coli__tier *t)
{
    for (uint32_t l = 0; l < t->n_layer; l++) {
        const uint32_t number = coli__container_experts(t->container, l)->layer;
        if (number >= t->n_index) t->n_index = number + 1;
    }
    const size_t n = (size_t)t->n_layer * t->n_expert;
    t->index = coli__calloc(t->n_index, sizeof *t->index);
    t->place = coli__calloc(n, sizeof *t->place);
    t->home = coli__calloc(n, sizeof *t->home);
    t->tensor = coli__calloc(n, sizeof *t->tensor);
    t->evicted = coli__calloc(n, sizeof *t->evicted);
    t->is_evicted = coli__calloc(n, sizeof *t->is_evicted);
    if (!t->index || !t->place || !t->home || !t->tensor || !t->evicted || !t->is_evicted)
        return COLI_E_NOMEM;
    for (uint32_t l = 0; l < t->n_layer; l++)
        t->index[coli__container_experts(t->container, l)->layer] = l;
    return COLI_OK;
}

static bool begin(void *ctx, coli__swap swap)
{
    return coli__tier_swap(ctx, swap);
}

static coli_status build(coli__tier *t, const coli__tier_opts *o)
{
    COLI_TRY(allocate(t));
    const coli__steer_opts opts = {.n_layer = t->n_layer,
                                   .n_expert = t->n_expert,
                                   .n_device = coli__devices_n(t->devices),
                                   .replan = o->replan,
                                   .with = o->replan_with,
                                   .cap = o->replan_cap,
                                   .place = t->place,
                                   .home = t->home,
                                   .begin = begin,
                                   .ctx = t};
    COLI_TRY(coli__steer_init(&t->steer, &opts));
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++)
        COLI_TRY(ring_create(coli__devices_at(t->devices, i), t->measures, &t->rings[i]));
    const uint64_t block = coli__container_experts(t->container, 0)->block_bytes;
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++) {
        const uint64_t bytes = coli__device_footprint(coli__devices_at(t->devices, i), block);
        if (bytes > t->slot_bytes) t->slot_bytes = bytes;
    }
    if (t->stream_rows > 0) reserve_spares(t);
    return COLI_OK;
}

coli_status coli__tier_create(coli__devices *devices, const coli__container *container,
                              const coli__tier_opts *opts, coli__tier **out)
{
    *out = NULL;
    if (!devices || coli__container_n_expert_layer(container) == 0) return COLI_OK;
    coli__tier *t = coli__calloc(1, sizeof *t);
    if (!t) return COLI_E_NOMEM;
    t->devices = devices;
    t->container = container;
    t->n_layer = coli__container_n_expert_layer(container);
    t->n_expert = coli__container_experts(container, 0)->n_expert;
    t->measures = opts->replan_with & (COLI__STEER_COST | COLI__STEER_HOLD);
    t->starts_empty = opts->starts_empty;
    t->home_by_layer = opts->home_by_layer || opts->layer_split > 0;
    t->layer_split = opts->layer_split;
    t->usable = opts->devices;
    t->stream_rows = opts->stream_rows;
    const coli_status status = build(t, opts);
    if (status != COLI_OK) {
        coli__tier_destroy(t);
        return status;
    }
    *out = t;
    return COLI_OK;
}

coli_status coli__tier_read_from(coli__tier *t, const coli__store *store)
{
    if (!t || !store) return COLI_OK;
    t->store = store;
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++) {
        ring *r = t->rings[i];
        COLI_TRY(coli__pages_take(coli__store_room(store), &r->staging));
        r->store = store; // its thread looks when there is a copy
        if (t->stream_rows > 0)
            COLI_TRY(coli__pages_take(coli__store_room(store), &t->spares[i].staging));
    }
    return COLI_OK;
}

void coli__tier_destroy(coli__tier *t)
{
    if (!t) return;
    for (uint32_t i = 0; i < COLI__MAX_DEVICE; i++) ring_destroy(t->rings[i]);
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++)
        if (t->spares[i].staging && !coli__device_hangs(coli__devices_at(t->devices, i)))
            coli__pages_give(t->spares[i].staging, coli__store_room(t->store));
    coli__steer_finish(&t->steer);
    coli__free(t->index);
    coli__free(t->place);
    coli__free(t->home);
    coli__free(t->tensor);
    coli__free(t->evicted);
    coli__free(t->is_evicted);
    coli__free(t);
}

/* -- what happens ------------------------------------------------------------------------------ */

void coli__tier_prompt(coli__tier *t)
{
    if (t) coli__steer_prompt(&t->steer);
}

void coli__tier_prompt_goes_on(coli__tier *t)
{
    if (t) coli__steer_prompt_goes_on(&t->steer);
}

void coli__tier_prompt_ends(coli__tier *t)
{
    if (!t) return;
    coli__steer_prompt_ends(&t->steer);
    t->is_marked = true;
    coli__devices_rows(t->devices, &t->n_hit_at_mark, &t->n_miss_at_mark);
}

void coli__tier_tick(coli__tier *t)
{
    if (!t) return;
    collect(t);
    coli__steer_tick(&t->steer, t->speeds);
}

void coli__tier_used(coli__tier *t, const coli__ct_experts *layer, const coli__work *work)
{
    if (!t) return;
    collect(t);
    const uint32_t l = t->index[layer->layer];
    for (uint32_t i = 0; i < coli__devices_n(t->devices) && !t->speeds_are_set; i++) {
        note_ns(&t->speeds[i].host_ns, work->host_ns);
        note_ns(&t->speeds[i].host_row_ns, work->host_row_ns);
        note_ns(&t->speeds[i].pass_ns, t->spares[i].pass_ns);
        note_ns(&t->speeds[i].pass_row_ns, t->spares[i].row_ns);
        t->spares[i].pass_ns = t->spares[i].row_ns = 0;
    }
    fill_on_use(t, l, work->ids, (size_t)work->n_row * work->n_used);
    coli__steer_used(&t->steer, l, work, t->speeds);
}

bool coli__tier_measures(const coli__tier *t)
{
    return t && t->measures;
}

coli__speeds coli__tier_speeds(const coli__tier *t, uint32_t device)
{
    return t->speeds[device];
}

void coli__tier_set_speeds(coli__tier *t, coli__speeds speeds)
{
    t->speeds_are_set = true;
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++) t->speeds[i] = speeds;
}

/* -- numbers ----------------------------------------------------------------------------------- */

void coli__tier_stats(const coli__tier *t, coli_backend_stats *out)
{
    if (!t) return;
    out->n_expert_total = (uint64_t)t->n_layer * t->n_expert;
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++)
        if (coli__device_alive(coli__devices_at(t->devices, i))) out->n_expert += t->n_resident[i];
    if (t->is_marked) {
        out->n_hit_decode = out->n_row_device - t->n_hit_at_mark;
        out->n_miss_decode = out->n_row_host - t->n_miss_at_mark;
    }
    out->n_swap = t->n_swap;
    out->n_swap_in_place = t->n_in_place;
    out->n_swap_failed = t->n_swap_failed;
    out->n_replan_planned = t->steer.replan.n_planned;
    out->n_replan_done = t->steer.replan.n_begun;
    out->n_replan_pending = t->steer.replan.n_pending;
    out->n_replan_skipped = t->steer.replan.n_skipped;
}

uint32_t coli__tier_n_resident(const coli__tier *t, uint32_t device)
{
    return t && coli__device_alive(coli__devices_at(t->devices, device)) ? t->n_resident[device]
                                                                         : 0;
}

const uint32_t *coli__tier_heat(const coli__tier *t)
{
    return t->steer.heat_counts;
}

uint64_t coli__tier_n_tick(const coli__tier *t)
{
    return t->steer.heat.n_tick;
}

bool coli__tier_is_sound(const coli__tier *t)
{
    uint32_t n[COLI__MAX_DEVICE] = {0};
    for (uint32_t id = 0; id < t->n_layer * t->n_expert; id++) {
        const bool resident = t->place[id] == COLI__PLACE_RESIDENT;
        if (resident != (t->tensor[id] != NULL)) return false;
        if (t->place[id] == COLI__PLACE_QUEUED) return false;
        if (resident) n[t->home[id]]++;
    }
    for (uint32_t i = 0; i < coli__devices_n(t->devices); i++)
        if (n[i] != t->n_resident[i] ||
            coli__devices_used(t->devices, i) != (n[i] + t->spares[i].n_booked) * t->slot_bytes +
                                                     coli__devices_matrix_bytes(t->devices, i))
            return false;
    return t->n_queued == 0;
}
