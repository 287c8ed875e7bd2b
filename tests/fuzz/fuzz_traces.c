/* fuzz_traces.c - recorded routing from anybody.  A byte says how long the JSON is, in steps of 16; the
 * rest is the tensors' file.  Refused with a message, or every id is an expert and no row has one
 * twice; and then it can be replayed. */
#include <stdlib.h>

#include "libcoli/src/moe/replay.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(const coli__traces *all)
{
    for (uint32_t i = 0; i < all->n_trace; i++) {
        const coli__trace *t = &all->traces[i];
        if (t->n_prompt == 0 || t->n_prompt >= t->n_row || t->n_layer != all->n_layer) abort();
        const size_t n_row = (size_t)t->n_layer * t->n_row;
        for (size_t k = 0; k < n_row * t->n_id; k++)
            if (t->ids[k] < 0 || (uint32_t)t->ids[k] >= all->n_expert) abort();
    }
}

static void replay(const coli__traces *all, uint8_t choice)
{
    const coli__replay_opts o = {.policy = choice % coli__replay_n_policy,
                                 .n_slot = choice % all->n_expert + 1,
                                 .cap = choice % 8,
                                 .drain = 4,
                                 .allowance = UINT64_MAX,
                                 .machine = {.link_bytes_per_s = choice,
                                             .bw_bytes_per_s = 1,
                                             .cpu_bytes_per_s = 1,
                                             .cpu_mac_per_s = 1,
                                             .expert_bytes = 1,
                                             .d_model = 1,
                                             .slow = 1,
                                             .n_copy = 1}};
    coli__replay_result r;
    if (coli__replay_run(all, 0, &o, &r) != COLI_OK) abort();
    const coli__trace *t = &all->traces[0];
    if (r.n_hit > (uint64_t)t->n_layer * (t->n_row - t->n_prompt) * t->n_id) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (n_bytes < 1 || n_bytes - 1 < (size_t)data[0] * 16) return 0;
    const size_t n_json = (size_t)data[0] * 16;
    json_t *list = NULL;
    coli__st *st = NULL;
    coli__traces all = {0};
    coli_status status = coli__json_parse("json", (const char *)data + 1, n_json, 4, &list);
    if (status == COLI_OK)
        status = coli__st_open_bytes("fuzz", data + 1 + n_json, n_bytes - 1 - n_json, &st);
    if (status == COLI_OK)
        status = coli__traces_read("json", list, st, &(coli__trace_part){0}, &all);
    if (status != COLI_OK && *coli_error_message() == 0) abort();
    if (status == COLI_OK) {
        check(&all);
        /* A few bytes can name 512 layers of 4096 experts: checked, but not worth a fuzzer's time. */
        if ((uint64_t)all.n_layer * all.n_expert < 1 << 16) replay(&all, data[n_bytes - 1]);
    }
    coli__traces_finish(&all);
    coli__st_close(st);
    json_decref(list);
    return 0;
}
