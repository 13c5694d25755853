/* SPDX-License-Identifier: MIT
 *
 * Prints this processor's x86-64 level.
 */

#include <stdio.h>

#include "cpu_level.h"

int main(void) { return printf("%ld", nprf_cpu_level()) < 0; }
