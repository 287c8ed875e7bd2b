/* volk.c - the implementation of volk, which its package brings as a header. */
#define VOLK_IMPLEMENTATION
#include <volk.h>
