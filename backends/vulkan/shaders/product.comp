#version 450
// product.comp - y = W x for quantised rows x, a panel of sixteen weight rows per workgroup.
//
// The workgroup (16, N_SPLIT * N_SIDE): lane x computes row x of the panel, so a chunk of codes is
// 64 contiguous bytes for sixteen lanes.  Along y, the workgroup either splits the columns (few
// rows: many loads under way at once) or takes more activation rows (many rows: the weights, read
// once, serve N_SIDE * N_ROW of them from the cache).
//
// Split s takes groups s * 2^split_log2 ...: a subtree of the sum's tree.  Within it a lane keeps a
// binary counter of partial sums for each of its rows, as in coli_tree_add; the splits' sums are
// added in pairs at the end.
//
// Nothing depends on the size of subgroups: lanes meet in shared memory only, behind barriers.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef STORAGE16
#extension GL_EXT_shader_16bit_storage : require
#endif
#include "exact.glsl"
#include "buffers.glsl"

layout(constant_id = 0) const uint N_Y = 4; // N_SPLIT * N_SIDE
layout(constant_id = 1) const uint N_SPLIT = 4;
layout(constant_id = 2) const uint N_ROW = 1; // activation rows of a lane
layout(constant_id = 3) const uint N_LEVEL = 7; // of a lane's counter: 2^split_log2 < 2^N_LEVEL
layout(constant_id = 4) const uint BITS = 4;    // the weight format, see coli/backend.h
layout(constant_id = 5) const uint GROUP = 64;
layout(constant_id = 6) const uint PER_ROW = 0;
layout(constant_id = 7) const uint SCALE_BYTES = 2;
layout(local_size_x = 16, local_size_y_id = 0) in;

// Derived from the format, in words.
const uint SCALE_WORDS = 16 * SCALE_BYTES / 4;
const uint CODE_AT = PER_ROW != 0 ? 0 : SCALE_WORDS;
const uint FIRST_GROUP = PER_ROW != 0 ? SCALE_WORDS : 0;
const uint GROUP_WORDS = CODE_AT + 16 * GROUP * BITS / 32;
const int EXCESS = BITS == 4 ? 8 : 0; // codes of four bits are multiplied as they are, 0..15

layout(push_constant) uniform constants
{
    uint tile_at;    // (n_tile, 4): matrix, first pair, pairs, -
    uint matrix_at;  // (n_matrix, 4): weight buffer, first word in it, float 2^scale_exp, -
    uint row_at;     // (n_pair): the activation row of a pair; NONE: the pair's number
    uint x_at, x_ld; // activation rows
    uint y_at, y_ld; // results, a row per pair
    uint y_plane;    // from the results of one matrix to those of the next (gate, up)
    uint n_out, n_group;
    uint split_log2;
    uint n_slice; // the panels in so many slices, for each matrix along z
    uint first_matrix;
};

layout(set = 0, binding = 0, std430) readonly buffer weight_words { uint word[]; } weights[8];
#ifdef STORAGE16
layout(set = 0, binding = 0, std430) readonly buffer weight_halves { uint16_t scale[]; }
weights16[8];
#endif

// Loops over a lane's rows are unrolled, so that their arrays become registers.  Whether those over
// the levels of a tree are is the driver's choice: it takes some drivers seconds.
#define UNROLL [[unroll]]

shared float partial[N_Y * N_ROW * 16];

// Sum of four products of signed bytes.
#ifdef DOT
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019],
                  id = 4450)
int op_sdot(uint a, uint b, spirv_literal int packed);
int dot4(uint a, uint b) { return op_sdot(a, b, 0); }
#else
int dot4(uint a, uint b)
{
    const int p = int(a), q = int(b);
    return bitfieldExtract(p, 0, 8) * bitfieldExtract(q, 0, 8) +
           bitfieldExtract(p, 8, 8) * bitfieldExtract(q, 8, 8) +
           bitfieldExtract(p, 16, 8) * bitfieldExtract(q, 16, 8) +
           bitfieldExtract(p, 24, 8) * bitfieldExtract(q, 24, 8);
}
#endif

// Scale of panel row `lane`, whose sixteen scales begin at word `at`.
float scale_of(uint buffer_index, uint at, uint lane, float pow2)
{
    float stored;
    if (SCALE_BYTES == 4) {
        stored = uintBitsToFloat(weights[buffer_index].word[at + lane]);
    } else {
#ifdef STORAGE16
        stored = f16_to_f32(uint(weights16[buffer_index].scale[2 * at + lane]));
#else
        stored = f16_to_f32(weights[buffer_index].word[at + lane / 2] >> 16 * (lane & 1) & 0xFFFFu);
#endif
    }
    precise float scale = stored * pow2;
    return scale;
}

