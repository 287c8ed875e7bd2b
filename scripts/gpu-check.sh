#!/bin/bash
# gpu-check.sh - build the cuda backend, and see on this machine's NVIDIA GPU that it is right and fast.
#
#     scripts/gpu-check.sh [FOLDER]     the build folder; build-gpu when it is not named
#
#   1. it builds, for this GPU alone
#   2. `coli backend check` keeps finding no fault
#   3. the demo model's logits have the same bits with none, some and all experts on the GPU
#   4. how fast: a token's experts and matrices beside what the GPU's memory reaches, many rows, copies
#
# Needs an NVIDIA driver, the CUDA toolkit (nvcc in the PATH, in CUDA_PATH or in /usr/local/cuda), and what
# scripts/deps.sh installs.  Takes less than five minutes.  The exit code is 0 when 1 to 3 passed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
folder=${1:-build-gpu}
log=$folder/gpu-check.log # of all steps
mkdir -p "$folder"
: >"$log"

for nvcc in "$(command -v nvcc)" "${CUDA_PATH:-/}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
    [ -x "$nvcc" ] && break
done
if ! [ -x "$nvcc" ]; then
    echo 'gpu-check: there is no nvcc: install the CUDA toolkit or set CUDA_PATH'
    exit 1
fi
if ! gpu=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>&1); then
    echo "gpu-check: nvidia-smi: $gpu"
    exit 1
fi
echo "$gpu"
capability=$(head -1 <<<"$gpu" | sed 's/.*, *//; s/\.//')

failed=0
step() { # TEXT COMMAND...
    local text=$1 begin=$SECONDS output status
    shift
    output=$("$@" 2>&1)
    status=$?
    printf '\n=== %s\n%s\n' "$text" "$output" >>"$log"
    if [ $status = 0 ]; then
        printf 'ok      %-50s %4d s\n' "$text" $((SECONDS - begin))
    else
        printf 'FAILED  %-50s %4d s\n' "$text" $((SECONDS - begin))
        tail -n 15 <<<"$output" | sed 's/^/        /'
        failed=1
    fi
}
build() {
    cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCOLI_BACKENDS=cuda -DCOLI_NVCC="$nvcc" \
        -DCOLI_CUDA_ARCHITECTURES="$capability" &&
        cmake --build "$folder" --target coli_cli backend_cuda placement bench_backend &&
        "$nvcc" -O3 -arch="sm_$capability" -o "$folder/bin/cuda_peak" tests/bench/cuda_peak.cu
}
step "build for sm_$capability" build
[ $failed = 0 ] || exit 1
plugin=$folder/lib/coli_cuda.so
step 'the contract: coli backend check' timeout 150 "$folder/bin/coli" backend check "$plugin"
step 'the same bits wherever experts are' timeout 100 "$folder/bin/placement" cuda "$plugin"

echo
if peak=$("$folder/bin/cuda_peak"); then
    echo "plain reading of the GPU's memory: $peak GB/s, which is 100 % below"
    timeout 60 "$folder/bin/bench_backend" "$plugin" "$peak" | tee -a "$log"
else
    echo 'no benchmark: nothing runs on the GPU'
fi
echo
echo "all output: $log"
exit $failed
