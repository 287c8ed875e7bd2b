// buffers.glsl - what the kernels see of memory: the work buffer, twice (to read and to write), and
// the constants of one dispatch, named in vk_kernels.h.  Positions are counted in words of 32 bits.
layout(set = 0, binding = 1, std430) readonly buffer work_words { uint work[]; };
layout(set = 0, binding = 1, std430) readonly buffer work_quads { uvec4 work4[]; };
layout(set = 0, binding = 2, std430) buffer out_words { uint out_word[]; };

// A quantised row of n_group groups is, in words: n_group * GROUP/4 of four int8 each, n_group
// scales (float), n_group sums of q (int32).  Rows begin at multiples of four words.
const uint NONE = 0xFFFFFFFFu;
