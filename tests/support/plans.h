/* plans.h - worlds and swaps as text, for the tests of plan.h and replan.h.
 *
 * A world is a letter for each expert, layer after layer: R resident, K known, Q queued, P planned,
 * A away.  Swaps are "(in,out) (in,out)" with flat ids. */
#ifndef COLI_TEST_PLANS_H
#define COLI_TEST_PLANS_H

#include "t.h"

#include "libcoli/src/moe/heat.h"
#include "libcoli/src/moe/plan.h"

enum { PLANS_MAX = 256 }; // experts of a world

static inline uint8_t plans_place(char letter)
{
    static const char letters[] = "AKPQR";
    const char *at = strchr(letters, letter);
    if (!at) fail_msg("no place %c", letter);
    return (uint8_t)(at - letters);
}

static inline void plans_places(const char *text, uint8_t *place)
{
    for (size_t i = 0; text[i]; i++) place[i] = plans_place(text[i]);
}

/* "1 2 3" to numbers; how many. */
static inline uint32_t plans_numbers(const char *text, uint32_t *out)
{
    uint32_t n = 0;
    for (char *end; *text; text = end + (*end == ' '))
        out[n++] = (uint32_t)strtoull(text, &end, 10);
    return n;
}

static inline const char *plans_text(const coli__swap *swaps, uint32_t n)
{
    static char text[16 * PLANS_MAX];
    size_t at = 0;
    *text = 0;
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s(%u,%u)", i ? " " : "", swaps[i].in,
                               swaps[i].out);
    return text;
}

static inline const char *plans_ids(const uint32_t *ids, uint32_t n)
{
    static char text[16 * PLANS_MAX];
    size_t at = 0;
    *text = 0;
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%u", i ? " " : "", ids[i]);
    return text;
}

static inline void plans_apply(uint8_t *place, const coli__swap *swaps, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        T_EQ(place[swaps[i].in], COLI__PLACE_KNOWN);
        T_EQ(place[swaps[i].out], COLI__PLACE_RESIDENT);
        place[swaps[i].in] = COLI__PLACE_RESIDENT;
        place[swaps[i].out] = COLI__PLACE_KNOWN;
    }
}

#endif
