# Tests of the programs.
coli_test(cli_test golden)
coli_test(measure_cli golden)
coli_test(chat_terminal golden)
coli_test(gguf_cli golden)
coli_test(doctor_cli golden)
target_link_libraries(chat_terminal PRIVATE util) # forkpty
if(TARGET backend_fake)
    target_compile_definitions(measure_cli PRIVATE TEST_FAKE="$<TARGET_FILE:backend_fake>")
    add_dependencies(measure_cli backend_fake)
endif()
foreach(name IN ITEMS cli_test measure_cli chat_terminal gguf_cli doctor_cli)
    add_dependencies(${name} coli_cli qwen36)
    if(CMAKE_CROSSCOMPILING_EMULATOR)
        list(JOIN CMAKE_CROSSCOMPILING_EMULATOR "\", \"" emulator)
        target_compile_definitions(${name} PRIVATE "TEST_EMULATOR=\"${emulator}\",")
    endif()
endforeach()

# Parts of the programs, on the library as they use it: coli_test would link a second copy.
add_executable(turn_test golden/turn_test.c ${PROJECT_SOURCE_DIR}/apps/coli/turn.c
    ${PROJECT_SOURCE_DIR}/apps/coli/report.c)
target_include_directories(turn_test PRIVATE support ${PROJECT_SOURCE_DIR}/apps/coli)
target_compile_definitions(turn_test PRIVATE TEST_MODELS="${PROJECT_SOURCE_DIR}/models")
target_link_libraries(turn_test PRIVATE coli_flags coli_app coli PkgConfig::CMOCKA)
add_test(NAME golden.turn_test COMMAND turn_test)
set_tests_properties(golden.turn_test PROPERTIES LABELS golden)
