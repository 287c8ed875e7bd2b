#!/bin/bash
# compare.sh - coli's speed beside llama.cpp's or ik_llama.cpp's, on this machine, in one run.
#
#     scripts/compare.sh -m MODEL.gguf -c CONTAINER [options]
#
#     -m FILE    the model for llama-bench
#     -c DIR     the model for coli: the same geometry, the same bits per weight as nearly as can be.  Speed
#                does not depend on what weights say, so `coli synth` makes one of any geometry
#     -b FILE    llama-bench itself, of either project; else the one in the PATH
#     -x FILE    coli itself; else the one in build/bin, else the one in the PATH
#     -t N       threads of both; else all processors
#     -p N       tokens of the prompt (512; 0: no prefill)
#     -n N       tokens made one by one (32; 0: no decode)
#     -r N       rounds (5)
#
# A round runs one program right after the other, and the next round begins with the other one: what slows
# the machine for a while then slows both.  Weights are brought into memory before by a round that does
# not count.  The table gives medians with the least and the most of all rounds; the ratio is coli's
# speed over the other's in the same round, and above 1 coli was the faster.  Both run on the
# processor alone.
#
# Exit codes: 0; 1, a program failed or printed no speed; 2, wrong usage or a program is missing.
set -uo pipefail
export LC_ALL=C # numbers with points
me=compare.sh
here=$(cd "$(dirname "$0")/.." && pwd)
model='' container='' bench='' coli='' threads='' n_prompt=512 n_decode=32 rounds=5

usage() {
    echo "$me: $1" >&2
    echo "usage: scripts/compare.sh -m MODEL.gguf -c CONTAINER [-b LLAMA-BENCH] [-x COLI] [-t THREADS] [-p N] [-n N] [-r N]" >&2
    exit 2
}
while getopts :m:c:b:x:t:p:n:r: option; do
    case $option in
    m) model=$OPTARG ;;
    c) container=$OPTARG ;;
    b) bench=$OPTARG ;;
    x) coli=$OPTARG ;;
    t) threads=$OPTARG ;;
    p) n_prompt=$OPTARG ;;
    n) n_decode=$OPTARG ;;
    r) rounds=$OPTARG ;;
    :) usage "-$OPTARG needs an argument" ;;
    *) usage "there is no option -$OPTARG" ;;
    esac
