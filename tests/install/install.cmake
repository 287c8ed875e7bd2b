# Installs the build into a folder with a space in its name, moves it, and builds the README's own C
# program against it in both ways: find_package(coli) and pkg-config.  What the program prints is
# checked, so the README's example is known to compile and to work.
cmake_minimum_required(VERSION 3.25)

function(run)
    execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE out
                    OUTPUT_STRIP_TRAILING_WHITESPACE ECHO_ERROR_VARIABLE)
    set(out "${out}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
set(prefix "${WORK}/a root")
run(${CMAKE_COMMAND} --install ${BUILD} --prefix "${WORK}/first")
file(RENAME "${WORK}/first" "${prefix}")
run(bash ${SOURCE}/scripts/readme-block.sh c 1)
file(WRITE ${WORK}/src/hello.c "${out}\n")
configure_file(${CMAKE_CURRENT_LIST_DIR}/CMakeLists.txt ${WORK}/src/CMakeLists.txt COPYONLY)

set(flags -std=c11 -Wall -Wextra -Werror)
if(SANITIZE)
    list(APPEND flags -fsanitize=${SANITIZE})
endif()
list(JOIN flags " " c_flags)
set(models "${prefix}/share/coli/models")

function(check program)
    run(${CMAKE_COMMAND} -E env "LD_LIBRARY_PATH=${prefix}/${LIBDIR}" ${program} "${models}/hummingbird")
    if(NOT out MATCHES "42")
        message(FATAL_ERROR "${program}: printed \"${out}\", which has no 42")
    endif()
endfunction()

run(${CMAKE_COMMAND} -S ${WORK}/src -B ${WORK}/find_package -G ${GENERATOR}
    -DCMAKE_MAKE_PROGRAM=${MAKE} -DCMAKE_C_COMPILER=${CC} -DCMAKE_BUILD_TYPE=${BUILD_TYPE}
    "-DCMAKE_C_FLAGS=${c_flags}" "-DCMAKE_PREFIX_PATH=${prefix}" "-DEXPECTED_MODELS=${models}"
    -DEXPECTED_VERSION=${VERSION})
run(${CMAKE_COMMAND} --build ${WORK}/find_package)
check(${WORK}/find_package/hello)

set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig")
run(${PKG_CONFIG} --modversion coli)
if(NOT out STREQUAL VERSION)
    message(FATAL_ERROR "coli.pc says version ${out}, expected ${VERSION}")
endif()
run(${PKG_CONFIG} --cflags --libs coli)
separate_arguments(pc UNIX_COMMAND "${out}")
run(${CC} ${flags} ${WORK}/src/hello.c -o ${WORK}/hello_pc ${pc})
check(${WORK}/hello_pc)

# The installed program finds the installed library and the installed model by itself.
run(${CMAKE_COMMAND} -E env --unset=COLI_MODEL --unset=LD_LIBRARY_PATH "${prefix}/bin/coli"
    run --no-think --temp 0 "What is 17 + 25?")
if(NOT out MATCHES "42")
    message(FATAL_ERROR "the installed coli answered \"${out}\", which has no 42")
endif()
