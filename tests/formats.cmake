# Tests of files, safetensors, the container and the converter.
coli_test(safetensors_test unit)