// The weights of sixteen columns, four in each word: columns 16k .. 16k+15 of a group whose codes
// begin at word `at`.
uvec4 codes_of(uint buffer_index, uint at, uint k, uint lane)
{
    if (BITS == 8) {
        const uint first = at + 64 * k + lane;
        return uvec4(weights[buffer_index].word[first], weights[buffer_index].word[first + 16],
                     weights[buffer_index].word[first + 32],
                     weights[buffer_index].word[first + 48]) ^ 0x80808080u;
    }
    const uint first = at + 32 * k + lane;
    const uint a = weights[buffer_index].word[first], b = weights[buffer_index].word[first + 16];
    return uvec4(a, a >> 4, b, b >> 4) & 0x0F0F0F0Fu;
}

void main()
{
    const uint lane = gl_LocalInvocationID.x, split = gl_LocalInvocationID.y % N_SPLIT,
               side = gl_LocalInvocationID.y / N_SPLIT;
    const uint panel = gl_WorkGroupID.z % n_slice * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (16 * panel >= n_out) return; // the whole workgroup

    const uint which = gl_WorkGroupID.z / n_slice;
    const uint tile = tile_at + 4 * gl_WorkGroupID.y;
    const uint matrix = matrix_at + 4 * (work[tile] + first_matrix + which);
    const uint first_pair = work[tile + 1], n_pair = work[tile + 2];
    const uint w = work[matrix];
    const uint panel_at =
        work[matrix + 1] + panel * (FIRST_GROUP + n_group * GROUP_WORDS);
    const float pow2 = uintBitsToFloat(work[matrix + 2]);

    // Rows beyond the tile's are computed as copies of the last and not stored.
    uint x[N_ROW], pair[N_ROW];
    UNROLL for (uint j = 0; j < N_ROW; j++) {
        const uint i = side * N_ROW + j;
        pair[j] = first_pair + min(i, n_pair - 1);
        x[j] = x_at + (row_at == NONE ? pair[j] : work[row_at + pair[j]]) * x_ld;
    }

    float level[N_ROW * N_LEVEL];
    const float row_scale = PER_ROW != 0 ? scale_of(w, panel_at, lane, pow2) : 0.0;
    const uint first = split << split_log2, end = min(first + (1u << split_log2), n_group);
    for (uint g = first; g < end; g++) {
        const uint at = panel_at + FIRST_GROUP + g * GROUP_WORDS;
        const float scale = PER_ROW != 0 ? row_scale : scale_of(w, at, lane, pow2);
        int sum[N_ROW];
        UNROLL for (uint j = 0; j < N_ROW; j++)
            sum[j] = -EXCESS * int(work[x[j] + n_group * (GROUP / 4 + 1) + g]);
        for (uint k = 0; k < GROUP / 16; k++) {
            const uvec4 code = codes_of(w, at + CODE_AT, k, lane);
            UNROLL for (uint j = 0; j < N_ROW; j++) {
                const uvec4 q = work4[(x[j] + g * (GROUP / 4)) / 4 + k];
                sum[j] += dot4(q.x, code.x) + dot4(q.y, code.y) + dot4(q.z, code.z) +
                          dot4(q.w, code.w);
            }
        }
        UNROLL for (uint j = 0; j < N_ROW; j++) {
            const float d = uintBitsToFloat(work[x[j] + n_group * (GROUP / 4) + g]);
            precise float v = float(sum[j]) * (scale * d);
            for (uint i = 0; i < N_LEVEL; i++) { // coli_tree_add
                if (((g - first) >> i & 1u) == 0u) {
                    level[j * N_LEVEL + i] = v;
                    break;
                }
                v = level[j * N_LEVEL + i] + v;
            }
        }
    }

    const uint n = end > first ? end - first : 0;
    UNROLL for (uint j = 0; j < N_ROW; j++) { // coli_tree_sum
        precise float sum = 0.0;
        for (uint i = 0; i < N_LEVEL; i++)
            if ((n >> i & 1u) != 0u) sum = level[j * N_LEVEL + i] + sum;
        partial[(gl_LocalInvocationID.y * N_ROW + j) * 16 + lane] = sum;
    }
    barrier();
    if (split != 0) return;

    UNROLL for (uint j = 0; j < N_ROW; j++) {
        // Split s of row j is at first + s * step; the tree over the splits.
        const uint step = N_ROW * 16, at = (gl_LocalInvocationID.y * N_ROW + j) * 16 + lane;
        precise float y[N_SPLIT];
        UNROLL for (uint s = 0; s < N_SPLIT; s++) y[s] = partial[at + s * step];
        for (uint width = 1; width < N_SPLIT; width *= 2)
            for (uint s = 0; s < N_SPLIT; s += 2 * width) y[s] = y[s] + y[s + width];
        // Adding +0 makes -0 to +0; done on the bits, since there are drivers that drop such an
        // addition.
        const uint bits = floatBitsToUint(y[0]);
        if (side * N_ROW + j < n_pair && 16 * panel + lane < n_out)
            out_word[y_at + which * y_plane + pair[j] * y_ld + 16 * panel + lane] =
                (bits & 0x7FFFFFFFu) == 0u ? 0u : bits;
    }
}
