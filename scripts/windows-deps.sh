#!/bin/bash
# windows-deps.sh [FOLDER] - the libraries that libcoli uses, for 64-bit Windows.
#
# Debian has no such packages.  So their sources are fetched by name from where this system gets its
# packages, checked by apt as always, and built as static libraries with mingw-w64 into FOLDER
# (build-mingw/deps).  The system is not changed: the list of sources and apt's state are in FOLDER, too.
# Their licences come along.  Takes half a minute, and nothing when everything is there.
# scripts/deps.sh windows brings the compiler.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1-$root/build-mingw/deps}"
folder=$(cd "${1-$root/build-mingw/deps}" && pwd)

# What was built, by what, from what description: another one of these builds anew.
vulkan=(/usr/include/{vulkan,vk_video,volk.h,volk.c})
state=$(cat "$0" "$root/cmake/mingw.cmake" && x86_64-w64-mingw32-gcc-posix --version &&
    { ls -d "${vulkan[@]}" 2>/dev/null || true; })
if [ "$state" = "$(cat "$folder/state" 2>/dev/null)" ]; then exit 0; fi
rm -rf "$folder"
mkdir -p "$folder"/{lib/pkgconfig,include,licenses,source,apt/lists/partial,apt/cache/archives/partial}
log=$folder/log.txt
trap '[ $? = 0 ] || { tail -n 30 "$log"; echo "windows-deps.sh: failed; all of it: $log"; } >&2' EXIT

# ---- sources

echo "windows-deps.sh: building jansson, pcre2, utf8proc, xxhash and cmocka in $folder" >&2
private=(-o "Dir::Etc::sourcelist=$folder/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$folder/apt/lists" -o "Dir::Cache=$folder/apt/cache" -o APT::Sandbox::User=root)

# Debian's own archives among the sources of this system.  Only lists that were fetched once tell whose
# they are; on a system without any, that has to come first.
archives() {
    apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sed -n 's/^Debian /deb-src /p' | sort -u
}
[ -n "$(archives)" ] || apt-get update >>"$log" 2>&1
archives >"$folder/apt/sources.list"
apt-get "${private[@]}" update >>"$log" 2>&1

# The newest version; the one before where the archive does not have it yet, or not any more.
fetch() { # NAME
    local version
    cd "$folder/source"
    for version in $(apt-cache "${private[@]}" showsrc "$1" | sed -n 's/^Version: //p' | sort -rVu); do
        if apt-get "${private[@]}" source --quiet "$1=$version" >>"$log" 2>&1; then return 0; fi
    done
    echo "no source of $1" >>"$log"
    return 1
}

# ---- libraries

build() { # NAME SUBFOLDER CMAKE_OPTION...: makes and installs it
    local sources
    sources=$(echo "$folder/source/$1"-*/)
    cmake -S "$sources$2" -B "$folder/source/build-$1" -G Ninja -Wno-dev \
        -DCMAKE_TOOLCHAIN_FILE="$root/cmake/mingw.cmake" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_INSTALL_PREFIX="$folder/source/installed" -DBUILD_SHARED_LIBS=OFF "${@:3}"
    cmake --build "$folder/source/build-$1"
    cmake --install "$folder/source/build-$1"
}
library() { # MODULE FILE HEADERS SOURCE CFLAGS: what of that we keep, and how pkg-config finds it
    cp "$folder/source/installed/lib/$2" "$folder/lib/"
    (cd "$folder/source/installed/include" && cp $3 "$folder/include/") # several words
    local name=${2#lib} version
    version=$(basename "$folder/source/$4"-*/)
    cp "$folder/source/$4"-*/debian/copyright "$folder/licenses/$4.txt"
    cat >"$folder/lib/pkgconfig/$1.pc" <<EOF
Name: $1
Description: $1, static, for Windows
Version: ${version#*-}
Libs: -L\${pcfiledir}/.. -l${name%.a}
Cflags: -I\${pcfiledir}/../../include ${5-}
EOF
}

for name in jansson pcre2 utf8proc xxhash cmocka; do fetch $name; done
{
    build jansson '' -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF
    build pcre2 '' -DPCRE2_SUPPORT_JIT=ON -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF
    build utf8proc ''
    build xxhash cmake_unofficial -DXXHASH_BUILD_XXHSUM=OFF
    build cmocka '' -DWITH_STATIC_LIB=ON -DWITH_EXAMPLES=OFF
    library jansson libjansson.a 'jansson.h jansson_config.h' jansson
    library libpcre2-8 libpcre2-8.a pcre2.h pcre2 -DPCRE2_STATIC
    library libutf8proc libutf8proc.a utf8proc.h utf8proc -DUTF8PROC_STATIC
    library libxxhash libxxhash.a xxhash.h xxhash
    library cmocka libcmocka-static.a 'cmocka*.h' cmocka
} >>"$log" 2>&1
# Headers are the same for all systems: those of Vulkan and volk, where they are installed.
if ls "${vulkan[@]}" >/dev/null 2>&1; then
    cp -r "${vulkan[@]}" "$folder/include/"
    cp /usr/share/doc/libvulkan-volk-dev/copyright "$folder/licenses/volk.txt"
fi
# What the compiler puts into every program: its own library, and that of mingw-w64.
cp /usr/share/doc/gcc-mingw-w64-base/copyright "$folder/licenses/gcc.txt"
cp /usr/share/doc/mingw-w64-common/copyright "$folder/licenses/mingw-w64.txt"
rm -rf "$folder/source" "$folder/apt"
echo "$state" >"$folder/state"
