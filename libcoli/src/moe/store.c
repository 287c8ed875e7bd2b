/* store.c - see store.h.
 *
 * States of a slot (lru.h), and who changes them:
 *
 *     empty or full --coli__store_ask, coli__store_guess (start_read)--> loading
 *     loading --land, the read was good--> full
 *     loading --land, it failed; or forget_guesses, it had not begun--> empty
 *
 * Who touches what.  Slots, their order and who holds them are the computing thread's.  A read is a job
 * of the slot itself, so there is always room for it: the computing thread puts the slot into a queue,
 * a reading thread takes it out, reads into its memory, and puts it among the finished; the computing
 * thread collects those.  Nobody looks at a slot's memory between start_read and land.
 *
 * What is needed now comes before guesses.  A guess that turns out to be needed while it waits moves to
 * the other queue; one whose read fails is read once more if it is needed by then, else nobody hears
 * of it.
 *
 * Memory: all slots are one piece, each with room for a block wherever it begins in the file
 * (base/direct.h).
 *
 * Locks: `mu`, for moments. */
#include "store.h"

#include <pthread.h>
#include <string.h>

#include "../base/alloc.h"
#include "../base/direct.h"
#include "../base/memory.h"
#include "../base/threads.h"
#include "heat.h"
#include "lru.h"
#include "store_plan.h"

enum {
    N_READER = 4, // enough for a disk to have something to do while others wait for it
    NONE = COLI__LRU_NONE
};

/* A slot as a job of the reading threads. */
typedef struct reading {
    uint32_t layer, expert, slot;
    uint8_t *room;
    struct reading *next; // in the queue that it is in
    bool is_guess;        // nobody has asked for it yet
    coli_status status;
    char *failure;       // what it failed with; NULL: it did not, or there was no memory for it
    const uint8_t *data; // where the block begins in the room
} reading;

typedef struct queue {
    reading *first, *last;
} queue;

typedef struct layer {
    const coli__ct_experts *experts;
    coli__lru lru;
    reading *readings; // (n_slot)
    uint32_t index;
    uint32_t n_listed; // of list_uses
} layer;

struct coli__store {
    /* immutable after create */
    const coli__container *container;
    coli__direct *file;
    uint32_t n_layer, n_expert, n_slot;
    uint32_t *index; // (n_index) by the layer's number
    uint32_t n_index;
    uint64_t room_bytes, pages_bytes; // of the widest layer's slot; of all
    void *pages;
    bool guesses;
    pthread_t readers[N_READER];
    uint32_t n_reader;

    /* the computing thread's */
    layer *layers;         // (n_layer)
    uint32_t *slot_of;     // (n_layer, n_expert)
    coli__lru_slot *slots; // (n_layer, n_slot)
    reading *readings;     // (n_layer, n_slot)
    uint8_t *pinned;       // (n_layer, n_expert)
    uint8_t *guessed;      // (n_layer, n_expert) in RAM for a guess, and not used since
    uint32_t *heat_counts; // (n_layer, n_expert)
    uint64_t *used_at;     // (n_layer, n_expert) token of the last use
    uint8_t *was_used;     // (n_layer, n_expert) at all
    coli__heat heat;
    coli_store_stats stats;
    bool is_marked;
    uint64_t n_hit_at_mark, n_miss_at_mark;

    /* guarded by mu */
    pthread_mutex_t mu;
    pthread_cond_t has_work, has_result;
    queue wanted, guessing, finished;
    uint32_t n_running; // taken by a reader
    bool stop;
};

/* -- queues ------------------------------------------------------------------------------------ */

static void put(queue *q, reading *r)
{
    r->next = NULL;
    if (q->last)
        q->last->next = r;
    else
        q->first = r;
    q->last = r;
}

static reading *take(queue *q)
{
    reading *r = q->first;
    if (!r) return NULL;
    q->first = r->next;
    if (!q->first) q->last = NULL;
    return r;
}

/* Take one out of the middle; false when it is not there. */
static bool take_out(queue *q, reading *wanted)
{
    reading *before = NULL;
    for (reading *r = q->first; r; before = r, r = r->next) {
        if (r != wanted) continue;
        if (before)
            before->next = r->next;
        else
            q->first = r->next;
        if (q->last == r) q->last = before;
        return true;
    }
    return false;
}

/* -- the reading threads ----------------------------------------------------------------------- */

