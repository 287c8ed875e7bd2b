/* phase.h - what a token's time is charged to (coli__pool_phase of base/threads.h). */
#ifndef COLI_MOE_PHASE_H
#define COLI_MOE_PHASE_H

#include "../base/threads.h"

/* OUTSIDE: the caller, between forward passes.  OTHER: embedding, norms before the mixers. */
enum {
    COLI_PHASE_OUTSIDE = COLI_PHASE_WAITING + 1,
    COLI_PHASE_OTHER,
    COLI_PHASE_ROUTER,
    COLI_PHASE_EXPERTS,
    COLI_PHASE_SHARED,
    COLI_PHASE_DELTANET,
    COLI_PHASE_ATTENTION,
    COLI_PHASE_PROJECTIONS,
    COLI_PHASE_HEAD,
    COLI_PHASE_SAMPLING
};

#endif
