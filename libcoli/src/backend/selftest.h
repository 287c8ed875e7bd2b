/* selftest.h - before a device is used: does it compute the bits of coli/exact.h? */
#ifndef COLI_BACKEND_SELFTEST_H
#define COLI_BACKEND_SELFTEST_H

#include "device.h"

/* A few rows through random experts, and through a matrix if the device multiplies, in each of these
 * formats (a set of bits).  E_UNSUPPORTED names the format and the numbers that differ;
 * E_IO when a call failed. */
coli_status coli__device_self_test(coli__device *dev, uint32_t formats);

#endif
