# The cuda plugin, on the processor.  coli_cudaemu is built from its sources with backends/cuda/emu in place
# of CUDA, whenever there is a C++ compiler; it is not installed.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
    return() # the emulation switches stacks in assembler
elseif(NOT CMAKE_CXX_COMPILER)
    message(STATUS "The cuda plugin is not tested: no C++ compiler")
    return()
elseif(COLI_SANITIZE AND NOT CMAKE_CXX_COMPILER_ID STREQUAL CMAKE_C_COMPILER_ID)
    message(STATUS "The cuda plugin is not tested: ${CMAKE_C_COMPILER_ID} and ${CMAKE_CXX_COMPILER_ID} do not "
                   "share a sanitizer")
    return()
endif()

set(cuda ${PROJECT_SOURCE_DIR}/backends/cuda)
set(cuda_sources ${cuda}/device.cu ${cuda}/memory.cu ${cuda}/work.cu ${cuda}/product.cu ${cuda}/expert.cu)
add_library(backend_cudaemu MODULE ${cuda_sources} ${cuda}/emu/cuda_emu.cpp)
set_source_files_properties(${cuda_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++;-Wno-unknown-pragmas")
set_target_properties(backend_cudaemu PROPERTIES PREFIX "" OUTPUT_NAME coli_cudaemu LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cudaemu
    CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
target_include_directories(backend_cudaemu PRIVATE ${PROJECT_SOURCE_DIR}/libcoli/include)
target_compile_definitions(backend_cudaemu PRIVATE COLI_BACKEND_PLUGIN COLI_VERSION="${PROJECT_VERSION}" _GNU_SOURCE)
target_compile_options(backend_cudaemu PRIVATE -O2 -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -ffp-contract=off
    $<$<BOOL:${COLI_WERROR}>:-Werror>)
target_link_libraries(backend_cudaemu PRIVATE Threads::Threads)
# The programs that load it are C, and under the emulator of another processor there is no libstdc++.so.
# (A sanitizer would see the runtime's reserve of memory leak with each unloading.)
if(NOT COLI_SANITIZE)
    target_link_options(backend_cudaemu PRIVATE -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL)
endif()
if(COLI_SANITIZE) # coli_flags are for C alone
    target_compile_options(backend_cudaemu PRIVATE -fsanitize=${COLI_SANITIZE} -fno-omit-frame-pointer
        -fno-sanitize-recover=all)
    target_link_options(backend_cudaemu PRIVATE -fsanitize=${COLI_SANITIZE})
endif()

coli_test(cuda_prop prop)
coli_test(cuda_fault fault)
foreach(name IN ITEMS cuda_prop cuda_fault)
    add_dependencies(${name} backend_cudaemu)
    target_compile_definitions(${name} PRIVATE CUDAEMU="$<TARGET_FILE:backend_cudaemu>")
    target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
endforeach()

# What nvcc makes of the kernels, where there is one.
if(TARGET backend_cuda)
    get_target_property(flags backend_cuda COLI_NVCC_FLAGS)
    add_test(NAME unit.cuda_code COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/unit/cuda_code.sh ${cuda}
        $<TARGET_FILE:backend_cuda> ${CMAKE_CURRENT_BINARY_DIR}/cuda_code ${COLI_NVCC} ${flags})
    set_tests_properties(unit.cuda_code PROPERTIES LABELS unit)
endif()
