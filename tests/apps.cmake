# Tests of the programs.
coli_test(cli_test golden)
target_link_libraries(cli_test PRIVATE util)
add_dependencies(cli_test coli_cli qwen36)
