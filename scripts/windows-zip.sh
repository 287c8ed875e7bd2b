#!/bin/bash
# windows-zip.sh - pack what the preset mingw built: unpack it on Windows and run it.
#
# The folder inside is an installation, so programs find the library, the backends and the demo model.
# The same commit gives the same bytes.  Prints the name of the file.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build-mingw

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:[A-Z]*=//p' "$build/CMakeCache.txt")
name=coli-$version-windows-x86_64
rm -rf "${build:?}/zip" "$build/$name.zip"
cmake --install "$build" --prefix "$build/zip/$name" --strip >/dev/null
cp -r "$build/deps/licenses" "$build/zip/$name/licenses"
rm "$build/zip/$name/licenses/cmocka.txt" # the tests stay here
cat LICENSE NOTICE >"$build/zip/$name/licenses/coli.txt"
sed 's/$/\r/' >"$build/zip/$name/README.txt" <<EOF
coli $version for 64-bit Windows 10 and later

Open a terminal (Windows Terminal or PowerShell) in this folder and try:

    bin\\coli chat
    bin\\coli run --no-think "What is the capital of France?"
    bin\\coli help

The model that answers is share\\coli\\models\\hummingbird, a demonstration of 22 million
parameters.  Another one is taken with --model FOLDER, or with the environment variable
COLI_MODEL.  "bin\\coli help convert" tells how to make one out of a checkpoint.

bin holds the programs and libcoli.dll, lib\\coli\\backends what computes on other devices; nothing
else has to be installed, and the folder may be moved as a whole.  include and lib are for programs that use the
library: see include\\coli\\coli.h.

Licences: licenses\\coli.txt, and beside it those of the libraries that libcoli.dll contains.
EOF
touched=$(git log -1 --format=%ct 2>/dev/null || date +%s)
find "$build/zip" -exec touch --no-dereference --date="@$touched" {} +
(cd "$build/zip" && find "$name" -type f | LC_ALL=C sort | TZ=UTC zip -q -X -9 "../$name.zip" -@)
echo "$build/$name.zip"
