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
exec "$wine" "${@:2}"
