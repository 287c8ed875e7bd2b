/* kernels_race.c - see kernels_race.h.
 *
 * A whole run of one, then of the other, so that both have the same neighbours on the machine; the least
 * time of each, because whatever disturbs only adds.  Weights and activations are zeros: speed does not
 * depend on them. */
#include "kernels_race.h"

#include "../base/alloc.h"
#include "../base/threads.h"
#include "acts.h"

enum {
    N_OUT = 128,
    N_IN = 2048,
    MAX_ROW = 64,
    N_ROUND = 24,
    N_CALL = 4, // of a round: long beside a look at the clock
};

static uint64_t time_of(const coli__kernels *k, const coli__matmul_args *args)
{
    const uint64_t start_ns = coli__clock_ns();
    for (uint32_t i = 0; i < N_CALL; i++) k->matmul(args);
    return coli__clock_ns() - start_ns;
}

static bool is_clearly_faster(const coli__kernels *a, const coli__kernels *b,
                              const coli__matmul_args *args)
{
    uint64_t best_a = UINT64_MAX, best_b = UINT64_MAX;
    for (uint32_t i = 0; i < N_ROUND; i++) {
        const uint64_t of_a = time_of(a, args), of_b = time_of(b, args);
        if (i == 0) continue; // caches, and a processor that has to wake its wide units
        if (of_a < best_a) best_a = of_a;
        if (of_b < best_b) best_b = of_b;
    }
    return best_a < best_b - best_b / 20; // by more than a clock's error
}

bool coli__kernels_race(const coli__kernels *a, const coli__kernels *b, uint32_t n_row)
{
    coli__mat m = {
        .n_out = N_OUT, .n_in = N_IN, .fmt = {.type = COLI_W_I4, .group = 64, .scale_f16 = true}};
    uint64_t n_bytes;
    if (n_row > MAX_ROW || !coli__mat_bytes(m.fmt, N_OUT, N_IN, &n_bytes, NULL)) return false;
    coli__acts rows = {0};
    void *weights = coli__alloc64(n_bytes); // zeroed
    float *y = coli__calloc((size_t)n_row * N_OUT, sizeof *y);
    bool wins = false;
    if (weights && y && coli__acts_init(&rows, n_row, N_IN, coli__form_of(m.fmt)) == COLI_OK) {
        m.data = weights;
        coli__matmul_args args = {
            .w = &m, .n_row = n_row, .panel_end = N_OUT / COLI_PANEL, .y = y, .ldy = N_OUT};
        coli__acts_bind(&rows, &args);
        wins = is_clearly_faster(a, b, &args);
    }
    coli__acts_finish(&rows);
    coli__free(y);
    coli__free_aligned(weights);
    return wins;
}
