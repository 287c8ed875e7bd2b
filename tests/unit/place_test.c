/* place_test.c - where the trunk goes: cases worked by hand, and the lists that people write. */
#include "t.h"

#include "libcoli/src/moe/place.h"

enum { MAX = 256, SLOT = 100 };

/* -- one device, slots of 100 ------------------------------------------------------------------ */

typedef struct one {
    const char *name;
    uint64_t room;
    uint32_t n;
    double p[12];
    uint64_t bytes[2]; // 0: one piece only
    coli__place_why why[2];
    uint32_t displaced[2];
} one;

#define P8(x)                                                                                      \
    {                                                                                              \
        x, x, x, x, x, x, x, x                                                                     \
    }
#define P12(x)                                                                                     \
    {                                                                                              \
        x, x, x, x, x, x, x, x, x, x, x, x                                                         \
    }
#define FALLING                                                                                    \
    {                                                                                              \
        1, .5, .25, .125, .125, 0, 0, 0                                                            \
    }
#define ON  COLI__WHY_PLACED
#define OFF COLI__WHY_EXPERTS

static const one ones[] = {
    {"V1", 400, 8, P8(.25), {150}, {ON}, {2}},
    {"V2", 400, 8, P8(.5), {150}, {ON}, {2}},
    {"V3", 400, 8, P8(.5), {200}, {ON}, {2}},
    {"V4", 400, 8, FALLING, {150, 50}, {ON, ON}, {2, 0}},
    {"V5", 200, 8, FALLING, {150}, {ON}, {2}}, // equality places
    {"V6", 400, 3, {1, 1, 1}, {150}, {ON}, {1}},
    {"V7", 400, 4, {1, 1, 1, 1}, {150}, {OFF}, {0}},
    {"V8", 400, 8, P8(.25), {401}, {COLI__WHY_NO_ROOM}, {0}},
    {"V9", 350, 6, {.667, .667, .667}, {100}, {ON}, {1}},
    {"V10", 350, 12, P12(.167), {100}, {ON}, {1}},
    // a byte less than what leaves is worth
    {"V5 less one", 200, 8, FALLING, {149}, {OFF}, {0}},
    {"all of it", 400, 8, P8(.25), {400}, {ON}, {4}},
    {"spare room", 1000, 2, {1, 1}, {800}, {ON}, {0}},
    {"no experts", 400, 0, {0}, {400}, {ON}, {0}},
    {"no room at all", 0, 8, P8(.25), {1}, {COLI__WHY_NO_ROOM}, {0}},
};

T_TEST(v1_to_v10_and_v16)
{
    T_BEGIN;
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) {
        const one *c = &ones[i];
        const coli__place_device device = {c->room, c->n, c->p};
        const coli__place_world w = {1, &device, SLOT, SLOT};
        coli__offer offers[2];
        for (uint32_t o = 0; o < 2; o++)
            offers[o] = (coli__offer){COLI__DNPROJ, o, c->bytes[o], c->bytes[o], 1};
        const uint32_t n = c->bytes[1] ? 2 : 1;
        coli__placing places[2];
        coli__place_auto(&w, 1, false, offers, n, places);
        for (uint32_t o = 0; o < n; o++) {
            if (places[o].why != c->why[o]) print_error("%s, piece %u\n", c->name, o);
            T_EQ(places[o].why, c->why[o]);
            T_EQ(places[o].device, c->why[o] == ON ? 0 : COLI__ON_HOST);
            T_EQ(places[o].n_displaced, c->displaced[o]);
        }
    }
}

/* A piece takes whole pages; an expert, too: only what is read counts as worth. */
T_TEST(bytes_are_worth_and_pages_are_room)
{
    T_BEGIN;
    static const double p[] = {1, 1, 1, 1};
    const coli__place_device device = {400, 4, p};
    coli__place_world w = {1, &device, 100, 70};
    const coli__offer piece = {COLI__SHEXP, 0, 120, 200, 1};
    coli__placing place;
    coli__place_auto(&w, 1, false, &piece, 1, &place);
    T_EQ(place.why, OFF); // 120 against two experts of 70
    w.expert_bytes = 60;
    coli__place_auto(&w, 1, false, &piece, 1, &place);
    T_EQ(place.why, ON);
    T_EQ(place.n_displaced, 2);
}

