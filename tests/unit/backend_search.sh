#!/bin/bash
# backend_search.sh COLI LIBCOLI PLUGINS WORK [EMULATOR...] - where backends are found, and where not, as
# a program sees it that was started by a person: a tree of bin and lib with plugins in all places.
#
#   (1) not in the working directory, in PATH or in another directory of LD_LIBRARY_PATH, and not by
#       the bare name of a file
#   (2) beside libcoli, also when that is known by a relative path only
#   (3) in lib/coli/backends, also after the whole tree was moved
#   (4) in COLI_BACKEND_PATH before these; the other of the same name is listed with the reason
#   (5) but no variable counts for a program with more rights than the one who started it
set -uo pipefail
coli=$1 libcoli=$2 plugins=$3 work=$4
shift 4
rm -rf "$work"
mkdir -p "$work"/{tree/bin,tree/lib/coli/backends,here,other}
work=$(cd "$work" && pwd -P)
tree=$work/tree
cp "$coli" "$tree/bin/coli"
cp "$libcoli" "$tree/lib/libcoli.so.0"
unset COLI_BACKEND COLI_BACKEND_PATH COLI_CUDA COLI_VULKAN
failed=0

fail() {
    echo "failed: $*"
    failed=1
}
list() { # what `coli backend list` shows, in the directory `here`
    (cd "$work/here" && LD_LIBRARY_PATH=$tree/lib:$work/other PATH=$work/here:$PATH \
        "${emulator[@]}" "$tree/bin/coli" backend list "$@" 2>&1)
}
shows() { grep -qF -- "$2" <<<"$1" || fail "$3: $2 is not in: $1"; }
hides() { ! grep -qF -- "$2" <<<"$1" || fail "$3: $2 is in: $1"; }
emulator=("$@")

# (1)
cp "$plugins/coli_probe.so" "$work/here"
cp "$plugins/coli_probe.so" "$work/other"
out=$(list) || fail "1: exit code $?: $out"
hides "$out" coli_probe.so 1
out=$(list probe)
[ $? = 2 ] || fail "1: by name: $out"
shows "$out" "$tree/lib/coli_probe.so" 1
shows "$out" "$tree/lib/coli/backends/coli_probe.so" 1
hides "$out" "$work/here" 1
hides "$out" "$work/other" 1
out=$(list coli_probe.so)
[ $? = 2 ] || fail "1: by a bare file name: $out"
hides "$out" "$work/here" 1
shows "$out" 'hint: a file is written with its directory: ./coli_probe.so' 1
out=$(list ./coli_probe.so) || fail "1: by path: $out"
shows "$out" "$work/here/coli_probe.so" 1

# (2)
cp "$plugins/coli_probe.so" "$tree/lib"
out=$(list)
shows "$out" "$tree/lib/coli_probe.so" 2
hides "$out" "$work/here" 2
out=$(cd "$tree" && LD_LIBRARY_PATH=lib "${emulator[@]}" bin/coli backend list)
shows "$out" " $tree/lib/coli_probe.so" '2, relative'

# (3)
mv "$tree/lib/coli_probe.so" "$tree/lib/coli/backends"
shows "$(list)" "$tree/lib/coli/backends/coli_probe.so" 3
mv "$tree" "$work/moved"
tree=$work/moved
shows "$(list probe)" "$tree/lib/coli/backends/coli_probe.so" '3, moved'
out=$(LD_LIBRARY_PATH=$tree/bin/../lib "${emulator[@]}" "$tree/bin/coli" backend list)
shows "$out" " $tree/lib/coli/backends/coli_probe.so" "3, by a detour"

# (4)
export COLI_BACKEND_PATH=$work/other
out=$(list)
shows "$out" "probe      $work/other/coli_probe.so" 4
shows "$out" "not loaded: $work/other/coli_probe.so comes first" 4
shows "$(list --backend-path "$work/here")" "probe      $work/here/coli_probe.so" '4, the option wins'
out=$(COLI_BACKEND_PATH=other list)
[ $? = 2 ] || fail "4, a relative directory: $out"
shows "$out" '"other" is relative' 4

# (5) Only root can make such a program, and only where file systems and emulators let it.  The
# system ignores LD_LIBRARY_PATH for it, too; the program of the build knows where its library is.
cp "$coli" "$work/setuid"
if [ ${#emulator[@]} = 0 ] && [ "$(id -u)" = 0 ] && chown 65534 "$work/setuid" &&
    chmod 4755 "$work/setuid" && chmod -R a+rX "$work" && "$work/setuid" --version >/dev/null 2>&1; then
    out=$("$work/setuid" backend list --backend-path "$work/other" 2>&1)
    shows "$out" "$work/other/coli_probe.so" 5
    out=$("$work/setuid" backend list 2>&1) || fail "5: exit code $?: $out"
    hides "$out" "$work/other" 5
else
    echo 'part 5 was left out: no program can be made here that has more rights than its user'
fi
rm -rf "$work"
exit $failed
