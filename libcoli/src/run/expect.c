/* expect.c - see expect.h. */
#include "expect.h"

enum { BEST, WORST, N_CASE };

/* The shares of the table in expect.h. */
static const double ram_share[N_CASE] = {0.95, 0.6}, mac_share[N_CASE] = {1, 0.25},
                    disk_share[N_CASE] = {0.5, 1}, vram_factor[N_CASE] = {1, 1.5},
                    other_factor[N_CASE] = {1, 2};

/* One end of the range, milliseconds. */
typedef struct times {
    double ram, mac, disk, vram, other;
} times;

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Of the least and the most: fast ends the best case, slow the worst. */
static double speed_of(const double range[2], int which)
{
    return which == BEST ? range[1] : range[0];
}
static double delay_of(const double range[2], int which)
{
    return which == BEST ? range[0] : range[1];
}

/* n of 10^9 per second. */
static double ms_of(uint64_t n, double per_ns)
{
    return n ? (double)n * 1e-6 / per_ns : 0;
}

static times times_of(const coli__expect_in *in, uint64_t more_bytes, int which)
{
    const double us = in->n_sync * delay_of(in->sync_us, which) + delay_of(in->sample_us, which);
    return (times){
        .ram = ms_of(in->ram_bytes + more_bytes, speed_of(in->ram, which) * ram_share[which]),
        .mac = ms_of(in->n_mac, speed_of(in->gmac, which) * mac_share[which]),
        .disk = ms_of(in->disk_bytes, speed_of(in->disk, which) / disk_share[which]),
        .vram = ms_of(in->vram_bytes, in->vram / vram_factor[which]),
        .other = us * 1e-3 * other_factor[which],
    };
}

static double sum_of(const times *t, int which)
{
    const double host = larger(t->ram, t->mac);
    if (which == BEST) return larger(host, larger(t->disk, t->vram)) + t->other;
    return host + t->disk + t->vram + t->other;
}

static coli_bound bound_of(const times *t)
{
    const double host = larger(t->ram, t->mac), away = larger(t->disk, t->vram);
    if (t->other > larger(host, away)) return COLI_BOUND_OTHER;
    if (away > host) return t->disk >= t->vram ? COLI_BOUND_DISK : COLI_BOUND_DEVICE;
    return t->mac > t->ram ? COLI_BOUND_COMPUTE : COLI_BOUND_MEMORY;
}

static bool all_known(const coli__expect_in *in)
{
    return in->ram[0] > 0 && in->gmac[0] > 0 && (in->disk[0] > 0 || in->disk_bytes == 0) &&
           (in->vram > 0 || in->vram_bytes == 0);
}

void coli__expect(const coli__expect_in *in, coli_plan_result *out)
{
    if (!all_known(in)) return;
    const times best = times_of(in, 0, BEST), worst = times_of(in, 0, WORST);
    const times best_full = times_of(in, in->kv_bytes, BEST),
                worst_full = times_of(in, in->kv_bytes, WORST);
    out->ram_ms_min = larger(best.ram, best.mac);
    out->ram_ms_max = larger(worst.ram, worst.mac);
    out->disk_ms_min = best.disk;
    out->disk_ms_max = worst.disk;
    out->vram_ms_min = best.vram;
    out->vram_ms_max = worst.vram;
    out->other_ms_min = best.other;
    out->other_ms_max = worst.other;
    out->tok_s_min = 1e3 / sum_of(&worst, WORST);
    out->tok_s_max = 1e3 / sum_of(&best, BEST);
    out->tok_s_full_min = 1e3 / sum_of(&worst_full, WORST);
    out->tok_s_full_max = 1e3 / sum_of(&best_full, BEST);
    out->bound = bound_of(&worst);
}
