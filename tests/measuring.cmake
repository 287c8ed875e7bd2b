# Tests of models with random weights, of the clock, and of `coli bench`.
coli_test(synth_test unit)
coli_test(measure_test unit)
coli_test(expect_test unit)
coli_test(bench_test golden)
if(TARGET bench_test)
    add_dependencies(bench_test coli_cli)
endif()

# bench_backend FILE: how fast a backend's device is.  scripts/gpu-check.sh runs it.
add_executable(bench_backend bench/bench_backend.c)
target_link_libraries(bench_backend PRIVATE coli_internal)

# bench_pages MODEL: what huge pages are worth.  The test is only about the program.
add_executable(bench_pages bench/bench_pages.c)
target_link_libraries(bench_pages PRIVATE coli_internal)
add_test(NAME golden.pages_small COMMAND bench_pages ${PROJECT_SOURCE_DIR}/models/hummingbird 2)
set_tests_properties(golden.pages_small PROPERTIES LABELS golden)

# bench_ttft PLUGIN DIR: what the re-plan costs before the first token, on the simulated clock.  At a 35B's
# geometry it writes 1.7 GB and takes minutes: `ctest -C bench -R ttft -V`.  The small one is only
# about the program.
if(TARGET backend_fake)
    add_executable(bench_ttft bench/bench_ttft.c)
    target_link_libraries(bench_ttft PRIVATE coli_internal)
    add_dependencies(bench_ttft backend_fake)
    foreach(size IN ITEMS 35b small) # what a run that was killed left behind
        add_test(NAME golden.ttft_${size}_clean
                 COMMAND ${CMAKE_COMMAND} -E rm -rf ${CMAKE_CURRENT_BINARY_DIR}/ttft-${size})
        set_tests_properties(golden.ttft_${size}_clean PROPERTIES LABELS golden
            FIXTURES_SETUP ttft_${size})
    endforeach()
    add_test(NAME bench.ttft COMMAND bench_ttft $<TARGET_FILE:backend_fake>
             ${CMAKE_CURRENT_BINARY_DIR}/ttft-35b CONFIGURATIONS bench)
    set_tests_properties(bench.ttft PROPERTIES LABELS bench TIMEOUT 3600 FIXTURES_REQUIRED ttft_35b)
    add_test(NAME golden.ttft_small COMMAND bench_ttft $<TARGET_FILE:backend_fake>
             ${CMAKE_CURRENT_BINARY_DIR}/ttft-small 2 48 1.02 256 64 64)
    set_tests_properties(golden.ttft_small PROPERTIES LABELS golden FIXTURES_REQUIRED ttft_small)
endif()

# bench_plan: whether the speed that `coli plan` expects is what `coli bench` then measures; `ctest -C bench -R
# plan -V`.  It is about the machine, too, so it is no test of every day.
if(NOT WIN32)
    coli_test_program(bench_plan bench)
    add_dependencies(bench_plan coli_cli)
    add_test(NAME bench.plan COMMAND bench_plan CONFIGURATIONS bench)
    set_tests_properties(bench.plan PROPERTIES LABELS bench TIMEOUT 1200)
endif()
