/* fuzz_tasks.c - any bytes as the lines of a .jsonl of items, in the small tokenizer. */
#include "items.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    coli_tasks *t;
    if (items_of((const char *)data, n_bytes, &t) != COLI_OK) {
        if (!*coli_error_message()) abort();
        return 0;
    }
    for (uint32_t i = 0; i < coli__tasks_n(t); i++) {
        const coli__task *item = coli__tasks_at(t, i);
        if (item->n_id == 0 || (item->n_ending && item->label >= item->n_ending)) abort();
        for (uint32_t e = 0; e < item->n_ending; e++)
            if (coli__tasks_ending(t, item, e)->n_id == 0) abort();
    }
    coli_tasks_close(t);
    return 0;
}
