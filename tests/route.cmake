# Cache-aware routing.
coli_test(route_test unit)
coli_test(route_oracle oracle)
coli_device_test(route_run prop fake)

# Not part of an ordinary run: `ctest -C bench -L bench -V`, or the program itself.
add_executable(bench_route bench/bench_route.c)
target_link_libraries(bench_route PRIVATE coli_internal)
add_test(NAME bench.bench_route COMMAND bench_route CONFIGURATIONS bench)
set_tests_properties(bench.bench_route PROPERTIES LABELS bench)
