# Tests of the house rather than of one module: what the library exports and imports, that its headers
# stand alone, that an installation can be used.  All have the label unit.
function(coli_house_test name)
    add_test(NAME unit.${name} COMMAND ${ARGN})
    set_tests_properties(unit.${name} PROPERTIES LABELS unit)
endfunction()

# -- every public header alone, as C11 and as C++17 --------------------------------------------------
include(CheckLanguage)
check_language(CXX)
if(CMAKE_CXX_COMPILER)
    enable_language(CXX)
endif()
if(NOT CMAKE_CXX_COMPILER)
    message(STATUS "No C++ compiler: the public headers are not tested as C++17")
elseif(COLI_SANITIZE AND NOT CMAKE_CXX_COMPILER_ID STREQUAL CMAKE_C_COMPILER_ID)
    message(STATUS "The public headers are not tested as C++17: ${CMAKE_C_COMPILER_ID} and "
                   "${CMAKE_CXX_COMPILER_ID} do not share a sanitizer")
else()
    # The headers are globbed: a list here could forget the one that matters.
    file(GLOB coli_public_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/libcoli/include
         ${PROJECT_SOURCE_DIR}/libcoli/include/coli/*.h)
    set(coli_alone "")
    foreach(header IN LISTS coli_public_headers)
        string(MAKE_C_IDENTIFIER ${header} id)
        foreach(language IN ITEMS c cpp)
            set(file ${CMAKE_CURRENT_BINARY_DIR}/alone/${id}.${language})
            file(CONFIGURE OUTPUT ${file} CONTENT "#include <@header@>\n#include <@header@>\n" @ONLY)
            list(APPEND coli_alone ${file})
        endforeach()
    endforeach()
    add_executable(headers_compile unit/headers_compile.c unit/headers_compile.cpp ${coli_alone})
    set_target_properties(headers_compile PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON
                          CXX_EXTENSIONS OFF)
    target_compile_options(headers_compile PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror
        -ffp-contract=off)
    if(COLI_SANITIZE) # coli_flags are for C alone
        target_compile_options(headers_compile PRIVATE -fsanitize=${COLI_SANITIZE})
        target_link_options(headers_compile PRIVATE -fsanitize=${COLI_SANITIZE})
    endif()
    target_compile_definitions(headers_compile PRIVATE COLI_TEST_VERSION="${PROJECT_VERSION}")
    target_link_libraries(headers_compile PRIVATE coli)
    coli_house_test(headers_compile headers_compile)
endif()

# -- rules that nm and grep can check ----------------------------------------------------------------
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/objects.txt
         CONTENT "$<JOIN:$<TARGET_OBJECTS:coli_objects>,\n>\n")
    coli_house_test(tree_rules bash ${CMAKE_CURRENT_SOURCE_DIR}/unit/tree_rules.sh
        ${PROJECT_SOURCE_DIR} $<TARGET_FILE:coli> ${CMAKE_CURRENT_BINARY_DIR}/objects.txt ${CMAKE_NM})
endif()

# -- scripts that people run -------------------------------------------------------------------------
if(CMAKE_HOST_SYSTEM_NAME STREQUAL "Linux")
    coli_house_test(compare_script bash ${CMAKE_CURRENT_SOURCE_DIR}/unit/compare_script.sh
        ${PROJECT_SOURCE_DIR}/scripts/compare.sh ${CMAKE_CURRENT_BINARY_DIR}/compare)
endif()

# -- a program built against an installation ---------------------------------------------------------
if(NOT CMAKE_CROSSCOMPILING) # it would have to hand on the toolchain file
    coli_house_test(install ${CMAKE_COMMAND} -DBUILD=${CMAKE_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
        -DWORK=${CMAKE_CURRENT_BINARY_DIR}/install -DCC=${CMAKE_C_COMPILER} -DGENERATOR=${CMAKE_GENERATOR}
        -DMAKE=${CMAKE_MAKE_PROGRAM} -DBUILD_TYPE=${CMAKE_BUILD_TYPE} -DLIBDIR=${CMAKE_INSTALL_LIBDIR}
        -DPKG_CONFIG=${PKG_CONFIG_EXECUTABLE} -DSANITIZE=${COLI_SANITIZE} -DVERSION=${PROJECT_VERSION}
        -P ${CMAKE_CURRENT_SOURCE_DIR}/install/install.cmake)
endif()
