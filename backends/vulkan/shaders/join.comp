#version 450
// join.comp - the rows of a group's result: a pair's row as it is, or several, weighted and added
// in order.
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "buffers.glsl"

layout(local_size_x = 64) in;

layout(push_constant) uniform constants
{
    uint row_at;  // (n_row, 2): the first term, how many; or a pair, NONE
    uint term_at; // (n_term, 2): pair, float weight
    uint y_at, out_at; // (n_pair, d), (n_row, d)
    uint d;
};

void main()
{
    const uint row = row_at + 2 * gl_WorkGroupID.y, first = work[row], n = work[row + 1];
    for (uint c = gl_GlobalInvocationID.x; c < d; c += 64 * gl_NumWorkGroups.x) {
        const uint to = out_at + gl_WorkGroupID.y * d + c;
        if (n == NONE) {
            out_word[to] = work[y_at + first * d + c];
            continue;
        }
        precise float sum = 0.0;
        for (uint i = 0; i < n; i++) {
            const uint term = term_at + 2 * (first + i);
            sum = sum + uintBitsToFloat(work[term + 1]) *
                            uintBitsToFloat(work[y_at + work[term] * d + c]);
        }
        // A sum that begins at +0 is never -0, unless a driver drops the addition of 0.
        const uint bits = floatBitsToUint(sum);
        out_word[to] = (bits & 0x7FFFFFFFu) == 0u ? 0u : bits;
    }
}
