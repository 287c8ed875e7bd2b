/* kernels_neon.inc.h - what the tables of aarch64 share: registers of 128 bits, four for the
 * sixteen outputs of a panel.  Their dot products take four activations straight from a register of
 * sixteen, so a quad needs no broadcast. */
#include <arm_neon.h>

#define VW 4
#define WIDEN(p)                                                                                   \
    ((vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)(const void *)(p)))))
#define ROWS_MAX   4 // so that their sums stay in registers
#define PANELS_MAX 1
#include "kernels_float.inc.h"
