#!/bin/bash
# fresh-debian.sh - does the README tell the truth to a newcomer on a new machine?
#
#     scripts/fresh-debian.sh [--only chat|tests] [--root DIR] [--keep]
#
# Makes a minimal Debian 12 in DIR (which must not exist or be empty; default: a temporary one),
# clones the last commit of this repository into it, reads the two command lines out of README.md and
# runs them there: the first with two questions piped in, whose answers it checks; the second until
# ctest reports that all tests passed.  Afterwards DIR is removed unless --keep is given.
#
# Needs root, debootstrap, git, a few GB of disk, and a Debian mirror: DEBIAN_MIRROR, else the one
# that apt uses on this machine.  apt's proxy and network settings are carried over.
#
# The work is done in private mount and process namespaces: however it ends, no mount and no process
# of it is left behind, and removing DIR cannot reach anything that was mounted there.
set -euo pipefail

suite=bookworm
repo=$(cd "$(dirname "$0")/.." && pwd)
only='' root='' keep=''

usage() {
    sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
die() {
    echo "fresh-debian.sh: $*" >&2
    exit 1
}
say() { echo "fresh-debian.sh: $*"; }

while [ $# -gt 0 ]; do
    case $1 in
    --only) only=${2-} && shift ;;
    --root) root=${2-} && shift ;;
    --keep) keep=1 ;;
    *) usage ;;
    esac
    shift || usage
done
case $only in '' | chat | tests) ;; *) usage ;; esac

mirror() {
    if [ -n "${DEBIAN_MIRROR-}" ]; then
        echo "$DEBIAN_MIRROR"
    else
        apt-get update --print-uris 2>/dev/null |
            sed -n "s|^'\(.*\)/dists/$suite/InRelease'.*|\1|p" | sed -n 1p
    fi
}

# What makes apt reach its mirror here must hold inside, too.
carry_apt_settings() {
    apt-config dump 2>/dev/null |
        grep -E '^Acquire::(https?::(Proxy|CaInfo|Timeout)|Retries|ForceIPv[46]|Check-)' \
            >"$root/etc/apt/apt.conf.d/90host" || true
    local ca
    ca=$(sed -n 's/^Acquire::https::CaInfo "\(.*\)";/\1/p' "$root/etc/apt/apt.conf.d/90host")
    if [ -f "$ca" ]; then install -D -m 644 "$ca" "$root$ca"; fi
    cp /etc/hosts /etc/resolv.conf "$root/etc/"
}

in_root() { # COMMAND: in the clone, with the environment of a newcomer
    local proxy=() name
    for name in http_proxy https_proxy no_proxy; do
        [ -z "${!name-}" ] || proxy+=("$name=${!name}")
    done
    chroot "$root" /usr/bin/env -i HOME=/root TERM=dumb "${proxy[@]}" \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        bash -c "cd /root/coli && $1"
}

check_chat() {
    local command scripts=$root/root/coli/scripts
    command=$("$scripts/readme-block.sh" sh 1)
    say "running: $command"
    "$scripts/chat-answers.sh" questions | in_root "$command" 2>&1 | "$scripts/chat-answers.sh" check
    say "chat: Paris and 42"
}

check_tests() {
    local command log=$root/root/tests.log
    command=$("$root/root/coli/scripts/readme-block.sh" sh 2)
    say "running: $command"
    in_root "$command" 2>&1 </dev/null | tee "$log"
    grep -Eq '^100% tests passed, 0 tests failed out of [1-9]' "$log" ||
        die "tests: ctest does not report 100%"
    say "tests: all passed"
}

inside() { # in the namespaces
    debootstrap --variant=minbase "$suite" "$root" "$mirror"
    carry_apt_settings
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    git clone --quiet --no-hardlinks -- "$repo" "$root/root/coli"
    if [ "$only" != tests ]; then check_chat; fi
    if [ "$only" != chat ]; then check_tests; fi
}

if [ -n "${FRESH_DEBIAN_INSIDE-}" ]; then
    mirror=$FRESH_DEBIAN_INSIDE
    inside
    exit
fi

[ "$(id -u)" -eq 0 ] || die "needs root (chroot, mount)"
for tool in debootstrap git unshare; do
    command -v "$tool" >/dev/null || die "$tool is missing: scripts/deps.sh all"
done
mirror=$(mirror)
[ -n "$mirror" ] || die "apt knows no mirror of Debian $suite here: set DEBIAN_MIRROR"
if [ -z "${http_proxy-}" ]; then # debootstrap does not read apt's configuration
    eval "$(apt-config shell http_proxy Acquire::http::Proxy 2>/dev/null)"
    if [ -n "${http_proxy-}" ]; then export http_proxy; fi
fi
if [ -z "$root" ]; then
    root=$(mktemp -d)
    chmod 755 "$root" # apt fetches as a user of its own
else
    mkdir -p "$root"
    root=$(cd "$root" && pwd)
    [ -z "$(ls -A "$root")" ] || die "$root is not empty"
fi
[ -z "$(git -C "$repo" status --porcelain)" ] || say "uncommitted changes are not tested"

trap '[ -n "$keep" ] || rm -rf --one-file-system -- "$root"' EXIT
start=$SECONDS
FRESH_DEBIAN_INSIDE=$mirror unshare --mount --pid --fork --kill-child --propagation private -- \
    "$BASH" "$0" --root "$root" ${only:+--only "$only"}
[ -z "$keep" ] || say "kept: $root"
say "the README holds on a fresh Debian, $((SECONDS - start)) s"
