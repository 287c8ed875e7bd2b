# Tests of the clock, and of what a machine can do.
coli_test(measure_test unit)
