# Tests of the Vulkan backend, where it is built.  They run on the machine's CPU device (lavapipe), and
# are skipped where there is none.
if(TARGET backend_vulkan AND NOT WIN32) # no device shows under wine without a display
    function(coli_vulkan_test name label)
        coli_test(${name} ${label})
        target_compile_definitions(${name} PRIVATE TEST_VULKAN="$<TARGET_FILE:backend_vulkan>")
        add_dependencies(${name} backend_vulkan)
        set_tests_properties(${label}.${name} PROPERTIES SKIP_RETURN_CODE 77)
    endfunction()
    coli_vulkan_test(vulkan_prop prop)
    coli_vulkan_test(vulkan_fault fault)

    # lavapipe's subgroups are as wide as its vectors: the same groups with four lanes and with sixteen.
    foreach(bits IN ITEMS 128 512)
        add_test(NAME prop.vulkan_vectors_${bits} COMMAND vulkan_prop groups)
        set_tests_properties(prop.vulkan_vectors_${bits} PROPERTIES LABELS prop SKIP_RETURN_CODE 77
            ENVIRONMENT LP_NATIVE_VECTOR_WIDTH=${bits})
    endforeach()

    coli_test(vulkan_spirv unit)
    add_dependencies(vulkan_spirv coli_vk_shaders)
    target_include_directories(vulkan_spirv PRIVATE ${PROJECT_BINARY_DIR}/backends/vulkan/generated)

    # A full device, small buffers, every instruction that there is; under the validation layer.
    add_test(NAME fault.check_vulkan_small COMMAND coli_cli backend check $<TARGET_FILE:backend_vulkan>
             --backend-options "validate=1 dot=1 join=1 memory=64MiB buffer=4MiB staging=256KiB work=4MiB")
    set_tests_properties(fault.check_vulkan_small PROPERTIES LABELS fault SKIP_RETURN_CODE 2)

    # Without a driver there are no devices, which is a reason to skip and no failure.
    add_test(NAME fault.vulkan_absent COMMAND vulkan_fault)
    set_tests_properties(fault.vulkan_absent PROPERTIES LABELS fault
        PASS_REGULAR_EXPRESSION "skipped: none of 0 Vulkan devices.*no Vulkan library" # and any exit code
        ENVIRONMENT "VK_DRIVER_FILES=/nowhere;VK_ICD_FILENAMES=/nowhere")

    if("${COLI_SANITIZE}" MATCHES "address")
        # lavapipe and the validation layer leak.  What the plugin itself may not leak is counted by
        # these tests' host, and by the layer, which knows every object of Vulkan.
        cmake_language(DEFER CALL set_property TEST prop.vulkan_prop prop.vulkan_vectors_128
            prop.vulkan_vectors_512 fault.vulkan_fault fault.check_vulkan fault.check_vulkan_small
            prop.placement_vulkan fault.device_fault_vulkan # some of them are defined later
            APPEND PROPERTY ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
    endif()
endif()