static coli_status read_block(const coli__store *s, uint32_t l, uint32_t expert, void *room,
                              const uint8_t **data)
{
    const coli__ct_experts *x = s->layers[l].experts;
    const coli_status status =
        coli__direct_read(s->file, coli__container_expert_offset(s->container, l, expert),
                          x->block_bytes, room, data);
    return status == COLI_OK ? status
                             : coli__fail_in(status, "layer %u, expert %u", x->layer, expert);
}

static void *reader_main(void *arg)
{
    coli__store *s = arg;
    pthread_mutex_lock(&s->mu);
    for (;;) {
        while (!s->stop && !s->wanted.first && !s->guessing.first)
            pthread_cond_wait(&s->has_work, &s->mu);
        if (s->stop) break;
        reading *r = take(&s->wanted);
        if (!r) r = take(&s->guessing);
        s->n_running++;
        pthread_mutex_unlock(&s->mu);
        r->status = read_block(s, r->layer, r->expert, r->room, &r->data);
        if (r->status != COLI_OK)
            r->failure = coli__strndup(coli_error_message(), strlen(coli_error_message()));
        pthread_mutex_lock(&s->mu);
        s->n_running--;
        put(&s->finished, r);
        pthread_cond_signal(&s->has_result);
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

/* -- reads begin and land ---------------------------------------------------------------------- */

static void enqueue(coli__store *s, reading *r, bool is_guess)
{
    r->is_guess = is_guess;
    pthread_mutex_lock(&s->mu);
    put(is_guess ? &s->guessing : &s->wanted, r);
    pthread_cond_signal(&s->has_work);
    pthread_mutex_unlock(&s->mu);
}

/* Give an absent expert a slot and queue its read; NONE when there is no slot. */
static uint32_t start_read(coli__store *s, layer *l, uint32_t expert, bool is_guess)
{
    uint32_t evicted;
    const uint32_t slot = coli__lru_take(&l->lru, expert, &evicted);
    if (slot == NONE) return NONE;
    if (evicted != NONE) s->guessed[(size_t)l->index * s->n_expert + evicted] = 0;
    s->guessed[(size_t)l->index * s->n_expert + expert] = is_guess;
    l->readings[slot].expert = expert;
    enqueue(s, &l->readings[slot], is_guess);
    return slot;
}

/* The error of a read, which its reading thread kept. */
static coli_status fail_as_read(const layer *l, const reading *r)
{
    if (r->failure) return coli__fail(r->status, "%s", r->failure);
    return coli__fail(r->status, "layer %u, expert %u: it could not be read", l->experts->layer,
                      r->expert);
}

/* A read has ended.  E_IO when it failed and somebody holds the expert. */
static coli_status land(coli__store *s, reading *r)
{
    layer *l = &s->layers[r->layer];
    if (r->status == COLI_OK) {
        s->stats.n_read++;
        s->stats.read_bytes += l->experts->block_bytes;
        s->stats.n_guess_read += r->is_guess;
        coli__lru_loaded(&l->lru, r->slot);
        return COLI_OK;
    }
    s->stats.n_read_failed++;
    const bool is_held = l->lru.slots[r->slot].n_held > 0, once_more = is_held && r->is_guess;
    const coli_status status = is_held && !once_more ? fail_as_read(l, r) : COLI_OK;
    coli__free(r->failure);
    r->failure = NULL;
    if (once_more) {
        enqueue(s, r, false);
        return COLI_OK;
    }
    while (l->lru.slots[r->slot].n_held > 0) coli__lru_release(&l->lru, r->slot);
    coli__lru_drop(&l->lru, r->slot);
    return status;
}

coli_status coli__store_collect(coli__store *s, bool wait)
{
    coli_status status = COLI_OK;
    pthread_mutex_lock(&s->mu);
    if (wait && !s->finished.first && (s->n_running || s->wanted.first || s->guessing.first)) {
        const uint64_t since = coli__clock_ns();
        while (!s->finished.first) pthread_cond_wait(&s->has_result, &s->mu);
        s->stats.wait_ms += (double)(coli__clock_ns() - since) * 1e-6;
    }
    reading *r = s->finished.first;
    s->finished = (queue){NULL, NULL};
    pthread_mutex_unlock(&s->mu);
    while (r) {
        reading *next = r->next; // land may queue r again
        const coli_status landed = land(s, r);
        if (landed != COLI_OK) status = landed; // the message is the last one's, too
        r = next;
    }
    return status;
}

/* -- a step ------------------------------------------------------------------------------------ */

static layer *layer_of(const coli__store *s, const coli__ct_experts *experts)
{
    return &s->layers[s->index[experts->layer]];
}

coli__store_state coli__store_hold(coli__store *s, const coli__ct_experts *experts, uint32_t expert)
{
    layer *l = layer_of(s, experts);
    const uint32_t slot = coli__lru_find(&l->lru, expert);
    if (slot == NONE) {
        s->stats.n_miss++;
        return COLI__STORE_ABSENT;
    }
    coli__lru_hold(&l->lru, slot);
    uint8_t *guessed = &s->guessed[(size_t)l->index * s->n_expert + expert];
    s->stats.n_guess_used += *guessed;
    *guessed = 0;
    if (!l->lru.slots[slot].is_loading) {
        s->stats.n_hit++;
        return COLI__STORE_HERE;
    }
    s->stats.n_miss++; // it has to be waited for
    pthread_mutex_lock(&s->mu);
    if (take_out(&s->guessing, &l->readings[slot])) put(&s->wanted, &l->readings[slot]);
    pthread_mutex_unlock(&s->mu);
    return COLI__STORE_COMING;
}

bool coli__store_ask(coli__store *s, const coli__ct_experts *experts, uint32_t expert)
{
    layer *l = layer_of(s, experts);
    const uint32_t slot = start_read(s, l, expert, false);
    if (slot == NONE) return false;
    coli__lru_hold(&l->lru, slot);
    return true;
}

const uint8_t *coli__store_block(const coli__store *s, const coli__ct_experts *experts,
                                 uint32_t expert)
{
    const layer *l = layer_of(s, experts);
    const uint32_t slot = coli__lru_find(&l->lru, expert);
    return slot == NONE || l->lru.slots[slot].is_loading ? NULL : l->readings[slot].data;
}

void coli__store_release(coli__store *s, const coli__ct_experts *experts, uint32_t expert)
{
    layer *l = layer_of(s, experts);
    const uint32_t slot = coli__lru_find(&l->lru, expert);
    if (slot != NONE && l->lru.slots[slot].n_held > 0) coli__lru_release(&l->lru, slot);
}

/* -- what will be needed ----------------------------------------------------------------------- */

void coli__store_forget_guesses(coli__store *s)
{
    pthread_mutex_lock(&s->mu);
    reading *r = s->guessing.first;
    s->guessing = (queue){NULL, NULL};
    pthread_mutex_unlock(&s->mu);
    for (; r; r = r->next) coli__lru_drop(&s->layers[r->layer].lru, r->slot);
}

static uint64_t score_of(const coli__store *s, uint32_t id)
{
    return coli__store_score(s->heat_counts[id], s->heat.n_tick - s->used_at[id]);
}

/* Whether a guess may take the next victim's slot: never a pinned or a hotter one's.  Demanding more
 * (that the guess be hotter by a quarter and four uses) leaves most guesses unread, though two of three
 * are right; demanding nothing reads a fifth more. */
static bool may_displace(const coli__store *s, const layer *l, uint32_t expert)
{
    const uint32_t slot = coli__lru_victim(&l->lru), base = l->index * s->n_expert;
    if (slot == NONE) return false;
    const uint32_t victim = l->lru.slots[slot].expert;
    if (victim == NONE) return true;
    if (s->pinned[base + victim]) return false;
    return score_of(s, base + expert) >= score_of(s, base + victim);
}

void coli__store_guess(coli__store *s, const coli__ct_experts *experts, const int32_t *ids,
                       size_t n_id)
{
    layer *l = layer_of(s, experts);
    for (size_t i = 0; i < n_id; i++) {
        if (ids[i] < 0) continue;
        const uint32_t expert = (uint32_t)ids[i];
        if (coli__lru_find(&l->lru, expert) == NONE && may_displace(s, l, expert))
            start_read(s, l, expert, true);
    }
}

bool coli__store_guesses(const coli__store *s)
{
    return s && s->guesses;
}

void coli__store_guessed(coli__store *s, uint64_t n_used, uint64_t n_right)
{
    s->stats.n_guess_asked += n_used;
    s->stats.n_guess_right += n_right;
}

void coli__store_used(coli__store *s, const coli__ct_experts *experts, const int32_t *ids,
                      size_t n_id)
{
    if (!s) return;
    const uint32_t l = s->index[experts->layer];
    coli__heat_use(&s->heat, l, ids, n_id);
    for (size_t i = 0; i < n_id; i++)
        if (ids[i] >= 0) {
            const size_t id = (size_t)l * s->n_expert + (uint32_t)ids[i];
            s->used_at[id] = s->heat.n_tick;
            s->was_used[id] = 1;
        }
}

void coli__store_tick(coli__store *s)
{
    if (s) coli__heat_tick(&s->heat);
}

void coli__store_prompt_ends(coli__store *s)
{
    if (!s) return;
    s->is_marked = true;
    s->n_hit_at_mark = s->stats.n_hit;
    s->n_miss_at_mark = s->stats.n_miss;
}

/* -- start ------------------------------------------------------------------------------------- */

/* What may be pinned, hottest first; of each layer no more than half of its slots. */
static uint32_t list_uses(const coli__store *s, const coli__store_start *start,
                          coli__store_use *uses)
{
    uint32_t n = 0, n_kept = 0;
    for (uint32_t l = 0; l < s->n_layer; l++) {
        const coli__ct_experts *x = s->layers[l].experts;
        for (uint32_t e = 0; e < s->n_expert; e++)
            if (!start->is_elsewhere || !start->is_elsewhere(start->ctx, x, e))
                uses[n++] = (coli__store_use){l, e, start->heat[(size_t)l * s->n_expert + e],
                                              coli__direct_room(x->block_bytes)};
    }
    coli__store_sort_uses(uses, n);
    for (uint32_t i = 0; i < n; i++) {
        layer *l = &s->layers[uses[i].layer];
        if (l->n_listed == s->n_slot / 2) continue;
        l->n_listed++;
        uses[n_kept++] = uses[i];
    }
    return n_kept;
}

static uint64_t pin_budget(const coli__store *s, const coli__store_start *start)
{
    if (start->pin_bytes) return start->pin_bytes;
    uint64_t n_use = 0;
    for (uint64_t i = 0; i < (uint64_t)s->n_layer * s->n_expert; i++) n_use += start->heat[i];
    return coli__store_pin_budget(s->pages_bytes, n_use);
}

/* Read these, and wait for them. */
static coli_status read_pinned(coli__store *s, const coli__store_start *start,
                               const coli__store_use *uses, uint32_t n)
{
    uint64_t total = 0;
    coli_status status = COLI_OK;
    for (uint32_t i = 0; i < n; i++) {
        const coli__ct_experts *x = s->layers[uses[i].layer].experts;
        s->pinned[(size_t)uses[i].layer * s->n_expert + uses[i].expert] = 1;
        total += x->block_bytes;
        coli__store_ask(s, x, uses[i].expert); // there is a slot: nothing else is in the layer
    }
    while (status == COLI_OK && s->stats.n_read < n) {
        status = coli__store_collect(s, true);
        if (status == COLI_OK && start->progress &&
            !start->progress(start->user, "reading experts", s->stats.read_bytes, total))
            status = coli__fail(COLI_E_CANCELLED, "reading experts was stopped");
    }
    for (uint32_t i = 0; i < n; i++)
        coli__store_release(s, s->layers[uses[i].layer].experts, uses[i].expert);
    s->stats.wait_ms = 0; // before anything was computed
    return status;
}

coli_status coli__store_begin(coli__store *s, const coli__store_start *start)
{
    if (!s || !start->heat) return COLI_OK;
    coli__heat_init(&s->heat, s->n_layer, s->n_expert, s->heat_counts, start->heat);
    const uint64_t budget = pin_budget(s, start);
    if (budget == 0 || s->n_slot < 2) return COLI_OK;
    coli__store_use *uses = coli__calloc((size_t)s->n_layer * s->n_expert, sizeof *uses);
    if (!uses) return COLI_E_NOMEM;
    const uint32_t n = list_uses(s, start, uses);
    s->stats.n_pinned = coli__store_n_pin(uses, n, budget);
    const coli_status status = read_pinned(s, start, uses, s->stats.n_pinned);
    coli__free(uses);
    return status;
}

/* -- create ------------------------------------------------------------------------------------ */

uint64_t coli__store_slot_bytes(const coli__container *c)
{
    uint64_t sum = 0;
    for (uint32_t l = 0; l < coli__container_n_expert_layer(c); l++) {
        const uint64_t room = coli__direct_room(coli__container_experts(c, l)->block_bytes);
        if (room == 0 || !coli__add(sum, room, &sum)) return 0;
    }
    return sum;
}

static coli_status allocate(coli__store *s)
{
    const size_t n = (size_t)s->n_layer * s->n_expert, n_slot = (size_t)s->n_layer * s->n_slot;
    for (uint32_t l = 0; l < s->n_layer; l++) {
        const coli__ct_experts *x = coli__container_experts(s->container, l);
        if (x->layer >= s->n_index) s->n_index = x->layer + 1;
        if (x->n_expert != s->n_expert)
            return coli__fail(COLI_E_UNSUPPORTED,
                              "%s: layers with different numbers of experts do not share memory",
                              coli__container_path(s->container));
    }
    s->index = coli__calloc(s->n_index, sizeof *s->index);
    s->layers = coli__calloc(s->n_layer, sizeof *s->layers);
    s->slot_of = coli__calloc(n, sizeof *s->slot_of);
    s->slots = coli__calloc(n_slot, sizeof *s->slots);
    s->readings = coli__calloc(n_slot, sizeof *s->readings);
    s->pinned = coli__calloc(n, sizeof *s->pinned);
    s->guessed = coli__calloc(n, sizeof *s->guessed);
    s->heat_counts = coli__calloc(n, sizeof *s->heat_counts);
    s->used_at = coli__calloc(n, sizeof *s->used_at);
    s->was_used = coli__calloc(n, sizeof *s->was_used);
    if (!s->index || !s->layers || !s->slot_of || !s->slots || !s->readings || !s->pinned ||
        !s->guessed || !s->heat_counts || !s->used_at || !s->was_used)
        return COLI_E_NOMEM;
    const uint64_t one = coli__store_slot_bytes(s->container);
    if (one == 0 || !coli__mul(one, s->n_slot, &s->pages_bytes))
        return coli__fail(COLI_E_NOMEM, "%u experts per layer are too large", s->n_slot);
    return coli__pages_take(s->pages_bytes, &s->pages);
}

static void lay_out(coli__store *s)
{
    uint8_t *at = s->pages;
    for (uint32_t i = 0; i < s->n_layer; i++) {
        layer *l = &s->layers[i];
        l->experts = coli__container_experts(s->container, i);
        l->index = i;
        l->readings = s->readings + (size_t)i * s->n_slot;
        s->index[l->experts->layer] = i;
        coli__lru_init(&l->lru, s->n_expert, s->n_slot, s->slot_of + (size_t)i * s->n_expert,
                       s->slots + (size_t)i * s->n_slot, s->pinned + (size_t)i * s->n_expert);
        const uint64_t room = coli__direct_room(l->experts->block_bytes);
        if (room > s->room_bytes) s->room_bytes = room;
        for (uint32_t slot = 0; slot < s->n_slot; slot++, at += room)
            l->readings[slot] = (reading){.layer = i, .slot = slot, .room = at};
    }
    coli__heat_init(&s->heat, s->n_layer, s->n_expert, s->heat_counts, NULL);
}

static coli_status start_readers(coli__store *s)
{
    for (; s->n_reader < N_READER; s->n_reader++) {
        const int error = coli__thread_start(&s->readers[s->n_reader], reader_main, s);
        if (error)
            return coli__fail(COLI_E_NOMEM, "a thread that reads experts: %s", strerror(error));
    }
    return COLI_OK;
}

coli_status coli__store_create(const coli__container *container, const coli__store_opts *opts,
                               coli__store **out)
{
    *out = NULL;
    coli__store *s = coli__calloc(1, sizeof *s);
    if (!s) return COLI_E_NOMEM;
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->has_work, NULL);
    pthread_cond_init(&s->has_result, NULL);
    s->container = container;
    s->n_layer = coli__container_n_expert_layer(container);
    s->n_expert = coli__container_experts(container, 0)->n_expert;
    s->n_slot = opts->n_slot;
    s->guesses = opts->guesses;
    coli_status status = coli__direct_open(coli__container_path(container), &s->file);
    if (status == COLI_OK) status = allocate(s);
    if (status == COLI_OK) {
        lay_out(s);
        status = start_readers(s);
    }
    if (status != COLI_OK) {
        coli__store_destroy(s);
        return status;
    }
    *out = s;
    return COLI_OK;
}

void coli__store_destroy(coli__store *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->mu);
    s->stop = true;
    pthread_cond_broadcast(&s->has_work);
    pthread_mutex_unlock(&s->mu);
    for (uint32_t i = 0; i < s->n_reader; i++) pthread_join(s->readers[i], NULL);
    pthread_cond_destroy(&s->has_result);
    pthread_cond_destroy(&s->has_work);
    pthread_mutex_destroy(&s->mu);
    coli__direct_close(s->file);
    coli__pages_give(s->pages, s->pages_bytes);
    coli__free(s->index);
    coli__free(s->layers);
    coli__free(s->slot_of);
    coli__free(s->slots);
    for (size_t i = 0; s->readings && i < (size_t)s->n_layer * s->n_slot; i++)
        coli__free(s->readings[i].failure);
    coli__free(s->readings);
    coli__free(s->pinned);
    coli__free(s->guessed);
    coli__free(s->heat_counts);
    coli__free(s->used_at);
    coli__free(s->was_used);
    coli__free(s);
}

