# coli_fuzz(NAME [extra sources]): tests/fuzz/fuzz_NAME.c defines LLVMFuzzerTestOneInput.  It becomes
#   replay_NAME  always: runs every file of tests/fuzz/corpus/NAME once (ctest label fuzz)
#   fuzz_NAME    with COLI_FUZZ (clang): the libFuzzer program.  Run it as
#                build/bin/fuzz_NAME NEW_DIR tests/fuzz/corpus/NAME
set(COLI_FUZZ_DIR ${CMAKE_CURRENT_LIST_DIR})
function(coli_fuzz name)
    set(kinds replay)
    if(COLI_FUZZ)
        list(APPEND kinds fuzz)
    endif()
    foreach(kind IN LISTS kinds)
        add_executable(${kind}_${name} ${COLI_FUZZ_DIR}/fuzz_${name}.c ${ARGN})
        target_include_directories(${kind}_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support)
        target_compile_definitions(${kind}_${name} PRIVATE
            TEST_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
        target_link_libraries(${kind}_${name} PRIVATE coli_internal)
    endforeach()
    target_sources(replay_${name} PRIVATE ${COLI_FUZZ_DIR}/replay_main.c)
    if(COLI_FUZZ)
        target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    endif()
    add_test(NAME fuzz.${name} COMMAND replay_${name} ${COLI_FUZZ_DIR}/corpus/${name})
    set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz)
endfunction()
