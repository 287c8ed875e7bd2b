#!/bin/bash
# speed-ab.sh - is one build of coli faster than another?  Interleaved pairs, and how sure the answer is.
#
#     scripts/speed-ab.sh [-n PAIRS] [-t TURNS] A B [BENCH OPTION...]
#
#     A, B      two programs `coli`; or twice the same, with B's options after a "+":
#                   scripts/speed-ab.sh build/bin/coli build/bin/coli --model bench-4 + --kv f32
#     -n PAIRS  (9)
#     -t TURNS  how often each runs in a pair (6)
#
# In a pair the two take turns, and each turn begins with the one that ended the last: what slows the machine
# for a while then slows both.  A speed is that of the fastest round (--repeat, 5) of all turns of the pair: what
# else runs on the machine only ever slows it, and a virtual machine may be at half its speed for many seconds.
# Prints, for prefill and decode, B's speed over A's: the geometric mean over the pairs with its 95 % interval
# (Student's t on the logarithms).
#
# Exit codes: 0; 1, a program failed; 2, wrong usage.
set -euo pipefail
export LC_ALL=C # numbers with points
usage() {
    echo "speed-ab.sh: $1" >&2
    echo 'usage: scripts/speed-ab.sh [-n PAIRS] [-t TURNS] A B [BENCH OPTION...] [+ OPTION OF B...]' >&2
    exit 2
}
pairs=9 turns=6
while getopts :n:t: option; do
    case $option in
    n) pairs=$OPTARG ;;
    t) turns=$OPTARG ;;
    *) usage "-$OPTARG is no option, or lacks its number" ;;
    esac
done
shift $((OPTIND - 1))
[[ $pairs =~ ^[0-9]{1,4}$ ]] && ((pairs >= 2)) || usage "expected two pairs or more, found \"$pairs\""
[[ $turns =~ ^[0-9]{1,4}$ ]] && ((turns >= 1)) || usage "expected one turn or more, found \"$turns\""
[ $# -ge 2 ] || usage 'which two programs?'
programs=("$1" "$2")
shift 2
for program in "${programs[@]}"; do
    [ -f "$program" ] && [ -x "$program" ] || usage "$program is no program that can be run"
done
both=() only_b=()
while [ $# -gt 0 ] && [ "$1" != + ]; do
    both+=("$1")
    shift
done
if [ $# -gt 0 ]; then only_b=("${@:2}"); fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fastest() { # KEY: of the JSON in $work/out
    tr -d '\n' <"$work/out" |
        sed -nE 's/.*"'"$1"'": *\{"n_token": *[0-9]+, *"tok_s": *\{[^}]*"max": *([-+.0-9eE]+).*/\1/p'
}
measure() { # 0|1 PAIR
    local options=("${both[@]}")
    if [ "$1" = 1 ]; then options+=("${only_b[@]}"); fi
    "${programs[$1]}" bench --backend none --repeat 5 --buffer 64 --json "${options[@]}" >"$work/out" \
        2>"$work/err" </dev/null || { cat "$work/err" >&2 && exit 1; }
    local prefill decode
    prefill=$(fastest prefill) decode=$(fastest decode)
    echo "$1 $2 ${prefill:-0} ${decode:-0}" >>"$work/speeds"
}
for ((pair = 1; pair <= pairs; pair++)); do
    for ((turn = 0; turn < turns; turn++)); do
        measure $((turn % 2)) "$pair"
        measure $((1 - turn % 2)) "$pair"
    done
    awk -v pair="$pair" -v pairs="$pairs" '
        $2 == pair { if ($3 > pre[$1]) pre[$1] = $3; if ($4 > dec[$1]) dec[$1] = $4 }
        END {
            printf "pair %d of %d, tok/s: prefill %.1f and %.1f, decode %.1f and %.1f\n", pair, pairs, pre[0],
                pre[1], dec[0], dec[1]
        }' "$work/speeds" >&2
done

awk -v n="$pairs" '
    # 97.5 % quantile of Student t with f degrees of freedom, to 0.001 for f >= 3 (Cornish and Fisher)
    function quantile(f,    z) {
        if (f == 1) return 12.706
        if (f == 2) return 4.303
        z = 1.959964
        return z + (z^3 + z) / (4 * f) + (5 * z^5 + 16 * z^3 + 3 * z) / (96 * f^2) + \
            (3 * z^7 + 19 * z^5 + 17 * z^3 - 15 * z) / (384 * f^3) + \
            (79 * z^9 + 776 * z^7 + 1482 * z^5 - 1920 * z^3 - 945 * z) / (92160 * f^4)
    }
    function row(name, column,    i, r, sum, square, half) {
        for (i = 1; i <= n; i++) {
            if (!speed[0, i, column] || !speed[1, i, column]) return
            r = log(speed[1, i, column] / speed[0, i, column])
            sum += r
            square += r * r
        }
        sum /= n
        half = (square / n - sum * sum) * n / (n - 1)
        half = quantile(n - 1) * sqrt(half > 0 ? half / n : 0)
        printf "%-8s B / A = %.4f, 95 %% interval %.4f to %.4f, %d pairs\n", name, exp(sum), exp(sum - half),
            exp(sum + half), n
    }
    { for (i = 3; i <= 4; i++) if ($i > speed[$1, $2, i]) speed[$1, $2, i] = $i }
    END { row("prefill", 3); row("decode", 4) }' "$work/speeds"
