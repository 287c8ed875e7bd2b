# Tests of the programs.
coli_test(cli_test golden)
coli_test(chat_terminal golden)
target_link_libraries(chat_terminal PRIVATE util) # forkpty
foreach(name IN ITEMS cli_test chat_terminal)
    add_dependencies(${name} coli_cli qwen36)
endforeach()
