#!/bin/bash
# tree_rules.sh SOURCE LIBRARY OBJECT_LIST NM - the rules of the tree that tools can check.
#
#   (1) The library exports exactly the functions that the public headers declare with COLI_API.
#   (2) Below apps/ nothing prints, exits or reads the environment: seen in what the objects import,
#       so no spelling escapes.  (assert may abort; it is for our own bugs.  A forked child has no
#       other way to end than _exit.)
#   (3) No function of libm that may round differently elsewhere: no exp, sin, pow, ...  Square root,
#       rounding to integers, fma, ldexp and the like are exact everywhere.
#   (4) #ifdef _WIN32 only in libcoli/src/base (and in the public headers, for the export marks).
#   (5) Fixtures stay small: no file of the tree over 30 MB, tests/fixtures as a whole neither.
#   (6) Every relative link in the documentation, and every docs/ page that anything names, is there.
#   (7) Nothing points back: base <- math <- model <- backend <- moe <- engines <- run.  No file includes
#       a header of a layer that stands behind its own in this line.
set -uo pipefail
source=$1 library=$2 objects=$3 nm=$4

rule() { # NUMBER TEXT: what breaks the rule comes in, one per line
    local found
    found=$(cat)
    [ -z "$found" ] || printf 'rule %s: %s:\n%s\n' "$1" "$2" "$found"
}

declared=$(grep -hoE '^COLI_API [^;(]*\(' "$source"/libcoli/include/coli/*.h |
    sed -E 's/ *\($//; s/.*[ *]//' | sort -u)
exported=$("$nm" --dynamic --defined-only "$library" | awk '{ print $NF }' | sed 's/@.*//' |
    grep -vE '^(_init|_fini|_*(asan|odr_asan|tsan|ubsan)_)' | sort -u)
# "object symbol" for everything that an object needs from elsewhere
imported=$(while read -r object; do
    "$nm" --undefined-only "$object" | awk -v o="${object##*.dir/}" '{ print o, $NF }'
done <"$objects" | sed 's/@.*//')

talk='stdout|stderr|v?printf|__v?printf_chk|puts|putchar|perror|psignal|error|errx?|warnx?'
talk+='|exit|_exit|_Exit|quick_exit|abort|system|popen|(secure_)?getenv|setenv|putenv|unsetenv|environ'
inexact='exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|cbrt|hypot|sin|cos|tan|sincos|asin|acos|atan|atan2'
inexact+='|sinh|cosh|tanh|asinh|acosh|atanh|erf|erfc|tgamma|lgamma'

links() {
    cd "$source" || return
    find ./*.md docs models tests -name '*.md' -print | while read -r page; do
        grep -oE '\]\([^)#:]+[)#]' "$page" | sed -E 's/^\]\(//; s/[)#]$//' | while read -r link; do
            [ -e "$(dirname "$page")/$link" ] || echo "$page: $link"
        done
    done
    grep -roE 'docs/[A-Za-z0-9_/-]+\.md' ./*.md docs libcoli engines apps tests scripts cmake |
        sort -u | while IFS=: read -r page link; do
        [ -e "$link" ] || echo "$page: $link"
    done
}

layers='base math model backend moe engines run'
layer_of() { # PATH: the number of its layer
    local i=0 layer
    for layer in $layers; do
        i=$((i + 1))
        case $1 in */$layer/*) echo $i && return ;; esac
    done
}
back_arrows() {
    cd "$source" || return
    grep -rnoE '^#include "[^"]+"' libcoli/src engines --include='*.[ch]' | sed 's/#include //; s/"//g' |
        while IFS=: read -r file line header; do
            header=$(realpath -m --relative-to=. "$(dirname "$file")/$header")
            [ -z "$(layer_of "/$header")" ] || [ "$(layer_of "/$header")" -le "$(layer_of "/$file")" ] ||
                echo "$file:$line: $header"
        done
}

report=$(
    comm -23 <(echo "$declared") <(echo "$exported") | rule 1 'declared in a header, not exported'
    comm -13 <(echo "$declared") <(echo "$exported") | rule 1 'exported, not declared in a header'
    # Before what is absent means anything, what must be there:
    grep -q 'alloc.c.o calloc$' <<<"$imported" || echo "$objects" | rule 2 'no calloc seen: wrong objects'
    grep -E " ($talk)$" <<<"$imported" | grep -v '/child_posix.c.o _exit$' | rule 2 'prints, exits or reads the environment'
    grep -E " ($inexact)[fl]?$" <<<"$imported" | rule 3 'libm function without one defined result'
    grep -rn '_WIN32' "$source/libcoli/src" "$source/engines" "$source/apps" --include='*.[ch]' |
        grep -v "^$source/libcoli/src/base/" | rule 4 '_WIN32 outside src/base'
    find "$source" \( -name .git -o -path "$source/build*" \) -prune -o -type f -size +30M -print |
        rule 5 'larger than 30 MB'
    du -sm "$source/tests/fixtures" | awk '$1 > 30' | rule 5 'the fixtures are larger than 30 MB'
    links | rule 6 'a link that leads nowhere'
    [ "$(layer_of /libcoli/src/run/x.h)" = 7 ] || echo layer_of | rule 7 'cannot tell layers'
    back_arrows | rule 7 'includes a header of a later layer'
)
[ -z "$report" ] && exit 0
echo "$report"
exit 1
