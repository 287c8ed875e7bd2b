/* memory.h - what the system says about its memory, and large pieces of it. */
#ifndef COLI_BASE_MEMORY_H
#define COLI_BASE_MEMORY_H

#include "error.h"

/* Bytes that can be taken without pushing others out, limits of control groups included; 0 when the
 * system does not tell. */
uint64_t coli__memory_available(void);
#ifndef _WIN32
uint64_t coli__memory_available_under(const char *root); // where /proc and /sys are; for tests
#endif

/* Bytes of the largest cache of the first processor; 0 when the system does not tell. */
uint64_t coli__cache_bytes(void);

/* What this process has allocated and not freed, to the byte, by whatever library; and how much of it
 * is in memory.  0 where the system does not tell. */
uint64_t coli__memory_allocated(void);
uint64_t coli__memory_resident(void);

/* Bring these bytes of a mapped file into memory, and into this process's page tables: they are read from
 * the disk now instead of one page after another when they are used. */
void coli__pages_bring(const void *data, uint64_t n_bytes);

/* The opposite: they need not stay in memory.  What is read again comes from the system's cache or the
 * disk.  Never for bytes that anybody writes. */
void coli__pages_drop(const void *data, uint64_t n_bytes);

/* Put a copy of these bytes of a private mapping in their place, in huge pages: who reads them sees no
 * difference, also meanwhile.  Only whole huge pages can be replaced, so what stands before the first and
 * behind the last stays mapped.  *n_copied says how many bytes were copied, which are memory of this process
 * from then on and go with the mapping; 0 where the system has no huge pages or no memory, and nothing is
 * lost.  E_NOMEM: the system failed half-way, and the bytes cannot be read any more: the mapping is of no use
 * but to be closed. */
coli_status coli__pages_copy_huge(const void *data, uint64_t n_bytes, uint64_t *n_copied);
bool coli__pages_can_be_huge(void); // whether the system has any for who asks

/* n_bytes of fresh memory of its own, in huge pages where the system has some to give: for buffers
 * of many MiB that are read from end to end. */
coli_status coli__pages_take(uint64_t n_bytes, void **out);
void coli__pages_give(void *pages, uint64_t n_bytes); // NULL is fine
/* Keep such memory from being paged out until it is given back; false where the system refuses. */
bool coli__pages_lock(void *pages, uint64_t n_bytes);

#endif
