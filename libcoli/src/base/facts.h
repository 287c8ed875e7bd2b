/* facts.h - what the system says about itself, for people: nothing here decides what is computed. */
#ifndef COLI_BASE_FACTS_H
#define COLI_BASE_FACTS_H

#include "error.h"

/* Numbers are 0 and texts "" where the system does not tell. */
typedef struct coli__facts {
    char system[96];                      // "Linux 6.1.0-18-amd64 x86_64"; no name of the machine
    char cpu[64];                         // as the processor calls itself
    uint32_t n_processor;                 // that are there, whether we may use them or not
    uint64_t memory_bytes, free_bytes;    // of the machine; of that, what could be taken, without
                                          // looking at control groups
    uint64_t swap_bytes, swap_free_bytes; // a file or a disk for what has no room in memory
    char huge_pages[16];                  // "always", "madvise", "never"
    bool has_huge_pages, has_groups;      // such a thing exists on this system
} coli__facts;

void coli__facts_read(coli__facts *out);
#ifndef _WIN32
void coli__facts_read_under(const char *root,
                            coli__facts *out); // where /proc and /sys are; for tests
#endif

/* The processor's name, both systems. */
void coli__facts_cpu(char *out, size_t cap);

#endif
