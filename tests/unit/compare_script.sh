#!/bin/bash
# compare_script.sh SCRIPT WORK - scripts/compare.sh with programs that only say numbers.
#
#   (1) the table: medians, the least and the most, ratios within a round, for both kinds of speed
#   (2) rounds take turns, after one that does not count; both get the same threads and counts
#   (3) what is missing or wrong is named, exit code 2, with the way to get the programs
#   (4) a program that fails, or says no speed, ends it with its own words, exit code 1
set -uo pipefail
script=$1 work=$2
rm -rf "$work"
mkdir -p "$work"/{container,empty,path}
work=$(cd "$work" && pwd -P)
cd "$work" || exit 1
touch model.gguf
failed=0

fail() {
    echo "failed: $*"
    failed=1
}
expect() { # CODE TEXT COMMAND...
    local code=$1 text=$2 out
    shift 2
    out=$("$@" 2>&1)
    [ $? = "$code" ] || fail "expected exit code $code: $* said: $out"
    grep -qF -- "$text" <<<"$out" || fail "\"$text\" is not in what $* said: $out"
}

# llama-bench as both projects have it: results with fields that look alike, spaces between.  Its nth
# call says 100 n for prefill and 10 n for decode; coli's 200 n and 5 n, but 4 n from the third on.
cat >path/llama-bench <<'STUB'
#!/bin/bash
echo "other $*" >>calls
n=$(grep -c ^other calls)
echo 'build: 1234 (cpu)' >&2
cat <<JSON
[ { "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ns": 1, "avg_ts": $((100 * n)).5, "stddev_ts": 7.0,
    "samples_ts": [ 1.0 ] },
  { "n_prompt": 0, "n_gen": 32, "avg_ts": $((10 * n)), "samples_ts": [ 2.0 ] } ]
JSON
STUB
cat >path/coli <<'STUB'
#!/bin/bash
echo "coli $*" >>calls
n=$(grep -c ^coli calls)
[ "$n" -ge 3 ] && each=4 || each=5
echo '{"model": {"name": "x"}, "machine": {"stream_gb_s": {"median": 9.9}},' \
    '"prefill": {"n_token": 512, "tok_s": {"median": '$((200 * n + 1))', "min": 1.0, "max": 2.0}},' \
    '"decode": {"n_token": 32, "tok_s": {"median": '$((each * n))'.0, "min": 3.0}}}'
STUB
chmod +x path/*
compare=("$script" -m model.gguf -c container)
stubs=("${compare[@]}" -b path/llama-bench -x path/coli -t 3)

# (1) rounds 1 to 3 are the calls 2 to 4
out=$("${stubs[@]}" -r 3 2>err) || fail "exit code $?: $(cat err)"
while read -r cell; do
    grep -qF -- "$cell" <<<"$(tr -s ' ' <<<"$out")" || fail "$cell is not in: $out"
done <<'CELLS'
3 threads, 3 rounds
| prefill 512 | 300.50 (200.50 to 400.50) | 601.00 (401.00 to 801.00) | 2.00 (2.00 to 2.00) |
| decode 32 | 30.00 (20.00 to 40.00) | 12.00 (10.00 to 16.00) | 0.40 (0.40 to 0.50) |
CELLS

# (2)
[ "$(cut -d' ' -f1 calls | tr '\n' ' ')" = 'other coli other coli coli other other coli ' ] ||
    fail "order: $(cat calls)"
grep -q '^other -m model.gguf -t 3 -p 512 -n 32 ' calls || fail "arguments: $(cat calls)"
grep -q '^coli bench --model container .*--threads 3 --prefill 512 --decode 32 ' calls ||
    fail "arguments: $(cat calls)"
out=$("${stubs[@]}" -p 0 -r 2 2>/dev/null) || fail "-p 0: exit code $?"
! grep -q prefill <<<"$out" || fail "-p 0: $out"
rm calls
expect 0 '| decode 32' env PATH="$work/path:$PATH" "${compare[@]}" -x path/coli -r 1

# (3)
plain=$(dirname "$(command -v awk)"):$(dirname "$(command -v bash)")
if ! PATH=$plain command -v llama-bench >/dev/null; then
    expect 2 'there is no llama-bench in the PATH' env PATH="$plain" "${compare[@]}"
    expect 2 'git clone https://github.com/ggml-org/llama.cpp' env PATH="$plain" "${compare[@]}"
fi
expect 2 'nowhere is no program that can be run' "${compare[@]}" -b nowhere
expect 2 'empty is no program that can be run' "${compare[@]}" -b path/llama-bench -x empty
expect 2 'cmake --preset release' "${compare[@]}" -b path/llama-bench -x empty
expect 2 'which GGUF model' "$script" -c container -b path/llama-bench -x path/coli
expect 2 'no file other.gguf' "${stubs[@]}" -m other.gguf
expect 2 'which container' "$script" -m model.gguf -b path/llama-bench -x path/coli
expect 2 'no directory nowhere' "${stubs[@]}" -c nowhere
expect 2 'found "many"' "${stubs[@]}" -t many
expect 2 'must be 1 or more' "${stubs[@]}" -r 0
expect 2 'nothing to measure' "${stubs[@]}" -p 0 -n 0
expect 2 'needs an argument' "${stubs[@]}" -r
expect 2 'no option -z' "${stubs[@]}" -z
expect 2 'what is "more"' "${stubs[@]}" more

# (4)
cat >path/broken <<'STUB'
#!/bin/bash
echo 'error: unknown model architecture' >&2
exit 1
STUB
printf '#!/bin/bash\necho "[]"\n' >path/silent
chmod +x path/broken path/silent
expect 1 'unknown model architecture' "${stubs[@]}" -b path/broken
expect 1 'path/broken bench failed' "${stubs[@]}" -x path/broken
expect 1 'no speed in what path/silent printed' "${stubs[@]}" -b path/silent
expect 1 'no speed in what path/silent bench printed' "${stubs[@]}" -x path/silent
exit $failed
