/* online_test.c - opinions about the next tokens, and the swaps that follow. */
#include "t.h"

#include "libcoli/src/base/alloc.h"
#include "libcoli/src/base/threads.h"
#include "libcoli/src/moe/online.h"

enum { N_EXPERT = 8, N_USED = 2, MAX_LAYER = 40 };

/* Residents 0 to 3 of each layer, the others known. */
typedef struct world {
    uint8_t place[MAX_LAYER * N_EXPERT], home[MAX_LAYER * N_EXPERT], taken[MAX_LAYER * N_EXPERT];
    uint32_t past[MAX_LAYER * N_EXPERT];
    coli__plan_world w;
    coli__online *o;
} world;

static void begin(world *x, uint32_t n_layer, uint32_t n_device)
{
    memset(x, 0, sizeof *x);
    x->w = (coli__plan_world){.n_layer = n_layer,
                              .n_expert = N_EXPERT,
                              .place = x->place,
                              .home = x->home,
                              .taken = x->taken};
    for (uint32_t id = 0; id < n_layer * N_EXPERT; id++) {
        x->place[id] = id % N_EXPERT < 4 ? COLI__PLACE_RESIDENT : COLI__PLACE_KNOWN;
        x->home[id] = (uint8_t)(id % n_device);
    }
    T_OK(coli__online_create(n_layer, N_EXPERT, n_device, &x->o));
    coli__online_prompt(x->o, x->past);
}

static void rows(world *x, uint32_t layer, int32_t a, int32_t b, int n)
{
    for (int i = 0; i < n; i++) coli__online_learn(x->o, layer, (const int32_t[]){a, b}, 1, N_USED);
}

static void expect(world *x, uint32_t layer, uint32_t in, uint32_t out)
{
    coli__swap s;
    T_TRUE(coli__online_best(x->o, &x->w, layer, &s));
    T_EQ(s.in, layer * N_EXPERT + in);
    T_EQ(s.out, layer * N_EXPERT + out);
}

T_TEST(who_is_used_comes_in)
{
    T_BEGIN;
    world x;
    coli__swap s;
    begin(&x, 2, 1);
    coli__online_price(x.o, &x.w, COLI__ONLINE_HYSTERESIS, UINT64_MAX);
    T_TRUE(!coli__online_best(x.o, &x.w, 0, &s)); // nothing is known yet: all are equal
    rows(&x, 0, 6, 1, 20);
    expect(&x, 0, 6, 0);                          // 0, 2 and 3 are equally useless: the lowest id
    T_TRUE(!coli__online_best(x.o, &x.w, 1, &s)); // the other layer has seen nothing
    x.taken[0] = 1;                               // part of a swap that was planned
    expect(&x, 0, 6, 2);
    x.taken[6] = 1;
    T_TRUE(!coli__online_best(x.o, &x.w, 0, &s) || s.in != 6);
    x.taken[6] = x.taken[0] = 0;
    coli__online_price(x.o, &x.w, 3,
                       UINT64_MAX); // more than N_USED uses per token: nobody has them
    T_TRUE(!coli__online_best(x.o, &x.w, 0, &s));
    coli__online_destroy(x.o);
    coli__online_destroy(NULL);
}

/* Experts that take turns, one more than there are places: an LRU would swap at every token. */
T_TEST(no_thrash)
{
    T_BEGIN;
    world x;
    begin(&x, 1, 1);
    uint32_t n_swap = 0;
    for (int token = 0; token < 1000; token++) {
        coli__online_price(x.o, &x.w, COLI__ONLINE_HYSTERESIS, UINT64_MAX);
        // five experts in turn; four have a place
        coli__online_learn(x.o, 0, (const int32_t[]){token % 5, (token + 1) % 5}, 1, N_USED);
        coli__swap s;
        if (!coli__online_best(x.o, &x.w, 0, &s)) continue;
        coli__online_begun(x.o);
        x.place[s.in] = COLI__PLACE_RESIDENT;
        x.place[s.out] = COLI__PLACE_KNOWN;
        n_swap++;
    }
    print_message("    %u swaps in 1000 tokens\n", n_swap);
    T_LE(n_swap, 100);
    coli__online_destroy(x.o);
}

T_TEST(a_swap_stays_on_its_device)
{
    T_BEGIN;
    world x;
    begin(&x, 1, 2);
    coli__online_price(x.o, &x.w, COLI__ONLINE_HYSTERESIS, UINT64_MAX);
    rows(&x, 0, 7, 6, 8);
    rows(&x, 0, 7, 1, 8);
    expect(&x, 0, 7, 3); // odd for odd; 0 is no more useful than 3
    x.home[7] = COLI__NO_HOME;
    expect(&x, 0, 6, 0);
    coli__online_destroy(x.o);
}

