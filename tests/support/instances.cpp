// SPDX-License-Identifier: MIT
#include "support/instances.hpp"

NPRF_TESTS_INSTANCES(, float)
NPRF_TESTS_INSTANCES(, double)
