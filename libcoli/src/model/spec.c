/* spec.c - see spec.h. */
#include "spec.h"

void coli__model_spec_finish(coli__model_spec *spec)
{
    coli__free(spec->tensors);
    coli__free(spec->experts);
    *spec = (coli__model_spec){0};
}
