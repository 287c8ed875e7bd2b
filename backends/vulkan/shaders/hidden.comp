#version 450
// hidden.comp - h = silu(gate) * up, quantised for `down`: 64 columns per workgroup, one or two
// groups.
//
// A lane computes one column.  The largest magnitude of a group is found by comparing bits as
// integers, as in coli_quantise_group, so the order in which lanes meet does not matter; nor does
// it for the sum of q.
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "buffers.glsl"

layout(constant_id = 5) const uint GROUP = 64;
layout(local_size_x = 64) in;

layout(push_constant) uniform constants
{
    uint gate_at, up_at, ld; // (n_pair, n): products of gate and up
    uint h_at, h_ld;         // quantised rows, out
    uint n, n_group;
    uint flag_at; // (n_pair): set to 1 where a number left its range
};

shared uint amax[2];
shared int total[2];
shared uint code[64];

void main()
{
    const uint lane = gl_LocalInvocationID.x, pair = gl_WorkGroupID.y, group = lane / GROUP;
    const uint row = h_at + pair * h_ld, d_at = row + n_group * (GROUP / 4);
    for (uint first = 64 * gl_WorkGroupID.x; first < n_group * GROUP;
         first += 64 * gl_NumWorkGroups.x) {
        const uint column = first + lane;
        precise float h = 0.0; // beyond the last column
        if (column < n)
            h = silu(uintBitsToFloat(work[gate_at + pair * ld + column])) *
                uintBitsToFloat(work[up_at + pair * ld + column]);

        if (lane < 2) {
            amax[lane] = 0u;
            total[lane] = 0;
        }
        barrier();
        atomicMax(amax[group], floatBitsToUint(h) & 0x7FFFFFFFu);
        barrier();

        const uint largest = amax[group];
        const bool in_range = largest < 0x53800000u;                  // 2^40
        const bool is_zero = !in_range || largest < 0x23800000u;      // 2^-56
        precise float d = uintBitsToFloat(largest) * uintBitsToFloat(0x3C010204u); // 1/127
        int q = 0;
        if (!is_zero) {
            precise float scaled = h * recip(d) + ROUNDING;
            q = clamp(int(floatBitsToUint(scaled) - ROUNDING_BITS), -127, 127);
        }
        code[lane] = uint(q) & 0xFFu;
        atomicAdd(total[group], q);
        barrier();

        const uint word = column / 4;
        if (lane % 4 == 0 && column < n_group * GROUP)
            out_word[row + word] = code[lane] | code[lane + 1] << 8 | code[lane + 2] << 16 |
                                   code[lane + 3] << 24;
        const uint g = column / GROUP;
        if (lane % GROUP == 0 && g < n_group) {
            out_word[d_at + g] = is_zero ? 0u : floatBitsToUint(d);
            out_word[d_at + n_group + g] = uint(total[group]);
            if (!in_range) out_word[flag_at + pair] = 1u;
        }
        barrier();
    }
}
