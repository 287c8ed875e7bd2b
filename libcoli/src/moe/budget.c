/* budget.c - see budget.h.
 *
 * Bytes of whole models reach 2^40, their products with counts may pass 2^64: what does is larger
 * than any memory, so it saturates, and the comparison that follows is right. */
#include "budget.h"

#include "../base/alloc.h"

/* A limit: more than all memory is still not "no limit". */
static uint64_t known(uint64_t bytes)
{
    return bytes != COLI__BUDGET_UNKNOWN ? bytes : COLI__BUDGET_UNKNOWN - 1;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

uint64_t coli__budget_slots(uint64_t budget_bytes, uint64_t slot_bytes, uint64_t n)
{
    const uint64_t fit = slot_bytes ? budget_bytes / slot_bytes : 0;
    return fit < n ? fit : n;
}

coli__split coli__budget_split(const uint32_t *n_vram, uint32_t n_layer, uint32_t n_expert,
                               const coli__ram_budget *ram)
{
    const uint32_t room = ram->holds_all ? n_expert : ram->cap;
    coli__split s = {0};
    for (uint32_t l = 0; l < n_layer; l++) {
        const uint32_t rest = n_expert - n_vram[l], n_ram = rest < room ? rest : room;
        s.n_vram += n_vram[l];
        s.n_ram += n_ram;
        s.n_disk += rest - n_ram;
        if (rest > s.most) s.most = rest;
    }
    return s;
}

uint32_t coli__budget_shorter_ctx(uint32_t n_ctx, uint64_t kv_bytes, uint64_t missing_bytes)
{
    enum { STEP = 256 };
    const uint64_t per_token = n_ctx ? kv_bytes / n_ctx : 0;
    if (per_token == 0 || missing_bytes > kv_bytes) return 0;
    const uint64_t fits = (kv_bytes - missing_bytes) / per_token;
    const uint64_t least = fits < n_ctx ? fits : n_ctx - 1;
    return (uint32_t)(least / STEP * STEP);
}

/* 88 of a hundred parts, without passing 64 bits. */
static uint64_t most_of(uint64_t n)
{
    return n / 100 * 88 + n % 100 * 88 / 100;
}

static uint64_t budget_of(const coli__ram_ask *ask)
{
    if (ask->ram_bytes > 0) return ask->ram_bytes;
    if (ask->free_bytes == COLI__BUDGET_UNKNOWN) return COLI__BUDGET_UNKNOWN;
    return known(coli__plus(ask->resident_bytes, most_of(ask->free_bytes)));
}

coli__ram_budget coli__budget_ram(const coli__ram_ask *ask)
{
    coli__ram_budget b = {.budget_bytes = budget_of(ask)};
    b.expert_bytes = b.budget_bytes == COLI__BUDGET_UNKNOWN
                         ? COLI__BUDGET_UNKNOWN
                         : minus(b.budget_bytes, ask->resident_bytes);
    const uint64_t per_cap =
        coli__times(ask->slot_bytes, ask->n_layer); // one more expert in each layer
    const uint64_t cap = b.expert_bytes / per_cap;
    b.is_short = cap == 0;
    b.cap = cap == 0 ? 1 : cap < ask->n_expert ? (uint32_t)cap : ask->n_expert;
    b.holds_all = cap >= ask->n_expert;
    return b;
}
