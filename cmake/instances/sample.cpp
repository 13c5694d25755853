// SPDX-License-Identifier: MIT
#include "nprf/instances.hpp"

NPRF_SAMPLE_INSTANCES(, float)
NPRF_SAMPLE_INSTANCES(, double)
