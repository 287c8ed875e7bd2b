#!/bin/bash
# deps.sh - install what building and testing needs, on Debian 12 or newer.
#
#     scripts/deps.sh        to build, run and test
#     scripts/deps.sh all    the same, and what contributors and continuous integration use
#     scripts/deps.sh aarch64
#                            to build for aarch64 on another processor and to test under an emulator
#     scripts/deps.sh windows
#                            to build for 64-bit Windows and to test under wine
#
# Says nothing and needs no network when everything is there.  Uses sudo unless run by root.
set -euo pipefail

base='
gcc             C compiler
g++             a test: the public headers compile as C++17
libc6-dev       C library headers (gcc only recommends them)
cmake           the build, 3.25 or newer
ninja-build     runs the build on all cores
pkg-config      how CMake finds the libraries below
libjansson-dev  JSON: configuration, tokenizer, chat messages
libpcre2-dev    the tokenizer pattern
libutf8proc-dev Unicode normalisation of the text to tokenize
libxxhash-dev   checksums of the weights
libedit-dev     line editing in the chat
libcmocka-dev   the tests
'
more='
libvulkan-dev           the Vulkan backend
libvulkan-volk-dev      its loader of Vulkan
glslc                   compiles its kernels
mesa-vulkan-drivers     lavapipe, a Vulkan device on the processor, for its tests
vulkan-validationlayers look at how it uses Vulkan
clang              second compiler; libFuzzer
libclang-rt-14-dev sanitizer and libFuzzer runtimes of clang
clang-format       the layout of the source
debootstrap        scripts/fresh-debian.sh
git                scripts/fresh-debian.sh
'
cross='
gcc-aarch64-linux-gnu C compiler for aarch64
g++-aarch64-linux-gnu C++ compiler for aarch64
libc6-dev-arm64-cross its C library
qemu-user             the emulator
'
windows='
gcc-mingw-w64-x86-64-posix C compiler for 64-bit Windows, with its pthreads
g++-mingw-w64-x86-64-posix C++ compiler
dpkg-dev                   unpacks the sources of scripts/windows-deps.sh
wine64                     runs the programs
zip                        packs them
'

case "${1-}" in
'') list=$base ;;
all) list=$base$more ;;
aarch64) # and the libraries once more, for that processor
    list=$base$cross$(sed -n '/^libc6/d; s/^\(lib[^ ]*\) /\1:arm64 /p' <<<"$base")
    ;;
windows) list=$base$windows ;;
*)
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "deps.sh: this is not a Debian system.  Install the like of:$list" >&2
    exit 1
fi

here=$(dpkg --print-architecture)
missing=()
while read -r package _; do
    [ -n "$package" ] || continue
    architecture=$here
    [[ $package != *:* ]] || architecture=${package#*:}
    # one line per architecture; another one's library does not serve this one's compiler
    dpkg-query --show --showformat='${Architecture} ${db:Status-Status}\n' "${package%:*}" 2>/dev/null |
        grep -Eqx "($architecture|all) installed" || missing+=("$package")
done <<<"$list"
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "deps.sh: run as root: apt-get install ${missing[*]}" >&2
        exit 1
    }
    as_root=(sudo)
fi
echo "deps.sh: installing ${missing[*]}" >&2
# Standard input is left alone: it may hold the conversation of the command that comes after.
# apt-get's report goes to standard error for the same reason.
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get --quiet "$@" </dev/null >&2; }
if [[ "${missing[*]}" = *:arm64* && $(dpkg --print-foreign-architectures) != *arm64* ]]; then
    "${as_root[@]}" dpkg --add-architecture arm64
fi
apt update
apt install --yes --no-install-recommends "${missing[@]}"
