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

# The backend of docs/backends.md is complete in less than 200 lines, needs nothing but the installed headers,
# and the installed program finds nothing wrong with it.
run(bash ${SOURCE}/scripts/readme-block.sh c 1 docs/backends.md)
string(REGEX MATCHALL "\n" lines "${out}")
list(LENGTH lines n_line)
if(n_line GREATER_EQUAL 199)
    message(FATAL_ERROR "the plugin of docs/backends.md has ${n_line} lines and one, expected less than 200")
endif()
file(WRITE ${WORK}/src/coli_plain.c "${out}\n")
run(bash ${SOURCE}/scripts/readme-block.sh sh 1 docs/backends.md)
if(NOT out MATCHES "^cc ([^\n]*) -I PREFIX/include coli_plain.c -o coli_plain.so\ncoli backend check ./coli_plain.so$")
    message(FATAL_ERROR "docs/backends.md builds its plugin in another way: ${out}")
endif()
separate_arguments(plugin_flags UNIX_COMMAND "${CMAKE_MATCH_1}")
run(${CC} ${plugin_flags} -Wall -Wextra -Werror "-I${prefix}/include" ${WORK}/src/coli_plain.c
    -o ${WORK}/coli_plain.so)
execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH "${prefix}/bin/coli" backend check
                        ${WORK}/coli_plain.so
                OUTPUT_VARIABLE out OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE code)
if(NOT code EQUAL 0 OR NOT out MATCHES " 0 faults$")
    message(FATAL_ERROR "coli backend check of the plugin of docs/backends.md, exit code ${code}:\n${out}")
endif()
