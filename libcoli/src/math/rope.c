/* rope.c - rotary position embedding with half-split pairs.
 *
 * Position times frequency is exact in double (20 and 24 bits), and coli_sincos reduces it with
 * what pi/2 loses to 53 bits, so far positions are as precise as near ones. */
#include "rope.h"

#include "coli/exact.h"

void coli__rope_frequencies(double theta, uint32_t n_rot, float *frequency)
{
    for (uint32_t i = 0; i < n_rot / 2; i++) frequency[i] = coli_rotary_frequency(theta, i, n_rot);
}

void coli__rope_table(const float *frequency, uint32_t n_rot, uint32_t pos, uint32_t n_tok,
                      float *cosine, float *sine)
{
    const uint32_t half = n_rot / 2;
    for (uint32_t t = 0; t < n_tok; t++, cosine += half, sine += half)
        for (uint32_t i = 0; i < half; i++)
            coli_sincos((double)(pos + t) * (double)frequency[i], &sine[i], &cosine[i]);
}

void coli__rope_apply(float *head, const float *cosine, const float *sine, uint32_t n_rot)
{
    float *low = head, *high = head + n_rot / 2;
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        const float a = low[i], b = high[i];
        low[i] = a * cosine[i] - b * sine[i];
        high[i] = b * cosine[i] + a * sine[i];
    }
}
