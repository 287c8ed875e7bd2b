#!/bin/bash
# windows-check.sh [BIN] - build for Windows, pack it, and look under wine whether it does what it does here.
#
#   1. it builds; programs need system libraries only; no vector move that wants an aligned address
#   2. of the tests, those pass that look at kernels, digests, paths, threads, the loader and devices
#   3. the zip, unpacked into a folder with a long name in many alphabets, gives the bytes that the programs
#      of this system in BIN (build/bin) give: answers, tokens, logits, containers
#   4. backends are found where the zip has them and beside the library, not in the working directory; bad
#      ones are refused with the reason
#   5. a chat at a console: typed lines, Ctrl-C that stops an answer and keeps the conversation
#
# scripts/deps.sh windows brings compiler and wine.  Leaves everything in build-mingw.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$(cd "${1-build/bin}" && pwd)
root=$PWD build=$PWD/build-mingw
export LC_ALL=C.UTF-8
step() { printf '%s: %s (%d s)\n' windows-check.sh "$1" "$SECONDS"; }
fail() { echo "windows-check.sh: $*" >&2 && exit 1; }

step 'build'
scripts/windows-deps.sh
cmake --preset mingw >/dev/null
tests=(base_error host_test lane_test math_unit path_test plugin_windows_test digests kernels_prop
    reference_prop fake_prop placement)
cmake --build --preset mingw --target coli coli_cli qwen36 backends "${tests[@]}" -- --quiet

for file in "$build"/bin/{coli.exe,qwen36.exe,*.dll}; do
    needs=$(x86_64-w64-mingw32-objdump -p "$file" | sed -n 's/.*DLL Name: //p' | sort | tr '\n' ' ')
    [[ $needs =~ ^(KERNEL32.dll |SHELL32.dll |libcoli.dll |msvcrt.dll )*$ ]] || fail "$file needs $needs"
    aligned=$(x86_64-w64-mingw32-objdump -d "$file" | grep -cE '\svmov(aps|apd|dqa)' || true)
    [ "$aligned" = 0 ] || fail "$file: $aligned vector moves to or from aligned addresses"
done

# One wine server for all that follows: it would be started again for every program.  On a busy machine
# the first start of all may take longer than wine has patience for; the next one finds it done.
export WINEPREFIX=$build/wine
scripts/wine.sh "$WINEPREFIX" cmd /c ver >/dev/null || scripts/wine.sh "$WINEPREFIX" cmd /c ver ||
    fail 'wine does not start'
server=$(command -v /usr/lib/wine/wineserver wineserver | head -n 1)
WINEDEBUG=-all "$server" -p >/dev/null 2>&1 || true
trap '"$server" -k >/dev/null 2>&1 || true' EXIT
wine() { "$root/scripts/wine.sh" "$WINEPREFIX" "$@"; }

step 'tests'
names=$(IFS='|' && echo "${tests[*]}")
ctest --preset mingw --tests-regex "\\.($names)(_fake)?\$" >"$build/ctest.log" 2>&1 || { cat "$build/ctest.log" && exit 1; }
grep 'tests passed' "$build/ctest.log"

