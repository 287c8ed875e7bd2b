# Tests of models with random weights, of the clock, and of `coli bench`.
coli_test(synth_test unit)
coli_test(measure_test unit)
coli_test(bench_test golden)
if(TARGET bench_test)
    add_dependencies(bench_test coli_cli)
endif()

# bench_backend FILE: how fast a backend's device is.  scripts/gpu-check.sh runs it.
add_executable(bench_backend bench/bench_backend.c)
target_link_libraries(bench_backend PRIVATE coli_internal)
