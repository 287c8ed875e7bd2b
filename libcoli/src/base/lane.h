/* lane.h - a thread that does one job at a time for others, who wait no longer than they want to.
 *
 * For calls into code that may hang: a driver, a plugin.  The one who waits gives up after a limit;
 * the job then keeps its thread, and everything it may touch has to stay. */
#ifndef COLI_BASE_LANE_H
#define COLI_BASE_LANE_H

#include "error.h"

typedef struct coli__lane coli__lane;

coli_status coli__lane_create(const char *name, coli__lane **out); // name: at most 15 bytes
/* True when the thread has ended.  False when a job hangs: thread and lane are left behind for
 * good.  NULL is fine. */
bool coli__lane_destroy(coli__lane *lane);

/* Begin a job; the lane must be idle.  Rounding is to nearest and denormals are kept in it. */
void coli__lane_start(coli__lane *lane, void (*job)(void *ctx), void *ctx);
/* Until the lane is idle: true, and what the job wrote can be read.  False after limit_ns.  From any
 * number of threads. */
bool coli__lane_wait(coli__lane *lane, uint64_t limit_ns);

#endif