/* -- two devices ------------------------------------------------------------------------------- */

static const coli__offer two[] = {
    {COLI__DNOUT, 0, 40, 40, 3},  {COLI__DNPROJ, 0, 60, 60, 3}, {COLI__DNPROJ, 1, 60, 60, 3},
    {COLI__DNPROJ, 2, 60, 60, 3}, {COLI__DNOUT, 2, 40, 40, 3},  {COLI__LMHEAD, 2, 120, 120, 3},
};
enum { N_TWO = 6 };

static uint64_t left(uint32_t device, uint64_t room, const coli__placing *places)
{
    for (uint32_t i = 0; i < N_TWO; i++)
        if (places[i].device == (int32_t)device) room -= two[i].footprint;
    return room;
}

/* Offered in any order, placed in that of the components. */
T_TEST(v11_two_devices)
{
    T_BEGIN;
    static const double p[] = {.01, .01, .01};
    const coli__place_device devices[] = {{300, 3, p}, {500, 3, p}};
    const coli__place_world w = {2, devices, SLOT, SLOT};
    coli__placing places[N_TWO];
    coli__place_auto(&w, 3, false, two, N_TWO, places);
    static const int32_t expected[N_TWO] = {1, 1, 1, 0, 0, 1};
    for (uint32_t i = 0; i < N_TWO; i++) T_EQ(places[i].device, expected[i]);
    T_EQ(left(0, 300, places), 200);
    T_EQ(left(1, 500, places), 220);
}

/* V14: without a device that turned out slow nothing is placed on it; without any, nothing at all. */
T_TEST(v14_without_a_device)
{
    T_BEGIN;
    const coli__place_device devices[] = {{300, 0, NULL}, {500, 0, NULL}};
    const coli__place_world w = {2, devices, 0, 0};
    coli__placing places[N_TWO];
    coli__place_auto(&w, 1, false, two, N_TWO, places);
    T_EQ(left(1, 500, places), 500);
    T_EQ(left(0, 300, places), 0); // lmhead and all dnproj
    coli__place_auto(&w, 0, false, two, N_TWO, places);
    T_EQ(left(0, 300, places) + left(1, 500, places), 800);
    for (uint32_t i = 0; i < N_TWO; i++) T_EQ(places[i].device, COLI__ON_HOST);
}

T_TEST(v15_the_device_has_to_be_faster)
{
    T_BEGIN;
    T_TRUE(coli__place_pays(99, 100));
    T_TRUE(!coli__place_pays(100, 100));
    T_TRUE(!coli__place_pays(101, 100));
}

/* Devices that do not compute the formats of a piece are not asked. */
T_TEST(what_no_device_computes)
{
    T_BEGIN;
    const coli__place_device devices[] = {{300, 0, NULL}, {500, 0, NULL}};
    const coli__place_world w = {2, devices, 0, 0};
    const coli__offer offers[] = {{COLI__SHEXP, 0, 10, 10, 0}, {COLI__SHEXP, 1, 10, 10, 1}};
    coli__placing places[2];
    coli__place_auto(&w, 3, false, offers, 2, places);
    T_EQ(places[0].why, COLI__WHY_UNABLE);
    T_EQ(places[1].device, 0);
}

T_TEST(before_the_experts)
{
    T_BEGIN;
    static const double p[] = {1, 1, 1, 1};
    const coli__place_device device = {400, 4, p};
    const coli__place_world w = {1, &device, SLOT, SLOT};
    const coli__offer offers[] = {{COLI__SHEXP, 0, 150, 150, 1}, {COLI__LMHEAD, 0, 300, 300, 1}};
    coli__placing places[2];
    coli__place_auto(&w, 1, true, offers, 2, places);
    T_EQ(places[1].n_displaced, 3);
    T_EQ(places[0].why, COLI__WHY_NO_ROOM);
}

/* -- a model of 35 billion weights ------------------------------------------------------------- */

