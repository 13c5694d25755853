// SPDX-License-Identifier: MIT
#define NPRF_IMPLEMENT 0
#include "nprf/implementation.hpp"

NPRF_SAMPLE_INSTANCES(, float)
NPRF_SAMPLE_INSTANCES(, double)
