# Toolchain file: built on Debian for aarch64, with the tests run by qemu-user.
#
# Libraries come from Debian's arm64 packages (scripts/deps.sh aarch64), which lie beside those of the
# machine that builds.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
# "max" has every extension that the emulator knows, dot products and i8mm among them.
find_program(COLI_QEMU_AARCH64 qemu-aarch64 REQUIRED)
set(CMAKE_CROSSCOMPILING_EMULATOR ${COLI_QEMU_AARCH64} -cpu max)
