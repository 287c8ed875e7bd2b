/* store_plan.h - how much of the RAM is for experts, and which of them stay there.
 *
 * Pure: the same numbers give the same plan; the store, `coli plan` and the tests run this code. */
#ifndef COLI_MOE_STORE_PLAN_H
#define COLI_MOE_STORE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

/* -- how many slots ---------------------------------------------------------------------------- */

typedef struct coli__store_budget {
    uint64_t ram_bytes;       // that the model may take; 0: what is available
    uint64_t available_bytes; // of memory, now; without ram_bytes 12 % of it are left alone
    uint64_t
        resident_bytes;  // what of the model is in memory whatever happens, and is there already
    uint64_t slot_bytes; // one slot in every layer, all layers together
    uint32_t n_expert;   // of a layer
} coli__store_budget;

/* Slots of each layer, 1 to n_expert.  *fits (may be NULL): whether as many as that are really there;
 * false when it should be less than one. */
uint32_t coli__store_cap(const coli__store_budget *ask, bool *fits);

/* -- pins -------------------------------------------------------------------------------------- */

/* How much of the RAM is for pinned experts: nothing before 5,000 uses were counted, then more with
 * every use, up to half of it at 200,000; and nothing instead of less than 0.5e9 bytes. */
uint64_t coli__store_pin_budget(uint64_t available_bytes, uint64_t n_use);

typedef struct coli__store_use {
    uint32_t layer, expert, count;
    uint64_t n_bytes;
} coli__store_use;

/* By count, highest first; ties by layer, then expert.  In place. */
void coli__store_sort_uses(coli__store_use *uses, uint32_t n);
/* How many of the first of them fit the budget: up to the first that does not, even if a later one
 * would, so that a wide expert never loses to colder ones.  One without a count is not pinned. */
uint32_t coli__store_n_pin(const coli__store_use *uses, uint32_t n, uint64_t budget_bytes);

/* -- who may take whose slot on a guess -------------------------------------------------------- */

/* Heat (uses, heat.h) before anything; then who was used last.  age: tokens since the last use. */
uint64_t coli__store_score(uint32_t heat, uint64_t age);
/* The newcomer must be better by a quarter and four uses. */
bool coli__store_beats(uint64_t newcomer, uint64_t victim);

#endif
