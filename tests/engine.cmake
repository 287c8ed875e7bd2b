# Tests of the engines and the run layer.
coli_test(qwen36_fixture golden)
coli_test(same_bytes prop)
coli_test(session_test unit)
coli_test(hummingbird golden)
coli_test(chat_test golden)
set_tests_properties(golden.hummingbird PROPERTIES TIMEOUT 1200)
coli_test(moe_oracle oracle)
coli_test(threads_test unit)
