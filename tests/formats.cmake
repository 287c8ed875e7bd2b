# Tests of files, safetensors, the container and the converter.
coli_test(safetensors_test unit)
coli_test(file_test unit)
coli_test(path_test unit)
coli_test(convert_test unit)
coli_test(container_test unit)
coli_test(formats_fault fault)
coli_fuzz(safetensors)
coli_fuzz(container)
