/* home.c - see home.h.
 *
 *     5 layers, weights 1 1      middles .1 .3 .5 .7 .9 of all      shares .5 1
 *     layer 2 is the second device's: .5 is not more than .5
 *
 * A share that falls between two layers goes to the later device. */
#include "home.h"

uint32_t coli__home_of_expert(const uint8_t *devices, uint32_t n_device, uint32_t expert)
{
    return devices[expert % n_device];
}

void coli__home_of_layers(const double *weights, uint32_t n_device, uint32_t n_layer, uint8_t *home)
{
    double all = 0;
    for (uint32_t i = 0; i < n_device; i++) all += weights[i];
    for (uint32_t l = 0; l < n_layer; l++) {
        const double middle = (all > 0 ? all : n_device) * (2.0 * l + 1);
        double share = 0;
        uint32_t i = 0;
        for (; i + 1 < n_device; i++) {
            share += all > 0 ? weights[i] : 1;
            if (share * (2.0 * n_layer) > middle) break;
        }
        home[l] = (uint8_t)i;
    }
}