step 'the same bytes'
zip=$PWD/$(scripts/windows-zip.sh)
long=$(printf 'a folder with a long name, %.0s' {1..4})really
work=$build/check/'Ünïcödé Ελλάδα 鳥 🐦'
rm -rf "$build/check"
mkdir -p "$work/$long/$long/$long"
cmake -E chdir "$work" cmake -E tar xf "$zip"
mv "$work"/coli-*/ "$work/coli"
cp -r models/hummingbird "$work/$long/$long/$long/ein größerer Vogel"
model="$work/$long/$long/$long/ein größerer Vogel"
[ ${#model} -gt 350 ] || fail "$model is not long"

# Both programs get the same input and give the same output and exit code.  Where files are written, each
# writes its own: @ in an argument stands for a folder.
n_same=0
same() { # PROGRAM ARGUMENT...
    local program=$1 code_here=0 code_there=0
    shift
    mkdir -p "$build"/check/{here,there}
    "$here/$program" "${@//@/$build/check/here}" <"$input" >"$build/check/here.out" \
        2>"$build/check/here.err" || code_here=$?
    wine "$work/coli/bin/$program.exe" "${@//@/$build/check/there}" <"$input" >"$build/check/there.out" \
        2>"$build/check/there.err" || code_there=$?
    # what is said may differ in numbers, which are measured, and in that folder
    sed -i 's/[0-9.]//g; s|check/here|check/there|g' "$build"/check/{here,there}.err
    if [ "$code_here" != "$code_there" ] || ! cmp "$build"/check/{here,there}.out ||
        ! diff "$build"/check/{here,there}.err || ! diff -r "$build"/check/{here,there}; then
        cat "$build"/check/{here,there}.err >&2
        fail "$program $*: exit codes $code_here and $code_there, or something differs"
    fi
    n_same=$((n_same + 1))
}
input=/dev/null
story='Tell me a story about a fox.'
same coli run --temp 0 "$story"
same coli run --seed 7 --temp 1.5 -n 80 "$story"
same coli run --threads 1 --seed 8 --top-k 0 --top-p 1 -n 80 'Was heißt "Größe"? 鳥は 🐦'
for isa in scalar avx2 avxvnni avx512; do
    same coli run --isa $isa --temp 0 --no-think 'What is 17 + 25?' # exit code 2 where it is missing
done
same coli run --model "$model" --temp 0 --no-think 'What is the capital of France?'
COLI_MODEL=$model same coli run --temp 0 --no-think 'What is the capital of France?'
same coli info --json --model "$model"
same coli verify "$model"
same coli tokenize 'Was heißt "Größe"? \ \" ' '' '*' '鳥は 🐦'
same coli tokenize --plain '<|im_start|>'
same coli run --model "$work/absent" hello
same coli run --tmep 0 hello
input=$build/check/lines.txt
printf '%s\n' 'What is the capital of France?' 'What is 17 + 25?' ':reset' "$story" >"$input"
same coli chat --temp 0
same coli chat --seed 3 --no-think
input=$build/check/lines.jsonl
printf '{"text": "%s"}\n' 'Zeile\r\nZeile\u001a\n' 'Größe 鳥 🐦 ﷽' '<|im_start|>' >"$input"
same coli tokenize --jsonl
grep -q 鳥 "$build/check/there.out" || fail 'tokenize --jsonl: the text did not come back'
printf '{"messages": [{"role": "user", "content": "Größe 鳥"}]}\n' >"$input"
same coli render --jsonl
echo '[1, 85, 2, 300, 7, 1021, 12, 9]' >"$input"
same qwen36 --ids - -n 32
same qwen36 --ids - --dump-logits @/logits.safetensors
same qwen36 --teacher-force -
input=/dev/null
same coli convert --experts int4 --trunk int8 tests/fixtures/qwen36-tiny-a @/converted
same coli convert --experts f32 --trunk bf16 tests/fixtures/qwen36-tiny-c "@/größer 鳥"
same coli convert tests/fixtures/qwen36-tiny-a @/converted # which is there
same coli synth --like hummingbird --layers 2 --seed 5 @/synth/
same coli pack "$model" @/model.tar
same coli unpack @/model.tar "@/größer 鳥 2"
same coli unpack @/model.tar @/converted # which is there
same coli bench --model @/absent
for vram in 0% 50% 100%; do
    same coli run --backend fake --vram $vram --place all --seed 7 --temp 1.5 -n 80 "$story"
done
step "$n_same commands: equal"

# The README's program, built against the unpacked folder and put beside the library.
scripts/readme-block.sh c 1 >"$build/check/readme.c"
x86_64-w64-mingw32-gcc-posix -static-libgcc -I"$work/coli/include" -o "$work/coli/bin/readme.exe" \
    "$build/check/readme.c" -L"$work/coli/lib" -lcoli
[[ $(wine "$work/coli/bin/readme.exe") = *42* ]] || fail 'the program of the README does not say 42'

step 'doctor and report'
wine "$work/coli/bin/coli.exe" doctor --backend none >"$build/check/doctor" 2>&1 ||
    { cat "$build/check/doctor" >&2 && fail 'doctor finds a problem'; }
wine "$work/coli/bin/coli.exe" report --backend none "C:\\Users\\somebody\\a\\b.coli" >"$build/check/report"
grep -q 'Windows' "$build/check/report" || fail 'the report does not name the system'
! grep -qE 'somebody|[A-Z]:\\' "$build/check/report" || fail 'the report tells a path'

step 'backends'
list() { wine "$work/coli/bin/coli.exe" backend list "$@" 2>&1 | tr '\\' / >"$build/check/list"; }
expect() { grep -q "$@" "$build/check/list" || { cat "$build/check/list" >&2 && fail "no line \"$*\""; }; }
plugins=$build/tests/plugins
list
expect 'fake .*/coli/bin/../lib/coli/backends/coli_fake.dll'
mv "$work"/coli/lib/coli/backends/coli_fake.dll "$work/coli/bin/"
cp "$plugins/coli_probe.dll" "$work/coli/bin/coli_other.dll"
cp "$plugins"/coli_{data,depends}.dll "$work/coli/bin/"
echo 'no library' >"$work/coli/bin/coli_text.dll"
head -c 3000 "$plugins/coli_probe.dll" >"$work/coli/bin/coli_cut.dll"
cp "$plugins/coli_twin.dll" "$build/check/"
cd "$build/check"
list
expect 'fake .*/coli/bin/coli_fake.dll'
expect 'it calls itself "probe"; rename the file to coli_probe.dll'
expect 'exported, but no functions: coli_backend_open'
expect 'a library that it needs is missing'
[ "$(grep -c 'not a library for this machine, or damaged' list)" = 2 ] || { cat list >&2 && fail 'text, cut'; }
! grep -q twin list || fail 'a backend was taken from the working directory'
cd - >/dev/null
list --backend-path "Z:$plugins"
expect "twin .*$plugins/coli_twin.dll"
rm "$work"/coli/bin/coli_{other,data,depends,text,cut}.dll
code=0
wine "$work/coli/bin/coli.exe" run --backend twin hello >"$build/check/list" 2>&1 || code=$?
[ $code = 2 ] || fail "a backend that is not there: exit code $code"
expect 'coli_twin.dll: file: no such file'

step 'a chat at a console'
log=$build/check/console.txt
shown() { sed 's/\x1b\[?25[hl]//g; s/\x1b\[K\x1b\[1C/ /g' "$log"; } # without what wine's console adds
comes() { # REGEX N_TRY: whether it is on the console soon, which is looked at as one line
    local i
    for ((i = 0; i < $2; i++)); do
        if shown 2>/dev/null | tr -d '\r\n' | grep -qE -- "$1"; then return; fi
        sleep 0.05
    done
    return 1
}
await() { # REGEX
    if comes "$1" 600; then return; fi
    shown >&2
    fail "a chat at a console: \"$1\" does not come"
}
talk() {
    await 'can be typed here'
    printf 'What is 17 + 25?\r' && await '17 \+ 25 = 42'
    # An answer may be over before Ctrl-C comes, or not have begun.  The next try waits until no Ctrl-C
    # before it can be within the two seconds that would make them two of a kind.
    local delay
    for delay in 0.1 0.03 0.3 1 3; do
        printf '%s\r' "$story" && sleep $delay && printf '\003'
        if comes 'stopped' 200; then break; fi
    done
    await 'stopped[^>]*> ' # the prompt below it, which begins those two seconds
    sleep 2.5
    printf 'dropped\003' && sleep 1 # wine tells the program on a thread of its own, which may be late
    printf 'Größe 鳥?\r' && await 'Größe 鳥\?'
    printf 'What is the capital of France?\r' && await 'is Paris'
    printf '\004'
}
rm -f "$log"
slow='--isa scalar --threads 1' # so that there is something to stop
# exec: a shell that stays would take Ctrl-C, too, and end with 130 when all is over
talk | TERM=xterm script -qefc "exec scripts/wine.sh '$WINEPREFIX' '$build/bin/coli.exe' chat --no-think --temp 0 $slow" \
    "$log" >/dev/null || { code=$? && shown >&2 && fail "a chat at a console: exit code $code"; }
! shown | grep -q 'dropped.*Paris' || fail 'a line that Ctrl-C dropped was said'

step 'all is well'
