#!/bin/bash
# readme-block.sh LANG N [PAGE] - print the Nth fenced LANG block of README.md, or of another page.
#
# The commands and the programs that pages show are run by tests through this script, so that
# what people read is what was tested.
set -euo pipefail
readme=$(dirname "$0")/../${3:-README.md}
awk -v lang="$1" -v n="$2" '
    /^```/ { open = !open; if (open) { now = substr($0, 4); if (now == lang) count++ } next }
    open && now == lang && count == n { print; printed = 1 }
    END { exit !printed }
' "$readme" || {
    echo "readme-block.sh: $readme has no $1 block number $2" >&2
    exit 1
}
