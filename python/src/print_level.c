/* SPDX-License-Identifier: MIT
 *
 * Prints this processor's x86-64 level.
 */

#include <stdio.h>

#include "processor_level.h"

int main(void) { return printf("%ld", nprf_processor_level()) < 0; }
