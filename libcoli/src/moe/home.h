/* home.h - which device may hold an expert: exactly one, so that no expert is anywhere twice.  Pure. */
#ifndef COLI_MOE_HOME_H
#define COLI_MOE_HOME_H

#include <stdint.h>

/* By expert: expert e of every layer lives on the (e mod n)th device of a list, so every layer is
 * spread over all devices, which work on it at the same time. */
uint32_t coli__home_of_expert(const uint8_t *devices, uint32_t n_device, uint32_t expert);

/* By layer: all experts of a layer live on one device, whose share of the layers is its share of the
 * weights: the first device whose weights up to and with its own exceed (l + 1/2)/n_layer of all.
 * Rows then travel to one device and may be joined there.
 *   weights  (n_device) not negative; all 0: as if all were equal
 *   home     (n_layer) an index into weights */
void coli__home_of_layers(const double *weights, uint32_t n_device, uint32_t n_layer,
                          uint8_t *home);

#endif