done
shift $((OPTIND - 1))
[ $# = 0 ] || usage "what is \"$1\"?"

# -- the two programs and their models ---------------------------------------------------------------

[ -n "$bench" ] || bench=$(command -v llama-bench) || bench=''
if ! { [ -n "$bench" ] && [ -f "$bench" ] && [ -x "$bench" ]; }; then
    cat >&2 <<TEXT
$me: $([ -n "$bench" ] && echo "$bench is no program that can be run" || echo "there is no llama-bench in the PATH")
To get it from llama.cpp (ik_llama.cpp, https://github.com/ikawrakow/ik_llama.cpp, is built likewise):
    git clone https://github.com/ggml-org/llama.cpp
    cmake -S llama.cpp -B llama.cpp/build -DCMAKE_BUILD_TYPE=Release
    cmake --build llama.cpp/build --target llama-bench -j
then name it with -b llama.cpp/build/bin/llama-bench
TEXT
    exit 2
fi
if [ -z "$coli" ]; then
    coli=$here/build/bin/coli
    [ -x "$coli" ] || coli=$(command -v coli) || coli=''
fi
if ! { [ -n "$coli" ] && [ -f "$coli" ] && [ -x "$coli" ]; }; then
    cat >&2 <<TEXT
$me: $([ -n "$coli" ] && echo "$coli is no program that can be run" || echo "there is no coli in build/bin or the PATH")
To build it:
    cmake --preset release
    cmake --build --preset release
or name one with -x
TEXT
    exit 2
fi
[ -n "$model" ] || usage 'which GGUF model? -m FILE'
[ -f "$model" ] || usage "there is no file $model"
[ -n "$container" ] || usage 'which container? -c DIR; coli synth makes one'
[ -d "$container" ] || usage "there is no directory $container"
[ -n "$threads" ] || threads=$(getconf _NPROCESSORS_ONLN)
for number in "$threads" "$n_prompt" "$n_decode" "$rounds"; do
    [[ $number =~ ^[0-9]{1,7}$ ]] || usage "expected a number, found \"$number\""
done
((threads > 0 && rounds > 0)) || usage '-t and -r must be 1 or more'
((n_prompt + n_decode > 0)) || usage '-p 0 -n 0 leaves nothing to measure'

# -- one measurement ---------------------------------------------------------------------------------

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed() { # PROGRAM: its messages are in $work/err
    echo "$me: $1 failed; the last it said:" >&2
    tail -n 5 "$work/err" | sed 's/^/    /' >&2
    exit 1
}

# Each sets prefill and decode, in tokens per second.  llama-bench repeats by itself unless told not to.
run_other() {
    "$bench" -m "$model" -t "$threads" -p "$n_prompt" -n "$n_decode" -r 1 -ngl 0 -o json \
        >"$work/out" 2>"$work/err" </dev/null || failed "$bench"
    # one result per test, {... "n_prompt": 512, "n_gen": 0, ... "avg_ts": 12.3 ...}
    speeds=$(tr -d '\n' <"$work/out" | sed 's/}/}\n/g' | awk '
        function value(key) {
            if (!match($0, "\"" key "\": *[-+.0-9eE]+")) return 0
            at = substr($0, RSTART, RLENGTH)
            sub(/^[^:]*: */, "", at)
            return at + 0
        }
        value("avg_ts") > 0 { if (value("n_gen") > 0) gen = value("avg_ts"); else pp = value("avg_ts") }
        END { print pp + 0, gen + 0 }')
    read -r prefill decode <<<"$speeds"
}
run_coli() {
    "$coli" bench --model "$container" --backend none --threads "$threads" --prefill "$n_prompt" \
        --decode "$n_decode" --repeat 1 --buffer 64 --json >"$work/out" 2>"$work/err" </dev/null ||
        failed "$coli bench"
    # "prefill": {"n_token": 512, "tok_s": {"median": 12.3, ...
    median() {
        tr -d '\n' <"$work/out" |
            sed -nE 's/.*"'"$1"'": *\{"n_token": *[0-9]+, *"tok_s": *\{"median": *([-+.0-9eE]+).*/\1/p'
    }
    prefill=$(median prefill) decode=$(median decode)
}
measure() { # coli|other ROUND
    "run_$1"
    if [ "$n_prompt" -gt 0 ] && ! above_0 "$prefill" || [ "$n_decode" -gt 0 ] && ! above_0 "$decode"; then
        echo "$me: no speed in what $([ "$1" = coli ] && echo "$coli bench" || echo "$bench") printed" >&2
        exit 1
    fi
    [ "$2" = 0 ] && return
    echo "$1 $2 ${prefill:-0} ${decode:-0}" >>"$work/speeds"
    printf 'round %s of %s: %-5s  prefill %s, decode %s tok/s\n' "$2" "$rounds" "$1" "${prefill:-0}" \
        "${decode:-0}" >&2
}
above_0() { awk -v x="${1:-0}" 'BEGIN { exit !(x > 0) }'; }

# -- rounds, then the table --------------------------------------------------------------------------

measure other 0
measure coli 0
for ((round = 1; round <= rounds; round++)); do
    if ((round % 2)); then
        measure other "$round"
        measure coli "$round"
    else
        measure coli "$round"
        measure other "$round"
    fi
done

awk -v threads="$threads" -v n_prompt="$n_prompt" -v n_decode="$n_decode" -v rounds="$rounds" '
    function sorted_spread(v, n,    i, j, x) { # "median  min  max"
        for (i = 2; i <= n; i++) {
            x = v[i]
            for (j = i - 1; j > 0 && v[j] > x; j--) v[j + 1] = v[j]
            v[j + 1] = x
        }
        x = n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
        return sprintf("%.2f (%.2f to %.2f)", x, v[1], v[n])
    }
    function row(name, column,    i, a, b, c) {
        for (i = 1; i <= rounds; i++) {
            a[i] = speed["other", i, column]
            b[i] = speed["coli", i, column]
            c[i] = b[i] / a[i]
        }
        printf "| %-14s | %30s | %30s | %27s |\n", name, sorted_spread(a, rounds),
            sorted_spread(b, rounds), sorted_spread(c, rounds)
    }
    { speed[$1, $2, 3] = $3; speed[$1, $2, 4] = $4 }
    END {
        printf "%d threads, %d rounds; median (least to most)\n\n", threads, rounds
        printf "| %-14s | %30s | %30s | %27s |\n", "", "llama-bench, tok/s", "coli, tok/s", "coli / llama-bench"
        printf "|:---------------|-------------------------------:|-------------------------------:|----------------------------:|\n"
        if (n_prompt > 0) row("prefill " n_prompt, 3)
        if (n_decode > 0) row("decode " n_decode, 4)
    }' "$work/speeds"