/* -- for others -------------------------------------------------------------------------------- */

uint32_t coli__store_n_slot(const coli__store *s)
{
    return s->n_slot;
}

uint64_t coli__store_room(const coli__store *s)
{
    return s->room_bytes;
}

coli_status coli__store_read(const coli__store *s, const coli__ct_experts *experts, uint32_t expert,
                             void *room, const uint8_t **data)
{
    return read_block(s, s->index[experts->layer], expert, room, data);
}

const uint32_t *coli__store_heat(const coli__store *s)
{
    return s->heat_counts;
}

uint64_t coli__store_n_tick(const coli__store *s)
{
    return s->heat.n_tick;
}

void coli__store_stats(const coli__store *s, coli_store_stats *out)
{
    if (!s) return;
    const uint32_t struct_size = out->struct_size;
    *out = s->stats;
    out->struct_size = struct_size;
    out->is_limited = true;
    out->is_direct = coli__direct_is_direct(s->file);
    out->n_slot = s->n_slot;
    out->slot_bytes = s->pages_bytes;
    if (!s->is_marked) return;
    out->n_hit_decode = s->stats.n_hit - s->n_hit_at_mark;
    out->n_miss_decode = s->stats.n_miss - s->n_miss_at_mark;
}

bool coli__store_has(const coli__store *s, const coli__ct_experts *experts, uint32_t expert)
{
    const coli__lru *l = &layer_of(s, experts)->lru;
    const uint32_t slot = coli__lru_find(l, expert);
    return slot != NONE && !l->slots[slot].is_loading;
}

