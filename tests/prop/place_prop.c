/* place_prop.c - what must hold wherever the trunk is placed, over random worlds. */
#include "t.h"

#include "libcoli/src/moe/place.h"

enum { MAX_DEVICE = 3, MAX_RANK = 40, MAX_OFFER = 24 };

typedef struct world {
    coli__place_world w;
    coli__place_device devices[MAX_DEVICE];
    double p[MAX_DEVICE][MAX_RANK];
    coli__offer offers[MAX_OFFER];
    uint32_t n;
    coli__placing places[MAX_OFFER];
} world;

static int higher_first(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Small numbers: bugs live where ties and edges are. */
static void world_random(world *x, t_rng *rng)
{
    memset(x, 0, sizeof *x);
    x->w = (coli__place_world){.n_device = t_range(rng, 1, MAX_DEVICE),
                               .devices = x->devices,
                               .slot_footprint = t_range(rng, 8, 12)};
    x->w.expert_bytes = x->w.slot_footprint - t_below(rng, 3);
    for (uint32_t i = 0; i < x->w.n_device; i++) {
        const uint32_t n = t_below(rng, MAX_RANK + 1);
        for (uint32_t r = 0; r < n; r++) x->p[i][r] = t_below(rng, 9) / 8.0;
        qsort(x->p[i], n, sizeof x->p[i][0], higher_first);
        x->devices[i] = (coli__place_device){t_below(rng, 300), n, x->p[i]};
    }
    x->n = t_below(rng, MAX_OFFER + 1);
    for (uint32_t i = 0; i < x->n; i++) {
        const uint32_t bytes = t_range(rng, 1, 60);
        x->offers[i] = (coli__offer){.component = (coli__component)t_below(rng, COLI__N_COMPONENT),
                                     .layer = t_below(rng, 6),
                                     .bytes = bytes,
                                     .footprint = bytes + t_below(rng, 4),
                                     .devices = t_below(rng, 8)};
    }
}

static uint64_t taken(const world *x, uint32_t device)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < x->n; i++)
        if (x->places[i].device == (int32_t)device) n += x->offers[i].footprint;
    return n;
}

/* Every place is of an able device, agrees with its reason, and what is there fits. */
static void check_fits(const world *x, uint32_t devices)
{
    for (uint32_t i = 0; i < x->n; i++) {
        const coli__placing *place = &x->places[i];
        T_EQ(place->device >= 0, place->why == COLI__WHY_PLACED);
        if (place->device < 0) continue;
        T_TRUE(place->device < (int32_t)x->w.n_device);
        T_TRUE(x->offers[i].devices & devices & 1u << place->device);
    }
    for (uint32_t d = 0; d < x->w.n_device; d++) T_LE(taken(x, d), x->devices[d].room);
}

T_PROP(never_over_the_room, 3000)
{
    world x;
    world_random(&x, &rng);
    const uint32_t devices = t_below(&rng, 8);
    coli__place_auto(&x.w, devices, t_below(&rng, 2), x.offers, x.n, x.places);
    check_fits(&x, devices);
}

/* Each piece is worth what leaves for it: so the bytes read from the device never get fewer. */
static double read_from_device(const world *x, uint32_t d)
{
    const coli__place_device *device = &x->devices[d];
    const uint64_t fit = (device->room - taken(x, d)) / x->w.slot_footprint;
    double n = 0;
    for (uint32_t r = 0; r < device->n_expert && r < fit; r++)
        n += device->p[r] * (double)x->w.expert_bytes;
    for (uint32_t i = 0; i < x->n; i++)
        if (x->places[i].device == (int32_t)d) n += (double)x->offers[i].bytes;
    return n;
}

T_PROP(a_device_is_read_as_much_as_without, 3000)
{
    world x;
    world_random(&x, &rng);
    for (uint32_t i = 0; i < x.n; i++) x.places[i].device = COLI__ON_HOST;
    double before[MAX_DEVICE];
    for (uint32_t d = 0; d < x.w.n_device; d++) before[d] = read_from_device(&x, d);
    coli__place_auto(&x.w, 7, false, x.offers, x.n, x.places);
    for (uint32_t d = 0; d < x.w.n_device; d++) T_FGE(read_from_device(&x, d), before[d] - 1e-9);
}

/* What is placed is what a device has no experts for: with all of the room, all that is able fits. */
T_PROP(all_of_it_where_there_is_room, 1000)
{
    world x;
    world_random(&x, &rng);
    for (uint32_t d = 0; d < x.w.n_device; d++) x.devices[d].room = 100000;
    coli__place_auto(&x.w, 7, false, x.offers, x.n, x.places);
    for (uint32_t i = 0; i < x.n; i++) {
        const bool able = x.offers[i].devices & ((1u << x.w.n_device) - 1);
        T_EQ(x.places[i].why, able ? COLI__WHY_PLACED : COLI__WHY_UNABLE);
        T_EQ(x.places[i].n_displaced, 0);
    }
}

