# Toolchain file: built on Debian for 64-bit Windows with mingw-w64, the programs run by wine.
#
# Compiler and wine come from packages (scripts/deps.sh windows), libraries are built from Debian's
# sources into the build folder (scripts/windows-deps.sh).  Everything is linked statically, so that
# the programs need libcoli.dll and Windows, nothing else.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix) # the one with pthreads
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32 ${CMAKE_BINARY_DIR}/deps)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
get_property(trying GLOBAL PROPERTY IN_TRY_COMPILE) # in a build folder of its own, but our environment
if(NOT trying)
    set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_BINARY_DIR}/deps/lib/pkgconfig)
endif()

# Numbers are read and printed by mingw's own functions: those of Windows round differently.
#
# Windows aligns the stack to 16 bytes.  gcc (bug 54412) puts vectors of 32 and 64 bytes there, with
# instructions that fault unless the address is a multiple of that.  The assembler replaces those by
# the ones that take any address, and cost nothing more where it is one; Debian's compiler avoids them
# on the stack by itself, others do not.  scripts/windows-check.sh looks that none is left.
set(CMAKE_C_FLAGS_INIT "-D__USE_MINGW_ANSI_STDIO=1 -Wa,-muse-unaligned-vector-move")
set(CMAKE_CXX_FLAGS_INIT "${CMAKE_C_FLAGS_INIT}")
foreach(kind IN ITEMS EXE SHARED MODULE)
    set(CMAKE_${kind}_LINKER_FLAGS_INIT "-static")
endforeach()

set(CMAKE_CROSSCOMPILING_EMULATOR ${CMAKE_CURRENT_LIST_DIR}/../scripts/wine.sh ${CMAKE_BINARY_DIR}/wine)