enum { N_LAYER = 40, N_EXPERT = 256, N_USED = 8, N_35B = 1 + 30 + 30 + 10 + 40 };

static void offer(coli__offer *offers, uint32_t *n, coli__component c, uint32_t layer,
                  uint64_t bytes)
{
    offers[(*n)++] = (coli__offer){c, layer, bytes, bytes, 1};
}

static uint64_t offers_of_35b(coli__offer *offers)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < N_LAYER; l++) {
        const bool full = l % 4 == 3;
        offer(offers, &n, full ? COLI__ATTNPROJ : COLI__DNPROJ, l, full ? 27308032 : 25214976);
        if (!full) offer(offers, &n, COLI__DNOUT, l, 8396800);
        offer(offers, &n, COLI__SHEXP, l, 3158016);
    }
    offer(offers, &n, COLI__LMHEAD, N_LAYER - 1, 509552640);
    T_EQ(n, N_35B);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) bytes += offers[i].bytes;
    return bytes;
}

/* V12: without heat an expert is used by a token in 32, so all of the trunk goes first. */
T_TEST(v12_the_trunk_of_a_35b)
{
    T_BEGIN;
    static uint8_t home[N_LAYER * N_EXPERT];
    static double p[N_LAYER * N_EXPERT];
    coli__offer offers[N_35B];
    coli__placing places[N_35B];
    T_EQ(offers_of_35b(offers), 1917306880);
    const uint32_t n = coli__place_chances(N_LAYER, N_EXPERT, N_USED, home, 0, NULL, p);
    T_EQ(n, N_LAYER * N_EXPERT);
    T_TRUE(p[0] == 1.0 / 32 && p[n - 1] == 1.0 / 32);
    const uint64_t room = UINT64_C(7) << 30, slot = 1703936;
    const coli__place_device device = {room, n, p};
    const coli__place_world w = {1, &device, slot, slot};
    coli__place_auto(&w, 1, false, offers, N_35B, places);
    uint32_t displaced = 0;
    for (uint32_t i = 0; i < N_35B; i++) {
        T_EQ(places[i].device, 0);
        displaced += places[i].n_displaced;
    }
    T_EQ(displaced, room / slot - (room - 1917306880) / slot);
    T_EQ(places[N_35B - 1].n_displaced, 299); // lm_head, the first to be placed
}

T_TEST(chances)
{
    T_BEGIN;
    static const uint8_t home[] = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 255, 1};
    static const uint32_t heat[] = {6, 1, 1, 0, 0, 0, 0, 0, UINT32_MAX, UINT32_MAX, UINT32_MAX, 0};
    double p[12];
    T_EQ(coli__place_chances(3, 4, 2, home, 0, heat, p), 5);
    // 2*6/8 is more than 1; a layer without heat; a third of it each
    static const double expected[] = {1, 2.0 / 3, .5, .5, .25};
    for (int i = 0; i < 5; i++) T_TRUE(fabs(p[i] - expected[i]) < 1e-12);
    T_EQ(coli__place_chances(3, 4, 2, home, 1, NULL, p), 6);
    for (int i = 0; i < 6; i++) T_TRUE(p[i] == .5);
    T_EQ(coli__place_chances(3, 4, 2, home, 7, NULL, p), 0);
}

/* -- lists ------------------------------------------------------------------------------------- */

static coli__place_list parsed(const char *text)
{
    coli__place_list list;
    T_OK(coli__place_parse(text, &list));
    return list;
}

T_TEST(words)
{
    T_BEGIN;
    T_EQ(parsed(NULL).mode, COLI__PLACE_AUTO);
    T_EQ(parsed("auto").mode, COLI__PLACE_AUTO);
    T_EQ(parsed("off").mode, COLI__PLACE_OFF);
    T_EQ(parsed("all").mode, COLI__PLACE_FIRST);
    T_EQ(parsed("lmhead=0").mode, COLI__PLACE_LIST);
    T_EQ(parsed("lmhead=0").experts, COLI__EXPERTS_AUTO);
    T_EQ(parsed("experts=all").experts, COLI__EXPERTS_ALL);
    T_EQ(parsed("experts=cpu;lmhead=0").experts, COLI__EXPERTS_CPU);
    T_EQ(parsed("lmhead=0,experts=12").experts, 12);
}

