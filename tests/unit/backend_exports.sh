#!/bin/bash
# backend_exports.sh HEADER NM READELF PLUGIN... - what backend plugins show to the world.
#
#   (1) A plugin exports coli_backend_info and functions of the list in coli/backend.h, all that are
#       mandatory, and nothing else.
#   (2) It needs no library of ours and nothing that one of ours would have to bring.
set -uo pipefail
header=$1 nm=$2 readelf=$3
shift 3

entries() { # RESOLVE or RESOLVE_OPT: the names of that kind in the list
    grep -oE "^ *$1 *\([0-9]+, [^,]+, *[a-z_]+," "$header" | sed -E 's/.*, *([a-z_]+),$/coli_backend_\1/'
}
mandatory=$(printf 'coli_backend_info\n%s\n' "$(entries RESOLVE)" | sort)
all=$(printf '%s\n%s\n' "$mandatory" "$(entries RESOLVE_OPT)" | sort)
[ "$(wc -l <<<"$mandatory")" = 10 ] && [ "$(wc -l <<<"$all")" = 19 ] || {
    echo "cannot read the list of $header: $all"
    exit 1
}
say() { # WHAT: a line of input each is wrong
    sed "s|^|$plugin $1 |"
}
report=$(
    for plugin; do
        exported=$("$nm" --dynamic --defined-only "$plugin" | awk '{ print $NF }' | sed 's/@.*//' |
            grep -vE '^(_init|_fini|_*(asan|odr_asan|tsan|ubsan)[_.])' | sort -u)
        comm -13 <(echo "$all") <(echo "$exported") | say 'exports what is not in the list:'
        comm -23 <(echo "$mandatory") <(echo "$exported") | say 'does not export'
        "$nm" --dynamic --undefined-only "$plugin" | awk '{ print $NF }' | grep '^coli_' |
            say 'wants from others'
        "$readelf" --dynamic --wide "$plugin" | grep NEEDED | grep -i coli | say 'links one of ours:'
    done
)
[ -z "$report" ] && exit 0
echo "$report"
exit 1
