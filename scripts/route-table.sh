#!/bin/bash
# route-table.sh [OPTION...] - what cache-aware routing costs and gains on the demo model, as a table: ranks that
# are always taken (J), the window (M), the window by mass (P) and the weight of substitutes (alpha), with a
# quarter and three eighths of the experts in VRAM.  Against the same model with plain routing.
#
#     scripts/route-table.sh                            the build in build/, the simulated device
#     COLI=build-dev/bin/coli scripts/route-table.sh    another build
#     scripts/route-table.sh --model F32 --every 4      options of `coli bench`, for all runs
#     SHARES="50 80" scripts/route-table.sh             other shares of the experts
#     BACKEND=vulkan scripts/route-table.sh             a real device: then speed means something
#
# The verdict of a line is that of perplexity within 1 % and KL within 0.01 (docs/quality.md).  tok/s is how fast
# the texts were scored here, which on a simulated device and a busy machine says little.  The last column is
# how fast a 35B would decode with such hits on the machine that docs/replan.md makes up: 27 ms a token, and
# 1,671,168 bytes at 25 GB/s for each of its 320 experts that is not in VRAM.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
coli=${COLI:-$root/build/bin/coli}
tasks=${TASKS:-$root/tests/fixtures/hummingbird/ppl.jsonl}
heat=${HEAT:-$root/tests/fixtures/hummingbird/heat.bin}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$coli" bench --quality "$tasks" --backend none --record "$work/base" "$@" >/dev/null 2>"$work/err" ||
    { cat "$work/err" >&2 && exit 1; }

cell() { # FILE PATTERN FIELD: a field of the first line that has the pattern, counted from the end of it
    awk -v field="$3" -v pattern="$2" 'i = index($0, pattern) { split(substr($0, i + length(pattern)), f, " ")
        print f[field]; exit }' "$1"
}

line() { # SHARE J M P ALPHA [OPTION...]: one row
    local share=$1 j=$2 m=$3 p=$4 alpha=$5 out=$work/out code=0
    shift 5
    "$coli" bench --quality "$tasks" "${common[@]}" --compare "$work/base" \
        "--backend ${BACKEND:-fake} --place off --vram $share% --heat '$heat' --heat-readonly $*" \
        --limit ppl=1%,kl=0.01 >"$out" 2>"$work/err" || code=$?
    [ "$code" = 0 ] || [ "$code" = 3 ] || [ "$code" = 4 ] || { cat "$work/err" >&2 && exit 1; }
    local swapped=0.0
    grep -q 'swapped' "$out" && swapped=$(cell "$out" 'swapped' 1)
    local hits
    hits=$(cell "$out" 'hit rate' 1)
    printf '| %s %% | %s | %s | %s | %s | %s %% | %s %% | %s %% | %s | %s %% | %s | %s | %s |\n' \
        "$share" "$j" "$m" "$p" "$alpha" "$swapped" "$hits" \
        "$(awk '/^perplexity/ { print $5 }' "$out")" "$(awk '/^KL/ { print $4 }' "$out")" \
        "$(awk '/^same best token/ { print $6 }' "$out")" "$(cell "$out" 'verdict:' 1)" \
        "$(cell "$out" ' s, ' 1)" "$(awk -v h="$hits" 'BEGIN { printf "%.1f", 1000 / (27 + 320 * (1 - h / 100) * 1671168 / 25e6) }')"
}

common=("$@")
echo '| in VRAM | J | M | P | alpha | swapped | VRAM hits | perplexity | KL | same best token | verdict | tok/s | 35B tok/s |'
echo '|---|---|---|---|---|---|---|---|---|---|---|---|---|'
for share in ${SHARES:-25 37.5}; do
    line "$share" plain '' '' ''
    for j in 0 1 2; do
        for m in 8 12 16 24; do
            line "$share" "$j" "$m" 0 1 --cache-route --route-j "$j" --route-m "$m"
        done
    done
    for alpha in 0.5 0.75; do
        line "$share" 2 12 0 "$alpha" --cache-route --route-alpha "$alpha"
    done
    for p in 0.5 0.7 0.9; do
        line "$share" 2 '' "$p" 1 --cache-route --route-p "$p"
    done
done
