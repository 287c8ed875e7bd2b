# Models on the devices of plugins.
#
# coli_device_test(NAME label BACKEND): tests/<label>/NAME.c, run with the plugin of that name if it is
# built; several backends share one program.
function(coli_device_test name label backend)
    if(NOT TARGET ${name})
        coli_test_program(${name} ${label})
    endif()
    if(TARGET backend_${backend})
        add_test(NAME ${label}.${name}_${backend}
                 COMMAND ${name} ${backend} $<TARGET_FILE:backend_${backend}>)
        set_tests_properties(${label}.${name}_${backend} PROPERTIES LABELS "${label}" SKIP_RETURN_CODE 77)
        add_dependencies(${name} backend_${backend})
    endif()
endfunction()

coli_test(lane_test unit)
foreach(backend fake vulkan cudaemu)
    coli_device_test(placement prop ${backend})
    coli_device_test(p1 prop ${backend})
    coli_device_test(device_fault fault ${backend})
    if(TARGET backend_${backend}) # what a call that hangs may touch is left behind, as it must be
        set_tests_properties(prop.p1_${backend} fault.device_fault_${backend}
            PROPERTIES ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
    endif()
endforeach()

if(TARGET wrong_SEQUENTIAL)
    coli_device_test(devices_test unit fake)
    target_compile_definitions(devices_test PRIVATE TEST_WRONG="${wrong_plugins}"
        TEST_SUFFIX="${CMAKE_SHARED_MODULE_SUFFIX}")
    add_dependencies(devices_test wrong_SEQUENTIAL)
endif()
coli_device_test(tier_prop prop fake)
coli_device_test(record_test unit fake)
coli_device_test(plan_api_test unit fake)
coli_device_test(tier_test unit fake)
coli_device_test(store_placement prop fake)
coli_device_test(stream_prop prop fake)
coli_device_test(trunk_test unit fake)
coli_device_test(forced_swaps prop fake)
