/* bench_route.c - what choosing experts costs at the geometry of a 35B: 256 experts, 8 used, 40 layers.
 *
 *     bench_route [MS]     MS: how long a token takes, to be told the share; otherwise the longest token of
 *                          which the choice is 1 %
 *
 * Rows are random, a quarter of the experts in VRAM and half of the others in RAM.  Figures are medians
 * over runs, with the fastest and the slowest. */
#include <stdio.h>
#include <stdlib.h>

#include "libcoli/src/base/threads.h"
#include "libcoli/src/moe/route.h"

enum { N_EXPERT = 256, N_USED = 8, N_LAYER = 40, N_TOKEN = 64, N_RUN = 15 };

static float logits[N_TOKEN * N_LAYER][N_EXPERT];
static uint8_t levels[N_LAYER][N_EXPERT];

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* The sum of four uniform numbers is bell-shaped enough. */
static void fill(void)
{
    uint64_t seed = 1;
    for (uint32_t r = 0; r < N_TOKEN * N_LAYER; r++)
        for (uint32_t e = 0; e < N_EXPERT; e++) {
            float sum = 0;
            for (int i = 0; i < 4; i++) sum += (float)next(&seed) * 0x1p-31f - 0.5f;
            logits[r][e] = 3 * sum;
        }
    for (uint32_t l = 0; l < N_LAYER; l++)
        for (uint32_t e = 0; e < N_EXPERT; e++) {
            const uint64_t x = next(&seed) % 8;
            levels[l][e] = x < 2 ? COLI_LEVEL_VRAM : x < 5 ? COLI_LEVEL_RAM : COLI_LEVEL_DISK;
        }
}

static uint64_t n_swap;

static void choose_all(const coli__kernels *k, const coli__route_rule *rule)
{
    int32_t ids[N_USED];
    float w[N_USED];
    coli__route_cost cost;
    for (uint32_t r = 0; r < N_TOKEN * N_LAYER; r++) {
        if (!rule) {
            coli__route_softmax_topk(k, logits[r], N_EXPERT, N_USED, ids, w);
            n_swap += ids[0] < 0; // or the compiler leaves all of it out
            continue;
        }
        const coli__route_row row = {.choice = logits[r], .level = levels[r % N_LAYER]};
        coli__route_choose(rule, &row, ids, w, &cost);
        coli__route_normalise(w, N_USED);
        n_swap += cost.n_swap;
    }
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *name, const coli__kernels *k, const coli__route_rule *rule,
                    double token_ms)
{
    double us[N_RUN]; // a token
    n_swap = 0;
    choose_all(k, rule);
    for (int i = 0; i < N_RUN; i++) {
        const uint64_t begin = coli__clock_ns();
        choose_all(k, rule);
        us[i] = (double)(coli__clock_ns() - begin) * 1e-3 / N_TOKEN;
    }
    qsort(us, N_RUN, sizeof *us, by_value);
    const double median = us[N_RUN / 2];
    printf("%-28s %7.1f us a token (min %.1f, max %.1f), %.2f us a row, swap %4.1f %%; ", name,
           median, us[0], us[N_RUN - 1], median / N_LAYER,
           100.0 * (double)n_swap / (N_TOKEN * N_LAYER * N_USED) / (N_RUN + 1));
    if (token_ms > 0)
        printf("%.2f %% of a token of %.1f ms\n", median * 0.1 / token_ms, token_ms);
    else
        printf("1 %% of a token of %.1f ms\n", median * 0.1);
}

int main(int argc, char **argv)
{
    const coli__kernels *k;
    const double token_ms = argc > 1 ? atof(argv[1]) : 0;
    if (coli__kernels_get(NULL, &k) != COLI_OK) return 1;
    fill();
    measure("plain", k, NULL, token_ms);
    static const uint32_t windows[] = {12, 16, 24};
    for (size_t i = 0; i < 3; i++)
        for (uint32_t j = 0; j <= 2; j += 2) {
            char name[64];
            snprintf(name, sizeof name, "J %u, M %u", j, windows[i]);
            const coli__route_rule rule = {.n_expert = N_EXPERT,
                                           .n_used = N_USED,
                                           .n_sure = j,
                                           .n_list = windows[i],
                                           .alpha = 1};
            measure(name, k, &rule, token_ms);
        }
    const coli__route_rule rule = {.n_expert = N_EXPERT,
                                   .n_used = N_USED,
                                   .n_sure = 2,
                                   .n_list = coli__route_list_softmax(N_USED, 12, 0.9f),
                                   .mass = 0.9f,
                                   .alpha = 0.8f};
    measure("J 2, P 0.9, alpha 0.8", k, &rule, token_ms);
    return 0;
}
