# Cache-aware routing.
coli_test(route_test unit)
coli_test(route_oracle oracle)
