# Tests of `coli backend check`: against a plugin that is right and against one for each mistake, and
# of the arithmetic that it compares with.
coli_test(reference_prop prop)

if(NOT WIN32) # there is no process between a crash and the test there
    set(wrong_plugins ${CMAKE_CURRENT_BINARY_DIR}/wrong)
    set(wrong_targets "")
    foreach(mistake IN ITEMS NONE ROUNDING TRUNCATED DIVISION UNIT GATE_UP SILU SEQUENTIAL FAR_PAIRS IN_DOUBLE
            FUSED MINUS_ZERO LATE_SCALE LATER_SCALE NO_EXP HALF_DENORMALS HALF_SIGN NIBBLES UNSIGNED LAST_GROUP ODD_WIDTH
            ROW_STRIDE NO_FLAG ROWS_SWAPPED ZERO_ROWS HOST_MEMORY FAILED_TAKE STALE_OVERWRITE TORN_OVERWRITE EARLY_FENCE LEAK
            SECOND_OPEN HANG FAIL_TWICE SILENT_FAILURE WRITES_BEHIND ANY_OPTION FORGETFUL EXITS)
        add_library(wrong_${mistake} MODULE support/wrong/wrong_plugin.c)
        set_target_properties(wrong_${mistake} PROPERTIES PREFIX "" OUTPUT_NAME coli_wrong_${mistake}
            LIBRARY_OUTPUT_DIRECTORY ${wrong_plugins})
        target_include_directories(wrong_${mistake} PRIVATE ${PROJECT_SOURCE_DIR}/libcoli/include)
        target_compile_definitions(wrong_${mistake} PRIVATE MISTAKE=${mistake})
        target_link_libraries(wrong_${mistake} PRIVATE coli_flags)
        list(APPEND wrong_targets wrong_${mistake})
    endforeach()

    coli_test(backend_check fault)
    add_dependencies(backend_check ${wrong_targets})
    target_compile_definitions(backend_check PRIVATE TEST_WRONG="${wrong_plugins}")
endif()

# The backends of this tree keep the contract.  Where there is no device for one, its test is skipped.
foreach(backend IN ITEMS fake vulkan cuda cudaemu)
    if(TARGET backend_${backend})
        add_test(NAME fault.check_${backend} COMMAND coli_cli backend check $<TARGET_FILE:backend_${backend}>)
        set_tests_properties(fault.check_${backend} PROPERTIES LABELS fault SKIP_RETURN_CODE 2)
    endif()
endforeach()
if(TARGET backend_fake) # small enough to be filled
    add_test(NAME fault.check_fake_small COMMAND coli_cli backend check $<TARGET_FILE:backend_fake>
             --backend-options vram=64MiB)
    set_tests_properties(fault.check_fake_small PROPERTIES LABELS fault)
endif()
