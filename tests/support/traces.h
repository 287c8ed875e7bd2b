/* traces.h - recorded routing made by hand: one layer, rows as text. */
#ifndef COLI_TEST_TRACES_H
#define COLI_TEST_TRACES_H

#include "libcoli/src/moe/replay.h"
#include "t.h"

enum { TRACES_MAX_ROW = 256, TRACES_MAX_USED = 8 };

/* Prompts of one layer.  Start zeroed, with n_expert and n_expert_used set. */
typedef struct traces {
    coli__traces all;
    coli__trace at[4];
    int32_t ids[4][TRACES_MAX_ROW * TRACES_MAX_USED];
} traces;

/* "01 12 | 23": rows, an expert per letter, those before the bar are the prompt's. */
static inline void traces_add(traces *t, char *topic, const char *rows)
{
    coli__trace *one = &t->at[t->all.n_trace];
    *one = (coli__trace){.name = topic, .topic = topic, .n_layer = 1};
    one->ids = t->ids[t->all.n_trace++];
    one->n_id = t->all.n_expert_used;
    uint32_t n = 0;
    for (; *rows; rows++) {
        if (*rows >= '0' && *rows <= '9') one->ids[n++] = *rows - '0';
        if (*rows == '|') one->n_prompt = n / one->n_id;
    }
    one->n_row = n / one->n_id;
    t->all.traces = t->at;
    t->all.n_layer = 1;
}

static inline coli__replay_opts traces_opts(const char *policy, uint32_t n_slot)
{
    coli__replay_opts o = {.policy = coli__replay_n_policy,
                           .n_slot = n_slot,
                           .cap = 1000,
                           .drain = 4,
                           .allowance = UINT64_MAX,
                           .machine = {.bw_bytes_per_s = 1000000000,
                                       .cpu_bytes_per_s = 1000000000,
                                       .cpu_mac_per_s = 1000000000,
                                       .expert_bytes = 1000,
                                       .d_model = 64,
                                       .slow = 1,
                                       .n_copy = 1}};
    for (uint32_t i = 0; i < coli__replay_n_policy; i++)
        if (strcmp(coli__replay_policies[i].name, policy) == 0) o.policy = i;
    return o;
}

#endif
