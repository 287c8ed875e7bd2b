/* cuda_peak.cu - what the memory of a CUDA device reaches: GB/s read, measured with a plain kernel, for
 * bench_backend to compare with.  Prints the number alone; nvcc -o cuda_peak cuda_peak.cu */
#include <cstdio>
#include <cuda_runtime.h>

static __global__ void read_all(const uint4 *p, size_t n, unsigned *out)
{
    unsigned sum = 0;
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
        const uint4 v = __ldcs(p + i);
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678u) *out = sum; // so that reading has a purpose
}

int main()
{
    const size_t n_bytes = 1 << 30;
    void *memory, *out;
    cudaEvent_t begin, end;
    if (cudaMalloc(&memory, n_bytes) || cudaMalloc(&out, 4) || cudaMemset(memory, 1, n_bytes) ||
        cudaEventCreate(&begin) || cudaEventCreate(&end))
        return 1;
    float best = 0;
    for (int i = 0; i < 20; i++) {
        float ms;
        cudaEventRecord(begin);
        read_all<<<4096, 256>>>(static_cast<uint4 *>(memory), n_bytes / sizeof(uint4),
                                static_cast<unsigned *>(out));
        cudaEventRecord(end);
        if (cudaEventSynchronize(end) || cudaEventElapsedTime(&ms, begin, end)) return 1;
        const float rate = 1e-6f * static_cast<float>(n_bytes) / ms;
        best = rate > best ? rate : best;
    }
    printf("%.1f\n", best);
    return 0;
}
