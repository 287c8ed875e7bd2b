# The tests of the tokenizer and the chat template.  The big vocabulary is kept compressed and unpacked
# into the build directory.
set(text_dir ${CMAKE_BINARY_DIR}/fixtures/qwen36)
set(text_packed ${CMAKE_CURRENT_SOURCE_DIR}/fixtures/tokenizer/qwen36/tokenizer.json.tar.xz)
file(MAKE_DIRECTORY ${text_dir})
add_custom_command(OUTPUT ${text_dir}/tokenizer.json
    COMMAND ${CMAKE_COMMAND} -E tar xJf ${text_packed}
    COMMAND ${CMAKE_COMMAND} -E touch ${text_dir}/tokenizer.json
    WORKING_DIRECTORY ${text_dir} DEPENDS ${text_packed} VERBATIM)
add_custom_target(text_fixtures DEPENDS ${text_dir}/tokenizer.json)

coli_test(tokenizer_golden golden)
target_compile_definitions(tokenizer_golden PRIVATE
    TEST_QWEN36_TOKENIZER="${text_dir}/tokenizer.json")
add_dependencies(tokenizer_golden text_fixtures)
coli_test(chat_golden golden)
coli_test(split_test unit)
coli_test(tokenizer_test unit)
coli_test(tokenizer_prop prop)
coli_test(chat_template_test unit)
coli_test(chat_template_prop prop)
coli_test(text_fault fault)
coli_fuzz(tokenizer)
coli_fuzz(chat)