/* Where a piece of a layer is, with devices 0, 1 and 5. */
static int32_t listed(const char *text, coli__component component, uint32_t layer)
{
    static const uint32_t ordinals[] = {0, 1, 5};
    static const coli__place_device devices[3] = {
        {1000, 0, NULL}, {1000, 0, NULL}, {1000, 0, NULL}};
    const coli__place_world w = {3, devices, 0, 0};
    const coli__offer o = {component, layer, 10, 10, 7};
    coli__place_list list = parsed(text);
    coli__placing place;
    T_OK(coli__place_resolve(&list, ordinals, 3));
    coli__place_listed(&w, &list, &o, 1, &place);
    return place.device;
}

T_TEST(v13_a_list_is_obeyed)
{
    T_BEGIN;
    static const char *const list = "lmhead=5;dnproj=0:20+1:20,dnout=0:2+cpu";
    T_EQ(listed("lmhead=5;dnproj=0:20+1:20", COLI__LMHEAD, 39), 2);
    T_EQ(listed("lmhead=5;dnproj=0:20+1:20", COLI__DNPROJ, 19), 0);
    T_EQ(listed("lmhead=5;dnproj=0:20+1:20", COLI__DNPROJ, 20), 1);
    T_EQ(listed("lmhead=5;dnproj=0:20+1:20", COLI__DNPROJ, 39), 1);
    T_EQ(listed("lmhead=5;dnproj=0:20+1:20", COLI__DNPROJ, 40), COLI__ON_HOST);
    T_EQ(listed("lmhead=5;dnproj=0:20+1:20", COLI__SHEXP, 0), COLI__ON_HOST);
    T_EQ(listed("dnproj=0:20+1", COLI__DNPROJ, 1000), 1);
    T_EQ(listed("dnproj=0:20+1:0", COLI__DNPROJ, 1000), 1);
    T_EQ(listed("dnproj=0:20+1:-3", COLI__DNPROJ, 1000), 1);
    T_EQ(listed("dnproj=0:20+1:", COLI__DNPROJ, 1000), 1);
    T_EQ(listed("dnproj=cpu", COLI__DNPROJ, 0), COLI__ON_HOST);
    T_EQ(listed("whatever=0", COLI__DNPROJ, 0), COLI__ON_HOST);
    T_EQ(listed("dnproj=0:999999999+1", COLI__DNPROJ, 999999998), 0);
    T_EQ(listed("dnproj=0:999999999+1:999999999+1:999999999+1:999999999+1:999999999+5",
                COLI__DNPROJ, UINT32_MAX),
         1);
    coli__place_list parsed_list;
    T_FAILS(coli__place_parse(list, &parsed_list), COLI_E_INVALID, "found \"dnout=0:2+cpu\"");
}

/* Also where experts are worth more, but not beyond the room; in the order of offers. */
T_TEST(v13_a_list_is_charged)
{
    T_BEGIN;
    static const uint32_t ordinals[] = {0};
    static const double p[] = {1, 1, 1, 1};
    const coli__place_device device = {400, 4, p};
    const coli__place_world w = {1, &device, SLOT, SLOT};
    const coli__offer offers[] = {{COLI__SHEXP, 0, 150, 150, 1},
                                  {COLI__LMHEAD, 0, 300, 300, 1},
                                  {COLI__DNOUT, 0, 250, 250, 1},
                                  {COLI__DNPROJ, 0, 250, 250, 0}};
    coli__place_list list = parsed("shexp=0,lmhead=0,dnout=0,dnproj=0");
    T_OK(coli__place_resolve(&list, ordinals, 1));
    coli__placing places[4];
    coli__place_listed(&w, &list, offers, 4, places);
    T_EQ(places[0].why, ON);
    T_EQ(places[0].n_displaced, 2);
    T_EQ(places[1].why, COLI__WHY_NO_ROOM);
    T_EQ(places[2].why, ON); // to the last byte
    T_EQ(places[3].why, COLI__WHY_UNABLE);
}

