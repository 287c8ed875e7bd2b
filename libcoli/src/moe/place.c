/* place.c - see place.h.
 *
 * Devices fill up one piece after another: `room` below is what is left for the trunk and for experts,
 * so a later piece displaces experts that are likelier than those that earlier ones displaced. */
#include "place.h"

#include <stdlib.h>
#include <string.h>

const char *coli__component_name(coli__component component)
{
    static const char *const names[COLI__N_COMPONENT] = {
#define COMPONENT_NAME(name, text) [COLI__##name] = text,
        COLI__COMPONENT_LIST(COMPONENT_NAME)
#undef COMPONENT_NAME
    };
    return names[component];
}

/* -- worth ------------------------------------------------------------------------------------- */

static int higher_first(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

uint32_t coli__place_chances(uint32_t n_layer, uint32_t n_expert, uint32_t n_used,
                             const uint8_t *home, uint32_t device, const uint32_t *heat, double *p)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < n_layer; l++) {
        const size_t at = (size_t)l * n_expert;
        uint64_t sum = 0;
        for (uint32_t e = 0; heat && e < n_expert; e++) sum += heat[at + e];
        for (uint32_t e = 0; e < n_expert; e++) {
            if (home[at + e] != device) continue;
            const double chance = sum ? (double)n_used * heat[at + e] / (double)sum
                                      : (double)n_used / (double)n_expert;
            p[n++] = chance < 1 ? chance : 1;
        }
    }
    qsort(p, n, sizeof *p, higher_first); // equal numbers are equal in any order
    return n;
}

/* Experts that fit, of those that the device would hold. */
static uint32_t n_fit(const coli__place_world *w, uint32_t device, uint64_t room)
{
    const uint32_t n = w->devices[device].n_expert;
    if (n == 0) return 0;
    const uint64_t fit = room / w->slot_footprint;
    return fit < n ? (uint32_t)fit : n;
}

/* What a token reads of the experts of ranks begin .. end-1, on average. */
static double worth(const coli__place_world *w, uint32_t device, uint32_t begin, uint32_t end)
{
    double sum = 0;
    for (uint32_t rank = begin; rank < end; rank++)
        sum += w->devices[device].p[rank] * (double)w->expert_bytes;
    return sum;
}

/* Put a piece on a device if it has room, and if it is worth it. */
static coli__placing put(const coli__place_world *w, const coli__offer *offer, uint32_t device,
                         bool whatever_it_displaces, uint64_t *room)
{
    const coli__placing full = {COLI__ON_HOST, COLI__WHY_NO_ROOM, 0};
    const coli__placing dear = {COLI__ON_HOST, COLI__WHY_EXPERTS, 0};
    if (offer->footprint > room[device]) return full;
    const uint32_t before = n_fit(w, device, room[device]);
    const uint32_t after = n_fit(w, device, room[device] - offer->footprint);
    if (!whatever_it_displaces && (double)offer->bytes < worth(w, device, after, before))
        return dear;
    room[device] -= offer->footprint;
    return (coli__placing){(int32_t)device, COLI__WHY_PLACED, before - after};
}

/* -- automatic --------------------------------------------------------------------------------- */

static void rooms_of(const coli__place_world *w, uint64_t *room)
{
    for (uint32_t i = 0; i < w->n_device; i++) room[i] = w->devices[i].room;
}

/* The device of a set with the most room; COLI__ON_HOST for an empty set. */
static int32_t roomiest(const coli__place_world *w, uint32_t set, const uint64_t *room)
{
    int32_t best = COLI__ON_HOST;
    for (uint32_t i = 0; i < w->n_device; i++)
        if (set >> i & 1 && (best == COLI__ON_HOST || room[i] > room[best])) best = (int32_t)i;
    return best;
}

/* Where the input projections of the same layer are. */
static int32_t device_of_dnproj(const coli__offer *offers, uint32_t n, const coli__placing *places,
                                uint32_t layer)
{
    for (uint32_t i = 0; i < n; i++)
        if (offers[i].component == COLI__DNPROJ && offers[i].layer == layer)
            return places[i].device;
    return COLI__ON_HOST;
}

