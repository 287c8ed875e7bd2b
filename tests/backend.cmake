# Tests of the loader and of what plugins export.  The plugins here are made to be refused, or to
# tell what was done to them.
set(test_plugins ${CMAKE_CURRENT_BINARY_DIR}/plugins)

# test_plugin(NAME SOURCE DEFINITION...): support/plugins/SOURCE as coli_NAME.so
function(test_plugin name source)
    add_library(plugin_${name} MODULE support/plugins/${source})
    set_target_properties(plugin_${name} PROPERTIES PREFIX "" OUTPUT_NAME coli_${name}
        LIBRARY_OUTPUT_DIRECTORY ${test_plugins})
    target_include_directories(plugin_${name} PRIVATE ${PROJECT_SOURCE_DIR}/libcoli/include)
    target_compile_definitions(plugin_${name} PRIVATE ${ARGN})
    target_compile_options(plugin_${name} PRIVATE -Wall -Wextra -Wshadow -Wconversion -ffp-contract=off)
    set_property(GLOBAL APPEND PROPERTY coli_test_plugins plugin_${name})
endfunction()

test_plugin(probe probe.c PROBE_NAME="probe")
test_plugin(twin probe.c PROBE_NAME="twin")
test_plugin(data probe.c PROBE_NAME="data" PROBE_DATA)
if(NOT WIN32) # where every symbol of a library is resolved when it is linked
    test_plugin(unresolved probe.c PROBE_NAME="unresolved" PROBE_UNRESOLVED)
endif()
test_plugin(depends probe.c PROBE_NAME="depends" PROBE_DEPENDS)
test_plugin(oldest small.c SMALL_NAME="oldest" SMALL_OLDEST)
target_include_directories(plugin_oldest BEFORE PRIVATE support/plugins/oldest)
test_plugin(newest small.c SMALL_NAME="newest" SMALL_NEWEST)
test_plugin(today small.c SMALL_NAME="today")
add_library(plugin_dependency SHARED support/plugins/dependency.c)
set_target_properties(plugin_dependency PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${test_plugins}
    RUNTIME_OUTPUT_DIRECTORY ${test_plugins}/needed) # the latter on Windows
target_link_libraries(plugin_depends PRIVATE plugin_dependency)
set_target_properties(plugin_depends PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
get_property(coli_test_plugins GLOBAL PROPERTY coli_test_plugins)

coli_test(backend_abi unit)
coli_test(host_test unit)
coli_test(plugin_test unit)
coli_test(backends_test unit)
coli_test(backend_cli golden)
if(WIN32)
    coli_test(plugin_windows_test unit)
endif()
foreach(name IN ITEMS plugin_test plugin_windows_test backends_test backend_cli)
    if(TARGET ${name})
        add_dependencies(${name} ${coli_test_plugins})
        target_compile_definitions(${name} PRIVATE TEST_PLUGINS="${test_plugins}")
    endif()
endforeach()

if(TARGET backend_cli)
    add_dependencies(backend_cli coli_cli)
endif()
if(TARGET backend_cli AND CMAKE_CROSSCOMPILING_EMULATOR)
    list(JOIN CMAKE_CROSSCOMPILING_EMULATOR "\", \"" emulator)
    target_compile_definitions(backend_cli PRIVATE "TEST_EMULATOR=\"${emulator}\",")
endif()

# Parts of the programs, on the library as they use it.
if(NOT WIN32) # it sets variables as POSIX does
    add_executable(options_test unit/options_test.c)
    target_include_directories(options_test PRIVATE support)
    target_link_libraries(options_test PRIVATE coli_flags coli_app coli PkgConfig::CMOCKA)
    add_test(NAME unit.options_test COMMAND options_test)
    set_tests_properties(unit.options_test PROPERTIES LABELS unit)
endif()

if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    add_test(NAME unit.backend_search COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/unit/backend_search.sh
        $<TARGET_FILE:coli_cli> $<TARGET_FILE:coli> ${test_plugins} ${CMAKE_CURRENT_BINARY_DIR}/search
        ${CMAKE_CROSSCOMPILING_EMULATOR})
    set_tests_properties(unit.backend_search PROPERTIES LABELS unit)

    # Every plugin that ships; and one of the tests, so that something is looked at in any build.
    set(shipped $<TARGET_FILE:plugin_today>)
    foreach(name IN LISTS COLI_BACKENDS)
        if(TARGET backend_${name})
            list(APPEND shipped $<TARGET_FILE:backend_${name}>)
        endif()
    endforeach()
    add_test(NAME unit.backend_exports COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/unit/backend_exports.sh
        ${PROJECT_SOURCE_DIR}/libcoli/include/coli/backend.h ${CMAKE_NM} ${CMAKE_READELF} ${shipped})
    set_tests_properties(unit.backend_exports PROPERTIES LABELS unit)
endif()
