# Tests of models with random weights, of the clock, and of what a machine can do.
coli_test(synth_test unit)
coli_test(measure_test unit)
