#!/bin/bash
# wine.sh FOLDER PROGRAM [ARGUMENT...] - run a Windows program, with a Windows of its own in FOLDER.
#
# Without a word about itself and without a display.  Paths of this system work as they are.
set -euo pipefail
mkdir -p "$1"
WINEPREFIX=$(cd "$1" && pwd)
export WINEPREFIX WINEDEBUG=-all WINEDLLOVERRIDES='mscoree,mshtml=' LC_ALL=C.UTF-8
unset DISPLAY
wine=$(command -v wine64 /usr/lib/wine/wine64 wine | head -n 1) || true
[ -n "$wine" ] || { echo 'wine.sh: there is no wine: scripts/deps.sh windows' >&2; exit 127; }
if [ ! -d "$WINEPREFIX/drive_c" ]; then # takes some seconds, and says something anyway
    "$wine" wineboot --init </dev/null >"$WINEPREFIX/init.log" 2>&1 || {
        echo "wine.sh: wineboot failed with exit code $?" >&2
        cat "$WINEPREFIX/init.log" >&2
        rm -rf "${WINEPREFIX:?}" # the next one starts anew
        exit 1
    }
fi
if [ -t 0 ]; then exec "$wine" "${@:2}"; fi # a program at a console gets its signals itself
# On a busy machine wine now and then gives up before it has started the program, without a word and in no
# time: no program could have begun and ended so soon.
for try in 1 2 3; do
    begin=${EPOCHREALTIME/./} code=0
    "$wine" "${@:2}" || code=$?
    if [ $code = 0 ] || [ $((${EPOCHREALTIME/./} - begin)) -ge 15000 ]; then break; fi
    echo "$2: exit code $code, try $try" >>"$WINEPREFIX/not-started.log"
done
exit $code
