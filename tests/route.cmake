# Cache-aware routing.
coli_test(route_test unit)
coli_test(route_oracle oracle)
coli_device_test(route_run prop fake)
