# Tests of the loader and of what plugins export.  The plugins here are made to be refused, or to
# tell what was done to them.
set(test_plugins ${CMAKE_CURRENT_BINARY_DIR}/plugins)

# test_plugin(NAME DEFINITION...): support/plugins/probe.c as coli_NAME.so
function(test_plugin name)
    add_library(plugin_${name} MODULE support/plugins/probe.c)
    set_target_properties(plugin_${name} PROPERTIES PREFIX "" OUTPUT_NAME coli_${name}
        LIBRARY_OUTPUT_DIRECTORY ${test_plugins})
    target_include_directories(plugin_${name} PRIVATE ${PROJECT_SOURCE_DIR}/libcoli/include)
    target_compile_definitions(plugin_${name} PRIVATE PROBE_NAME="${name}" ${ARGN})
    target_compile_options(plugin_${name} PRIVATE -Wall -Wextra -Wshadow -Wconversion)
    set_property(GLOBAL APPEND PROPERTY coli_test_plugins plugin_${name})
endfunction()

test_plugin(probe)
test_plugin(twin)
test_plugin(newer PROBE_NEWER)
test_plugin(data PROBE_DATA)
if(NOT WIN32) # where every symbol of a library is resolved when it is linked
    test_plugin(unresolved PROBE_UNRESOLVED)
endif()
test_plugin(depends PROBE_DEPENDS)
add_library(plugin_dependency SHARED support/plugins/dependency.c)
set_target_properties(plugin_dependency PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${test_plugins}
    RUNTIME_OUTPUT_DIRECTORY ${test_plugins}/needed) # the latter on Windows
target_link_libraries(plugin_depends PRIVATE plugin_dependency)
set_target_properties(plugin_depends PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
get_property(coli_test_plugins GLOBAL PROPERTY coli_test_plugins)

set(coli_plugin_test plugin_test)
if(WIN32)
    set(coli_plugin_test plugin_windows_test)
endif()
coli_test(${coli_plugin_test} unit)
add_dependencies(${coli_plugin_test} ${coli_test_plugins})
target_compile_definitions(${coli_plugin_test} PRIVATE TEST_PLUGINS="${test_plugins}")