void coli__place_auto(const coli__place_world *w, uint32_t devices, bool before_experts,
                      const coli__offer *offers, uint32_t n, coli__placing *out)
{
    uint64_t room[COLI__PLACE_MAX_DEVICE];
    rooms_of(w, room);
    for (uint32_t component = 0; component < COLI__N_COMPONENT; component++)
        for (uint32_t i = 0; i < n; i++) {
            const coli__offer *o = &offers[i];
            if (o->component != component) continue;
            const uint32_t able = o->devices & devices;
            int32_t device = roomiest(w, able, room);
            if (component == COLI__DNOUT) {
                const int32_t with = device_of_dnproj(offers, n, out, o->layer);
                if (with >= 0 && able >> with & 1 && o->footprint <= room[with]) device = with;
            }
            out[i] = (coli__placing){COLI__ON_HOST, COLI__WHY_UNABLE, 0};
            if (device >= 0) out[i] = put(w, o, (uint32_t)device, before_experts, room);
        }
}

bool coli__place_pays(double device_ns, double host_ns)
{
    return device_ns < host_ns;
}

/* -- lists ------------------------------------------------------------------------------------- */

static coli_status malformed(const char *text, const char *item, size_t n)
{
    return coli__fail(COLI_E_INVALID,
                      "place: expected auto, off, all, or up to %d items with commas between them: "
                      "NAME=cpu, NAME=DEVICE, NAME=DEVICE:LAYERS+DEVICE:LAYERS, experts=DEVICE, "
                      "experts=all or experts=cpu, each name once; found \"%.*s\" in \"%s\"",
                      COLI__LIST_ITEMS, (int)n, item, text);
}

/* Digits at *at, up to 9 of them. */
static bool read_number(const char **at, const char *end, uint32_t *out)
{
    const char *begin = *at;
    *out = 0;
    while (*at < end && **at >= '0' && **at <= '9' && *at - begin < 9)
        *out = *out * 10 + (uint32_t)(*(*at)++ - '0');
    return *at > begin;
}

/* DEVICE or DEVICE:LAYERS, where -LAYERS is 0. */
static bool read_segment(const char **at, const char *end, struct coli__list_segment *out)
{
    uint32_t device;
    *out = (struct coli__list_segment){0};
    if (!read_number(at, end, &device)) return false;
    out->device = (int32_t)device;
    if (*at == end || **at != ':') return true;
    ++*at;
    if (*at == end || **at == '+') return true; // "0:" is all that are left, too
    const bool negative = **at == '-';
    *at += negative;
    if (!read_number(at, end, &out->n_layer)) return false;
    if (negative) out->n_layer = 0;
    return true;
}

static bool read_spec(const char *at, const char *end, struct coli__list_item *item)
{
    if (end - at == 3 && memcmp(at, "cpu", 3) == 0) {
        item->segments[item->n_segment++] = (struct coli__list_segment){COLI__ON_HOST, 0};
        return true;
    }
    for (;;) {
        if (item->n_segment == COLI__LIST_SEGMENTS) return false;
        if (!read_segment(&at, end, &item->segments[item->n_segment++])) return false;
        if (at == end) return true;
        if (*at++ != '+') return false;
    }
}

static bool read_experts(const char *at, const char *end, coli__place_list *list)
{
    uint32_t device = 0;
    if (list->experts != COLI__EXPERTS_AUTO) return false; // twice
    if (end - at == 3 && memcmp(at, "all", 3) == 0)
        list->experts = COLI__EXPERTS_ALL;
    else if (end - at == 3 && memcmp(at, "cpu", 3) == 0)
        list->experts = COLI__EXPERTS_CPU;
    else if (read_number(&at, end, &device) && at == end)
        list->experts = (int32_t)device;
    else
        return false;
    return true;
}

static bool read_item(const char *at, const char *end, coli__place_list *list)
{
    const char *equals = memchr(at, '=', (size_t)(end - at));
    if (!equals || equals == at || equals - at >= COLI__LIST_NAME ||
        end - equals - 1 > COLI__LIST_SPEC)
        return false;
    const size_t n_name = (size_t)(equals - at);
    if (n_name == 7 && memcmp(at, "experts", 7) == 0) return read_experts(equals + 1, end, list);
    if (list->n_item == COLI__LIST_ITEMS) return false;
    struct coli__list_item *item = &list->items[list->n_item];
    for (size_t i = 0; i < n_name; i++)
        if (!((at[i] >= 'a' && at[i] <= 'z') || (at[i] >= '0' && at[i] <= '9'))) return false;
    memcpy(item->name, at, n_name);
    for (uint32_t i = 0; i < list->n_item; i++)
        if (strcmp(list->items[i].name, item->name) == 0) return false;
    list->n_item++;
    return read_spec(equals + 1, end, item);
}

