/* expect.h - how fast a model will make tokens: from bytes and measured speeds to a range.
 *
 * Pure: numbers in, numbers out.  A token reads every byte that it needs once, so the time is bytes over
 * bandwidth, and what is left is what brings threads together.  How near to the bandwidth a model comes,
 * and how much of two things happens at once, is not known beforehand; hence a range:
 *
 *              best                                        worst
 *     memory   95 % of the fastest reading                 60 % of the slowest
 *     compute  one row at the integer peak                 at a quarter of it
 *     disk     half of the experts that are not in         all of them, one after the other with
 *              memory, while others are computed           computing
 *     device   meanwhile, at the speed of one product      one after the other, half as much again
 *     other    threads brought together as fast as ever    twice the slowest
 *
 * Sources of the shares: `coli bench` reads trunk and head at 86 to 90 % of the stream, experts at 69 %, all
 * of a token at 66 to 78 % (docs/performance.md); with half of the experts in memory a third of the uses
 * misses, not half of them (docs/memory.md). */
#ifndef COLI_RUN_EXPECT_H
#define COLI_RUN_EXPECT_H

#include "coli/coli.h"

/* What a token costs and what the machine gives; speeds least and most, 0 for what was not measured. */
typedef struct coli__expect_in {
    uint64_t ram_bytes;              // that it reads from memory: weights, and states twice
    uint64_t kv_bytes;               // and of keys and values when the context is full
    uint64_t disk_bytes;             // of experts that are not in memory, if it used all alike
    uint64_t vram_bytes;             // that devices read
    uint64_t n_mac;                  // multiply-adds with weights
    uint32_t n_sync;                 // how often the threads are brought together
    double ram[2], disk[2], gmac[2]; // 10^9 per second
    double vram;
    double sync_us[2], sample_us[2];
} coli__expect_in;

/* Fills the fields of the plan that are expected: *_ms_*, tok_s_*, bound.  All stay 0 where a speed that is
 * needed is 0. */
void coli__expect(const coli__expect_in *in, coli_plan_result *out);

#endif
