/* plan_measure.h - how fast this machine is at what a planned model needs. */
#ifndef COLI_RUN_PLAN_MEASURE_H
#define COLI_RUN_PLAN_MEASURE_H

#include "model.h"

/* Fills the measured fields of the plan.  The model was looked at (coli__model_look); its threads are
 * made here.  What cannot be measured stays 0: the disk of a model that is not converted, a device
 * without a matrix to try.  A second or two. */
coli_status coli__plan_measure(coli_model *m, const coli_model_opts *o, coli_plan_result *r);

#endif
