/* fake_options.h - the knobs of the simulated device: one line of words, KEY=VALUE.
 *
 *     devices=2 vram=8GiB link=12GB/s refuse=tensor_overwrite fail=tensor_upload:5 lose=37
 *
 * docs/backends/fake.md describes them all.  Pure. */
#ifndef FAKE_OPTIONS_H
#define FAKE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coli/backend.h"
#include "fake_model.h"

/* The functions of coli/backend.h as numbers. */
enum {
#define FAKE_ENTRY(since, returns, name, parameters) FAKE_##name,
    COLI_BACKEND_SYMBOLS(FAKE_ENTRY, FAKE_ENTRY)
#undef FAKE_ENTRY
        FAKE_N_ENTRY
};

const char *fake_entry_name(uint32_t entry);

typedef enum fake_fault_kind { FAKE_FAIL, FAKE_TEAR, FAKE_HANG } fake_fault_kind;

/* What happens to call number `call` of an entry, or from then on. */
typedef struct fake_fault {
    fake_fault_kind kind;
    uint32_t entry;
    uint64_t call; // the first is 1
    bool and_later;
    uint64_t n_bytes; // TEAR: that many are written
} fake_fault;

enum { FAKE_MAX_FAULT = 64, FAKE_MESSAGE = 512 };

typedef struct fake_options {
    uint32_t n_device;
    uint32_t formats; // bit f: format f
    uint64_t vram_bytes, page_bytes, pinned_bytes;
    fake_speed speed;
    uint32_t n_copy; // transfers of an upload or overwrite
    uint64_t trunk_ns,
        misses_ns; // what the host does for each row of a group: before it, beside it
    bool can_join, is_real;
    uint32_t refused; // bit e: entry e
    uint64_t lose_at; // 0: never
    uint32_t n_fault;
    fake_fault faults[FAKE_MAX_FAULT];
} fake_options;

/* The knobs as a device sees them: "devK.KEY=VALUE" is for device K alone, and of two that say the
 * same thing the later one counts.  False when a word is not understood, also one for another
 * device; the message then says which, and what is accepted. */
bool fake_options_read(const char *text, uint32_t device, fake_options *out,
                       char message[FAKE_MESSAGE]);

/* The fault that strikes this call, or NULL. */
const fake_fault *fake_options_fault(const fake_options *o, uint32_t entry, uint64_t call);

#endif
