# Tests of the Vulkan backend, where it is built.  They run on the machine's CPU device (lavapipe), and are
# skipped where there is none.
if(TARGET backend_vulkan)
    function(coli_vulkan_test name label)
        coli_test(${name} ${label})
        target_compile_definitions(${name} PRIVATE TEST_VULKAN="$<TARGET_FILE:backend_vulkan>")
        target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
        add_dependencies(${name} backend_vulkan)
        set_tests_properties(${label}.${name} PROPERTIES SKIP_RETURN_CODE 77)
    endfunction()
    coli_vulkan_test(vulkan_prop prop)
endif()