/* Where fewer swaps are allowed than there are layers, the best layers get them. */
T_TEST(the_price_of_few_swaps)
{
    T_BEGIN;
    world x;
    begin(&x, MAX_LAYER, 1);
    for (uint32_t l = 0; l < MAX_LAYER; l++) rows(&x, l, 5, 1, 1 + (int)l);
    for (uint64_t most = 0; most <= MAX_LAYER; most += 8) {
        coli__online_price(x.o, &x.w, 0, most);
        uint64_t n = 0;
        for (uint32_t l = 0; l < MAX_LAYER; l++) {
            coli__swap s;
            if (!coli__online_best(x.o, &x.w, l, &s)) continue;
            T_GE(l, MAX_LAYER - most);
            coli__online_begun(x.o);
            n++;
        }
        T_LE(n, most);
        T_GE(n + 2, most); // layers that gain the very same share the price
    }
    coli__online_destroy(x.o);
}

/* A prompt forgets what was used, not what the model is like. */
T_TEST(prompts)
{
    T_BEGIN;
    world x;
    begin(&x, 1, 1);
    rows(&x, 0, 6, 1, 50);
    for (uint32_t e = 0; e < N_EXPERT; e++) x.past[e] = e == 7 ? 1000 : 1;
    coli__online_prompt(x.o, x.past);
    coli__online_price(x.o, &x.w, COLI__ONLINE_HYSTERESIS, UINT64_MAX);
    expect(&x, 0, 6, 0);   // the short windows have been right, and go on
    rows(&x, 0, 7, -1, 1); // a place that routing could not fill
    rows(&x, 0, -1, -1, 1);
    rows(&x, 0, 7, 1, 60);
    expect(&x, 0, 7, 0);
    coli__online_destroy(x.o);
}

/* What a token costs at the size of a 35B, beside a token of some 30 ms: below 1 %. */
T_TEST(cost_of_a_token)
{
    T_BEGIN;
    enum { L = 40, E = 256, K = 8, N_TOKEN = 200 };
    static uint8_t place[L * E];
    static uint32_t past[L * E];
    for (uint32_t id = 0; id < L * E; id++)
        place[id] = id % 3 ? COLI__PLACE_KNOWN : COLI__PLACE_RESIDENT;
    const coli__plan_world w = {.n_layer = L, .n_expert = E, .place = place};
    coli__online *o;
    T_OK(coli__online_create(L, E, 1, &o));
    coli__online_prompt(o, past);
    t_rng rng = {1};
    uint64_t fastest = UINT64_MAX;
    const uint64_t n_alloc = coli__alloc_count();
    for (int token = 0; token < N_TOKEN; token++) {
        int32_t ids[L][K];
        for (uint32_t l = 0; l < L; l++)
            for (uint32_t k = 0; k < K; k++) ids[l][k] = (int32_t)(k * 32 + t_below(&rng, 32));
        const uint64_t t0 = coli__clock_ns();
        coli__online_price(o, &w, COLI__ONLINE_HYSTERESIS,
                           10); // the costly way: looks at all layers
        for (uint32_t l = 0; l < L; l++) {
            coli__swap s;
            coli__online_learn(o, l, ids[l], 1, K);
            if (coli__online_best(o, &w, l, &s)) coli__online_begun(o);
        }
        const uint64_t t = coli__clock_ns() - t0;
        fastest = t < fastest ? t : fastest;
    }
    T_EQ(coli__alloc_count(), n_alloc);
    print_message("    %.1f us per token\n", (double)fastest * 1e-3);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__OPTIMIZE__)
    T_LE(fastest, 300000);
#endif
    coli__online_destroy(o);
}

T_TEST(lack_of_memory)
{
    T_BEGIN;
    coli__online *o;
    coli__alloc_fail_at(1);
    const coli_status status = coli__online_create(2, 4, 1, &o);
    coli__alloc_fail_at(0);
    T_EQ(status, COLI_E_NOMEM);
    T_TRUE(o == NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_used_comes_in),
        cmocka_unit_test(no_thrash),
        cmocka_unit_test(a_swap_stays_on_its_device),
        cmocka_unit_test(the_price_of_few_swaps),
        cmocka_unit_test(prompts),
        cmocka_unit_test(cost_of_a_token),
        cmocka_unit_test(lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
