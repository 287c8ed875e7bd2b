# Heat, the plans that follow from it, and the file that keeps it.
coli_test(heat_test unit)
coli_test(plan_test unit)
coli_test(replan_test unit)
coli_test(heat_file_test unit)
coli_fuzz(heat)
coli_test(plan_prop prop)
coli_test(replan_prop prop)

coli_test(heat_cli golden)
if(TARGET heat_cli)
    add_dependencies(heat_cli coli_cli)
    if(CMAKE_CROSSCOMPILING_EMULATOR)
        list(JOIN CMAKE_CROSSCOMPILING_EMULATOR "\", \"" emulator)
        target_compile_definitions(heat_cli PRIVATE "TEST_EMULATOR=\"${emulator}\",")
    endif()
endif()

# Experts in less memory than they need: the pure parts.
coli_test(store_plan_test unit)
coli_test(lru_prop prop)
