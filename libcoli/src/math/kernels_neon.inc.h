/* kernels_neon.inc.h - what the tables of aarch64 share: registers of 128 bits, four for the
 * sixteen outputs of a panel.  Their dot products take four activations straight from a register of
 * sixteen, so a quad needs no broadcast. */
#include <arm_neon.h>

#define VW       4
#define ROWS_MAX 4 // so that their sums stay in registers
#include "kernels_float.inc.h"

INLINE vf four_halves(const uint8_t *p)
{
    uint16_t h[4];
    memcpy(h, p, sizeof h);
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
}

INLINE lanes halves_to_floats(const uint8_t *p)
{
    return (lanes){{four_halves(p), four_halves(p + 8), four_halves(p + 16), four_halves(p + 24)}};
}
