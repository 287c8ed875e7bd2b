# Arithmetic: kernels, weight formats, sampling.
coli_test(kernels_prop prop)
coli_test(amx_prop prop)
target_compile_options(amx_prop PRIVATE -Wno-psabi) # vectors of 64 bytes on any processor, in one file
coli_test(sample_prop prop)
coli_test(matrix_unit unit)
coli_test(scales_test unit)
coli_test(math_unit unit)
coli_test(exact_oracle oracle)

# Not part of an ordinary run: `ctest -C bench -L bench -V`, or the program itself.
add_executable(bench_matmul bench/bench_matmul.c)
target_link_libraries(bench_matmul PRIVATE coli_internal)
add_test(NAME bench.bench_matmul COMMAND bench_matmul CONFIGURATIONS bench)
set_tests_properties(bench.bench_matmul PROPERTIES LABELS bench)
