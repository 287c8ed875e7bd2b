# How every target of ours is compiled.  Exactness first: no contraction of a*b+c, no fast-math.
# -fno-math-errno only lets sqrt be the processor's instruction, which rounds as IEEE says.
if(NOT "${COLI_SANITIZE}" MATCHES "^(address,undefined|address|undefined|thread)?$")
    message(FATAL_ERROR "COLI_SANITIZE is \"${COLI_SANITIZE}\": expected address,undefined (or one of "
                        "the two), thread, or nothing")
endif()
if(COLI_FUZZ AND NOT CMAKE_C_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "COLI_FUZZ needs clang: -DCMAKE_C_COMPILER=clang (Debian: apt-get install "
                        "clang libclang-rt-14-dev)")
endif()

add_library(coli_flags INTERFACE)
target_compile_options(coli_flags INTERFACE
    -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
    -ffp-contract=off -fno-fast-math -fno-math-errno $<$<BOOL:${COLI_WERROR}>:-Werror>)
target_compile_definitions(coli_flags INTERFACE _GNU_SOURCE _FILE_OFFSET_BITS=64)
if(WIN32)
    target_compile_definitions(coli_flags INTERFACE WIN32_LEAN_AND_MEAN _WIN32_WINNT=0x0601) # Windows 7
    # The compiler thinks of Microsoft's printf, which knows no %zu.  Ours is mingw's, which does
    # (cmake/mingw.cmake).  And signbit and isfinite are macros there with a conversion in a branch not
    # taken.  Every other system checks both.
    target_compile_options(coli_flags INTERFACE -Wno-format -Wno-float-conversion)
else()
    target_link_libraries(coli_flags INTERFACE m) # rounding, ldexp; unit.tree_rules says which are fine
endif()
if(COLI_SANITIZE)
    target_compile_options(coli_flags INTERFACE -fsanitize=${COLI_SANITIZE} -fno-omit-frame-pointer
        -fno-sanitize-recover=all)
    target_link_options(coli_flags INTERFACE -fsanitize=${COLI_SANITIZE})
elseif(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    # A symbol that no library brings is an error now, not when the program starts.  (The sanitizers'
    # own symbols come from the program, so their builds cannot ask for that.)
    target_link_options(coli_flags INTERFACE -Wl,-z,defs)
endif()
if(COLI_FUZZ)
    target_compile_options(coli_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
