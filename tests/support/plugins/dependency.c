/* dependency.c - a library that a plugin needs (probe.c with PROBE_DEPENDS). */
__attribute__((visibility("default"))) void probe_dependency(void);
void probe_dependency(void) {}