coli_status coli__place_parse(const char *text, coli__place_list *out)
{
    *out = (coli__place_list){.mode = COLI__PLACE_AUTO, .experts = COLI__EXPERTS_AUTO};
    if (!text || strcmp(text, "auto") == 0) return COLI_OK;
    out->mode = COLI__PLACE_OFF;
    if (strcmp(text, "off") == 0) return COLI_OK;
    out->mode = COLI__PLACE_FIRST;
    if (strcmp(text, "all") == 0) return COLI_OK;
    out->mode = COLI__PLACE_LIST;
    for (const char *at = text;;) {
        const char *end = at + strcspn(at, ",;");
        if (!read_item(at, end, out)) return malformed(text, at, (size_t)(end - at));
        if (!*end) return COLI_OK;
        at = end + 1;
    }
}

static bool find_ordinal(const uint32_t *ordinals, uint32_t n_device, int32_t *device)
{
    for (uint32_t i = 0; i < n_device; i++)
        if (ordinals[i] == (uint32_t)*device) {
            *device = (int32_t)i;
            return true;
        }
    return false;
}

coli_status coli__place_resolve(coli__place_list *list, const uint32_t *ordinals, uint32_t n_device)
{
    static const char *const message = "place: %s: device %d is not among those in use";
    if (list->experts >= 0 && !find_ordinal(ordinals, n_device, &list->experts))
        return coli__fail(COLI_E_INVALID, message, "experts", (int)list->experts);
    for (uint32_t i = 0; i < list->n_item; i++)
        for (uint32_t s = 0; s < list->items[i].n_segment; s++) {
            int32_t *device = &list->items[i].segments[s].device;
            if (*device != COLI__ON_HOST && !find_ordinal(ordinals, n_device, device))
                return coli__fail(COLI_E_INVALID, message, list->items[i].name, (int)*device);
        }
    return COLI_OK;
}

/* Where the list wants a piece. */
static int32_t wanted_device(const coli__place_list *list, const coli__offer *offer)
{
    for (uint32_t i = 0; i < list->n_item; i++) {
        const struct coli__list_item *item = &list->items[i];
        if (strcmp(item->name, coli__component_name(offer->component)) != 0) continue;
        uint64_t end = 0; // of the segment's layers
        for (uint32_t s = 0; s < item->n_segment; s++) {
            const struct coli__list_segment *segment = &item->segments[s];
            end += segment->n_layer;
            if (segment->n_layer == 0 || offer->layer < end) return segment->device;
        }
    }
    return COLI__ON_HOST;
}

void coli__place_listed(const coli__place_world *w, const coli__place_list *list,
                        const coli__offer *offers, uint32_t n, coli__placing *out)
{
    uint64_t room[COLI__PLACE_MAX_DEVICE];
    rooms_of(w, room);
    for (uint32_t i = 0; i < n; i++) {
        const int32_t device = wanted_device(list, &offers[i]);
        out[i] = (coli__placing){COLI__ON_HOST, COLI__WHY_ASKED, 0};
        if (device == COLI__ON_HOST) continue;
        out[i].why = COLI__WHY_UNABLE;
        if (offers[i].devices >> device & 1)
            out[i] = put(w, &offers[i], (uint32_t)device, true, room);
    }
}

uint32_t coli__place_expert_devices(const coli__place_list *list, uint32_t n_device)
{
    const uint32_t all = n_device >= 32 ? UINT32_MAX : (UINT32_C(1) << n_device) - 1;
    if (list->experts == COLI__EXPERTS_CPU) return 0;
    if (list->experts >= 0) return UINT32_C(1) << list->experts;
    if (list->experts == COLI__EXPERTS_ALL) return all;
    uint32_t named = 0;
    for (uint32_t i = 0; i < list->n_item; i++)
        for (uint32_t s = 0; s < list->items[i].n_segment; s++)
            if (list->items[i].segments[s].device >= 0)
                named |= UINT32_C(1) << list->items[i].segments[s].device;
    return all & ~named ? all & ~named : all;
}