T_TEST(malformed_lists)
{
    T_BEGIN;
    static const char *const wrong[] = {
        "",
        "on",
        "lmhead",
        "lmhead=",
        "=0",
        "lmhead=gpu",
        "lmhead=0;",
        ";lmhead=0",
        "lmhead=0,,",
        "lmhead=-1",
        "lmhead= 0",
        "lmhead=0 ",
        "LMHEAD=0",
        "lm head=0",
        "lmhead==0",
        "dnproj=0:20+",
        "dnproj=0+",
        "dnproj=+0",
        "dnproj=:20",
        "dnproj=0:x",
        "dnproj=0:--1",
        "dnproj=0:1:2",
        "lmhead=all",
        "experts=",
        "experts=0:2",
        "experts=0+1",
        "lmhead=0,lmhead=1",
        "experts=0,experts=0",
        "auto,lmhead=0",
        "lmhead=1000000000",
        "abcdefghijklmnop=0",
        "dnproj=0+1+2+3+4+5+6+7+8",
        "a=0,b=0,c=0,d=0,e=0,f=0,g=0,h=0,i=0",
        "dnproj=0:000000001+1:000000001+2:000000001+3:000000001+4:000000001+5:11"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        coli__place_list list;
        if (coli__place_parse(wrong[i], &list) == COLI_OK) print_error("\"%s\"\n", wrong[i]);
        T_FAILS(coli__place_parse(wrong[i], &list), COLI_E_INVALID,
                "place: expected auto, off, all, or up to 8 items");
    }
    coli__place_list list = parsed("abcdefghijklmno=0+1+2+3+4+5+6+7"); // the longest of all
    static const uint32_t ordinals[] = {0, 2};
    list = parsed("lmhead=0,dnproj=2:4+1");
    T_FAILS(coli__place_resolve(&list, ordinals, 2), COLI_E_INVALID,
            "place: dnproj: device 1 is not among those in use");
    list = parsed("experts=1");
    T_FAILS(coli__place_resolve(&list, ordinals, 2), COLI_E_INVALID, "place: experts: device 1");
}

static uint32_t expert_devices(const char *text, uint32_t n_device)
{
    static const uint32_t ordinals[] = {0, 1, 2};
    coli__place_list list = parsed(text);
    T_OK(coli__place_resolve(&list, ordinals, n_device));
    return coli__place_expert_devices(&list, n_device);
}

T_TEST(devices_of_experts)
{
    T_BEGIN;
    T_EQ(expert_devices("auto", 3), 7);
    T_EQ(expert_devices("off", 3), 7);
    T_EQ(expert_devices("lmhead=0", 3), 6);
    T_EQ(expert_devices("lmhead=0,dnproj=0:5+2", 3), 2);
    T_EQ(expert_devices("lmhead=0", 1), 1); // the only one keeps them
    T_EQ(expert_devices("lmhead=0,dnproj=1", 2), 3);
    T_EQ(expert_devices("lmhead=0,experts=all", 3), 7);
    T_EQ(expert_devices("lmhead=0,experts=0", 3), 1);
    T_EQ(expert_devices("lmhead=cpu", 3), 7);
    T_EQ(expert_devices("experts=cpu", 3), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(v1_to_v10_and_v16),
                                       cmocka_unit_test(bytes_are_worth_and_pages_are_room),
                                       cmocka_unit_test(v11_two_devices),
                                       cmocka_unit_test(v14_without_a_device),
                                       cmocka_unit_test(v15_the_device_has_to_be_faster),
                                       cmocka_unit_test(what_no_device_computes),
                                       cmocka_unit_test(before_the_experts),
                                       cmocka_unit_test(v12_the_trunk_of_a_35b),
                                       cmocka_unit_test(chances),
                                       cmocka_unit_test(words),
                                       cmocka_unit_test(v13_a_list_is_obeyed),
                                       cmocka_unit_test(v13_a_list_is_charged),
                                       cmocka_unit_test(malformed_lists),
                                       cmocka_unit_test(devices_of_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