/* One device: with less room, where no expert is in the way, no more bytes are placed. */
T_PROP(less_room_holds_no_more, 3000)
{
    world x;
    world_random(&x, &rng);
    x.w.n_device = 1;
    const bool first = t_below(&rng, 2);
    if (!first) x.devices[0].n_expert = 0;
    coli__place_auto(&x.w, 1, first, x.offers, x.n, x.places);
    const uint64_t before = taken(&x, 0);
    x.devices[0].room -= x.devices[0].room ? t_below(&rng, (uint32_t)x.devices[0].room) : 0;
    coli__place_auto(&x.w, 1, first, x.offers, x.n, x.places);
    T_LE(taken(&x, 0), before);
}

/* The place of a piece depends on those that come before it alone. */
static uint32_t rank_of(const world *x, uint32_t i)
{
    uint32_t n = 0;
    for (uint32_t j = 0; j < x->n; j++)
        n += x->offers[j].component < x->offers[i].component ||
             (x->offers[j].component == x->offers[i].component && j < i);
    return n;
}

T_PROP(in_order, 2000)
{
    world x;
    world_random(&x, &rng);
    coli__place_auto(&x.w, 7, false, x.offers, x.n, x.places);
    if (x.n == 0) return;
    const uint32_t last = t_below(&rng, x.n);
    world y = x;
    y.w.devices = y.devices;
    y.n = 0;
    uint32_t from[MAX_OFFER];
    for (uint32_t i = 0; i < x.n; i++) {
        if (rank_of(&x, i) > rank_of(&x, last)) continue;
        from[y.n] = i;
        y.offers[y.n++] = x.offers[i];
    }
    coli__place_auto(&y.w, 7, false, y.offers, y.n, y.places);
    for (uint32_t i = 0; i < y.n; i++) {
        T_EQ(y.places[i].device, x.places[from[i]].device);
        T_EQ(y.places[i].n_displaced, x.places[from[i]].n_displaced);
    }
}

/* A list of one device per component: obeyed wherever there is room, and never elsewhere. */
T_PROP(a_list_is_obeyed, 3000)
{
    world x;
    world_random(&x, &rng);
    coli__place_list list = {.mode = COLI__PLACE_LIST, .experts = COLI__EXPERTS_AUTO};
    int32_t wanted[COLI__N_COMPONENT];
    for (uint32_t c = 0; c < COLI__N_COMPONENT; c++) {
        wanted[c] = (int32_t)t_below(&rng, x.w.n_device + 1) - 1;
        snprintf(list.items[c].name, sizeof list.items[c].name, "%s",
                 coli__component_name((coli__component)c));
        list.items[c].n_segment = 1;
        list.items[c].segments[0].device = wanted[c];
        list.n_item++;
    }
    coli__place_listed(&x.w, &list, x.offers, x.n, x.places);
    check_fits(&x, 7);
    uint64_t room[MAX_DEVICE];
    for (uint32_t d = 0; d < x.w.n_device; d++) room[d] = x.devices[d].room;
    for (uint32_t i = 0; i < x.n; i++) {
        const int32_t d = wanted[x.offers[i].component];
        const bool fits =
            d >= 0 && x.offers[i].devices >> d & 1 && x.offers[i].footprint <= room[d];
        T_EQ(x.places[i].device, fits ? d : COLI__ON_HOST);
        if (fits) room[d] -= x.offers[i].footprint;
    }
}

/* Whatever text: a list or a message. */
T_PROP(any_text, 3000)
{
    static const char letters[] = "abcdnproj0123456789=:+,;- cpu";
    char text[64] = "";
    const uint32_t n = t_below(&rng, sizeof text);
    for (uint32_t i = 0; i < n; i++) text[i] = letters[t_below(&rng, sizeof letters - 1)];
    coli__place_list list;
    const coli_status status = coli__place_parse(text, &list);
    T_TRUE(status == COLI_OK || status == COLI_E_INVALID);
    T_LE(list.n_item, COLI__LIST_ITEMS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(never_over_the_room),
                                       cmocka_unit_test(a_device_is_read_as_much_as_without),
                                       cmocka_unit_test(all_of_it_where_there_is_room),
                                       cmocka_unit_test(less_room_holds_no_more),
                                       cmocka_unit_test(in_order),
                                       cmocka_unit_test(a_list_is_obeyed),
                                       cmocka_unit_test(any_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
