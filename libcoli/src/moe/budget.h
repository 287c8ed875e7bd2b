/* budget.h - how much memory there is, and how many experts it holds.
 *
 * Pure arithmetic on bytes: no clock, no file, no look at the system.  The tier and the RAM level ask
 * it when a model is opened, `coli plan` asks it without opening anything, so both say the same.
 * Every sum is overflow-safe: sizes that no memory has come out as "does not fit". */
#ifndef COLI_MOE_BUDGET_H
#define COLI_MOE_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

/* ---- a device ------------------------------------------------------------------------------- */

/* Slots of slot_bytes in budget_bytes, at most n.  A slot of 0 bytes holds nothing. */
uint64_t coli__budget_slots(uint64_t budget_bytes, uint64_t slot_bytes, uint64_t n);

/* ---- RAM ------------------------------------------------------------------------------------ */

#define COLI__BUDGET_UNKNOWN UINT64_MAX

typedef struct coli__ram_ask {
    uint64_t ram_bytes;      // what everything together may take, as the user says; 0: not said
    uint64_t free_bytes;     // that could be taken besides resident_bytes; UNKNOWN: nobody can tell
    uint64_t resident_bytes; // all but the routed experts: trunk, sequences, scratch
    uint64_t slot_bytes;     // one expert
    uint32_t n_layer;        // layers with routed experts
    uint32_t n_expert;       // experts of each
} coli__ram_ask;

typedef struct coli__ram_budget {
    uint64_t budget_bytes; // for everything; UNKNOWN: no limit is known
    uint64_t expert_bytes; // of these, what is left for experts
    uint32_t cap;          // experts of each layer that RAM holds at a time: 1 .. n_expert
    bool holds_all;        // all experts of all layers: nothing is read twice
    bool is_short;         // not even one expert of each layer fits: cap 1 exceeds the budget
} coli__ram_budget;

/* The rule: the budget is ram_bytes if it was said, else resident_bytes and 88 % of what is free
 * (the rest is for the page cache and for other programs); what the residents leave is shared evenly
 * among the layers.
 *
 *     n_layer 40, slot 1,769,472, resident 3e9      ram 8e9   (8e9 - 3e9) / (40 * 1,769,472) = 70
 *                                                   free 20e9        17.6e9 / (40 * 1,769,472) = 248
 *
 * n_layer, n_expert and slot_bytes are at least 1. */
coli__ram_budget coli__budget_ram(const coli__ram_ask *ask);

/* ---- all of it ------------------------------------------------------------------------------ */

/* How many experts of all layers are where. */
typedef struct coli__split {
    uint64_t n_vram, n_ram, n_disk;
    uint32_t most; // experts that no device holds, of the layer with most of them
} coli__split;
/* Memory has as much room in every layer, whatever devices hold of it.
 *   n_vram  (n_layer) experts of each layer on devices, at most n_expert */
coli__split coli__budget_split(const uint32_t *n_vram, uint32_t n_layer, uint32_t n_expert,
                               const coli__ram_budget *ram);

/* The longest context, a multiple of 256 below n_ctx, with which kv_bytes for n_ctx tokens shrink by
 * missing_bytes; 0 when none of 256 or more does. */
uint32_t coli__budget_shorter_ctx(uint32_t n_ctx, uint64_t kv_bytes, uint64_t missing_bytes);

#endif
