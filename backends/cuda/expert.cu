/* expert.cu - what happens between and behind the products of an expert: the activation, quantised
 * again, and the join of rows; and the probe of the device's arithmetic. */
#include "kernels.cuh"

enum { N_THREAD = 256, WARP = 32 };

/* ---- silu(gate) * up ------------------------------------------------------------------------- */

/* One block for each row.  A warp has a group at a time, lane l its columns l and l + 32; what follows
 * is coli_quantise_group, with the largest magnitude found by a butterfly. */
static __global__ void __launch_bounds__(N_THREAD) activate(coli__cuda_activation a)
{
    __shared__ uint8_t warp_is_out[N_THREAD / WARP];
    const uint64_t row = blockIdx.x;
    const float *const gate = a.gate + row * a.n_column, *const up = a.up + row * a.n_column;
    const uint32_t lane = threadIdx.x % WARP, n_each = a.group / WARP; // 1 or 2
    bool is_out = false;
    for (uint32_t g = threadIdx.x / WARP; g < a.n_group; g += N_THREAD / WARP) {
        float h[2] = {0.0f, 0.0f};
        uint32_t amax = 0;
        for (uint32_t i = 0; i < n_each; i++) {
            const uint32_t c = g * a.group + WARP * i + lane;
            if (c < a.n_column) h[i] = __fmul_rn(coli_silu(gate[c]), up[c]);
            const uint32_t magnitude = coli_bits(h[i]) & 0x7FFFFFFFu;
            amax = magnitude > amax ? magnitude : amax;
        }
        for (int other = WARP / 2; other > 0; other /= 2) {
            const uint32_t magnitude = __shfl_xor_sync(0xFFFFFFFFu, amax, other);
            amax = magnitude > amax ? magnitude : amax;
        }
        const bool is_in = amax < 0x53800000u; // 2^40
        is_out |= !is_in;

        float d = 0.0f, recip = 0.0f;
        if (is_in && amax >= 0x23800000u) { // 2^-56
            d = __fmul_rn(coli_from_bits(amax), 1.0f / 127.0f);
            recip = coli_recip(d);
        }
        int8_t *const q = a.q + (row * a.n_group + g) * a.group;
        for (uint32_t i = 0; i < n_each; i++) {
            const float shifted = __fadd_rn(__fmul_rn(h[i], recip), 0x1.8p23f);
            int32_t v = static_cast<int32_t>(coli_bits(shifted) - 0x4B400000u);
            v = v < -127 ? -127 : v;
            v = v > 127 ? 127 : v;
            q[WARP * i + lane] = static_cast<int8_t>(recip == 0.0f ? 0 : v);
        }
        if (lane == 0) a.d[row * a.n_group + g] = d;
    }
    if (lane == 0) warp_is_out[threadIdx.x / WARP] = is_out;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint8_t flag = 0;
        for (uint32_t w = 0; w < N_THREAD / WARP; w++) flag |= warp_is_out[w];
        a.flag[row] = flag;
    }
}

cudaError_t coli__cuda_activate(const coli__cuda_activation *a, cudaStream_t stream)
{
    return coli__cuda_start(activate, dim3(a->n_row), N_THREAD, a, stream);
}

/* ---- joins ----------------------------------------------------------------------------------- */

/* One block for each row of the result. */
static __global__ void __launch_bounds__(N_THREAD) join(coli__cuda_joining j)
{
    const uint64_t row = blockIdx.x;
    float *const y = j.y + row * j.n_column;
    if (row < j.n_plain) {
        const uint64_t pair = j.plain[row];
        for (uint32_t c = threadIdx.x; c < j.n_column; c += N_THREAD)
            y[c] = j.pair_y[pair * j.n_column + c];
        if (threadIdx.x == 0) j.flag[row] = j.pair_flag[pair];
        return;
    }
    const coli_bk_join terms = j.joins[row - j.n_plain];
    const uint32_t *const pair = j.term_pair + terms.first_term;
    const float *const weight = j.term_weight + terms.first_term;
    for (uint32_t c = threadIdx.x; c < j.n_column; c += N_THREAD) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < terms.n_term; i++) {
            const float term = j.pair_y[static_cast<uint64_t>(pair[i]) * j.n_column + c];
            sum = __fadd_rn(sum, __fmul_rn(weight[i], term));
        }
        y[c] = sum;
    }
    if (threadIdx.x == 0) {
        uint8_t flag = 0;
        for (uint32_t i = 0; i < terms.n_term; i++) flag |= j.pair_flag[pair[i]];
        j.flag[row] = flag;
    }
}

cudaError_t coli__cuda_join(const coli__cuda_joining *j, cudaStream_t stream)
{
    return coli__cuda_start(join, dim3(j->n_plain + j->n_join), N_THREAD, j, stream);
}

/* ---- the probe ------------------------------------------------------------------------------- */

static __global__ void probe(uint32_t *out)
{
    *out = coli_exact_check() ? 1 : 0;
}

cudaError_t coli__cuda_probe(uint8_t *out, cudaStream_t stream)
{
    uint32_t *const answer = reinterpret_cast<uint32_t *>(out);
    uint8_t *const zeros = out + 256, *const flag = out + 768;
    const coli__cuda_tile *const tile = reinterpret_cast<const coli__cuda_tile *>(zeros);
    static_assert(sizeof *tile <= 512 && sizeof(coli_bk_join) <= 512, "inside the zeros");
    cudaError_t error = coli__cuda_start(probe, dim3(1), 1, &answer, stream);
    for (uint32_t kind = 0; kind < COLI__CUDA_N_KIND && error == cudaSuccess; kind++)
        error = coli__cuda_product(kind, tile, 1, 1, stream);
    coli__cuda_activation a = {};
    a.n_row = 1;
    a.group = 64;
    a.flag = flag;
    if (error == cudaSuccess) error = coli__cuda_activate(&a, stream);
    coli__cuda_joining j = {};
    j.n_join = 1;
    j.joins = reinterpret_cast<const coli_bk_join *>(zeros);
    j.flag = flag;
    return error == cudaSuccess ? coli__cuda_join(&j, stream) : error;
}
