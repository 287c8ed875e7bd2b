#!/bin/bash
# cuda_code.sh SOURCES PLUGIN FOLDER NVCC FLAG... - the code that nvcc makes rounds as coli/exact.h does.
#
#   (1) In PTX, for the oldest and the newest architecture: no fused multiply-add of floats, no
#       approximation, no flushing of denormals, and every sum and product rounded to nearest; that is
#       what keeps the assembler behind it from fusing them.
#   (2) The kernels use what they are meant to: dp4a, tensor cores, loads that do not stay in the caches.
#   (3) Where there is cuobjdump: no fused multiply-add in the machine code of the plugin either.
set -uo pipefail
sources=$1 plugin=$2 folder=$3 nvcc=$4
shift 4
mkdir -p "$folder"

say() { # WHAT: a line of input each is wrong
    sort | uniq -c | sed "s|^|$1: |"
}
floats() { # operations on floats, without their operands
    grep -oE '\b(add|sub|mul|mad|fma|div|sqrt|rcp|rsqrt|ex2|lg2|sin|cos|tanh)(\.[a-z0-9]+)*\.f(32|64)\b' "$1"
}
report=$(
    for architecture in 75 120; do
        for file in product expert; do
            ptx=$folder/$file.$architecture.ptx
            "$nvcc" "$@" -ptx -arch="compute_$architecture" -o "$ptx" "$sources/$file.cu" 2>&1 ||
                echo "$file.cu does not compile"
            [ "$(floats "$ptx" | wc -l)" -gt 5 ] || echo "$ptx: no operations on floats seen: wrong file"
            floats "$ptx" | grep -vE '^(add|sub|mul)\.rn\.f32$' | say "$ptx"
            grep -oE '\.(ftz|approx|sat)\b' "$ptx" | say "$ptx"
        done
        for used in dp4a.s32.s32 mma.sync.aligned.m ld.global.cs; do
            grep -q "$used" "$folder/product.$architecture.ptx" || echo "product.cu: no $used"
        done
    done
    if command -v cuobjdump >/dev/null; then
        cuobjdump -sass "$plugin" >"$folder/sass"
        grep -qE '\bFADD\b' "$folder/sass" || echo "$plugin: no FADD seen: wrong file"
        grep -oE '\b(FFMA|DFMA|MUFU|F[A-Z]+\.FTZ)\b[.A-Z0-9]*' "$folder/sass" | say "$plugin"
    fi
)
[ -z "$report" ] && exit 0
echo "$report"
exit 1
