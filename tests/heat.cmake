# Heat, the plans that follow from it, and the file that keeps it.
coli_test(heat_test unit)
coli_test(plan_test unit)
coli_test(replan_test unit)
coli_test(heat_file_test unit)
coli_test(plan_prop prop)
coli_test(replan_prop prop)
