/* store_plan.h - which experts stay in memory, and which may take another's place on a guess.
 *
 * Pure: the same numbers give the same plan; the store and the tests run this code.  How many there
 * is room for is in budget.h. */
#ifndef COLI_MOE_STORE_PLAN_H
#define COLI_MOE_STORE_PLAN_H

#include <stdint.h>

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
#endif
