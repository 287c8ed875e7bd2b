/* stream.h - experts that no device holds pass through a device, for the rows of a chunk.
 *
 * Where many rows use an expert, copying it to a device and computing there can be faster than the
 * processor.  The tier keeps two spare slots on each device; while an expert is computed in one, the next
 * is copied into the other:
 *
 *     link     copy A | copy B | copy C |
 *     device          |   A    |   B    |   C    | what it holds itself
 *
 * Results go into the caller's memory, so that nothing depends on what the device computes next.
 *
 * Threads: all calls from one, but coli__stream_wait from any number.  The experts are computed by a
 * thread of the stream's own, which then starts the device's groups; until it has been waited for,
 * nobody else uses these. */
#ifndef COLI_MOE_STREAM_H
#define COLI_MOE_STREAM_H

#include "tier.h"

typedef struct coli__stream coli__stream; // of one device

/* One expert, and what becomes of it. */
typedef struct coli__passing {
    uint32_t expert, first, n; // n pairs, those from `first` on
    const uint32_t *rows;      // (n) that use it
    float *y;                  // (n, d_model)
    uint8_t *flag;             // (n) the row left the range of coli/exact.h
    bool is_done;              // else nothing of it is valid
} coli__passing;

/* For up to max_row rows of max_row_bytes. */
coli_status coli__stream_create(coli__tier *tier, uint32_t device, uint32_t max_row,
                                size_t max_row_bytes, uint32_t d_model, coli__stream **out);
void coli__stream_destroy(coli__stream *stream); // NULL is fine

/* What a stream has to do. */
typedef struct coli__stream_work {
    const coli__ct_experts *layer;
    const coli__qrows *x;
    coli__passing *passing; // (n) of these, those at first, first + step, ...
    uint32_t first, step, n;
    coli__group *group, *then; // of the device, as in coli__group_start; NULL: none
} coli__stream_work;
/* Ends whatever happens to the device.  Nothing is allocated. */
void coli__stream_start(coli__stream *stream, const coli__stream_work *work);
void coli__stream_wait(coli__stream *stream);

#endif
