# Tests of files, safetensors, the container and the converter.
coli_test(safetensors_test unit)
coli_test(file_test unit)
coli_test(convert_test unit)