/* Whether one expert would keep its slot rather than the other, which has the higher id. */
static bool keeps(const coli__store *s, uint32_t id, uint32_t other)
{
    if (s->pinned[id] != s->pinned[other]) return s->pinned[id];
    if (s->used_at[id] != s->used_at[other]) return s->used_at[id] > s->used_at[other];
    return s->heat_counts[id] >= s->heat_counts[other];
}

void coli__store_expect(const coli__store *s, const coli__ct_experts *experts, uint8_t *level)
{
    const uint32_t base = s->index[experts->layer] * s->n_expert;
    for (uint32_t slot = 0; slot < s->n_slot; slot++) {
        uint32_t best = NONE;
        for (uint32_t e = 0; e < s->n_expert; e++) {
            const bool may = s->pinned[base + e] || s->was_used[base + e];
            if (may && level[e] == COLI_LEVEL_DISK &&
                (best == NONE || !keeps(s, base + best, base + e)))
                best = e;
        }
        if (best == NONE) return;
        level[best] = COLI_LEVEL_RAM;
    }
}

/* Wait until no read is on its way. */
static void settle(coli__store *s)
{
    for (bool is_quiet = false; !is_quiet;) {
        (void)coli__store_collect(s, true); // fails for experts that are held: there are none
        pthread_mutex_lock(&s->mu);
        is_quiet = !s->n_running && !s->wanted.first && !s->guessing.first && !s->finished.first;
        pthread_mutex_unlock(&s->mu);
    }
}

bool coli__store_is_sound(coli__store *s)
{
    settle(s);
    for (uint32_t i = 0; i < s->n_layer; i++) {
        const coli__lru *l = &s->layers[i].lru;
        uint32_t n_full = 0, n_found = 0;
        for (uint32_t slot = 0; slot < s->n_slot; slot++) {
            const coli__lru_slot *x = &l->slots[slot];
            if (x->n_held || x->is_loading) return false;
            if (x->expert == NONE) continue;
            n_full++;
            if (coli__lru_find(l, x->expert) != slot) return false;
        }
        for (uint32_t e = 0; e < s->n_expert; e++) n_found += coli__lru_find(l, e) != NONE;
        if (n_full != n_found) return false;
    }
    return true;
}
