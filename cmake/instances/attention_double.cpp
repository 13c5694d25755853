// SPDX-License-Identifier: MIT
#define NPRF_IMPLEMENT 0
#include "nprf/implementation.hpp"

NPRF_FEATURE_INSTANCES(, double)
NPRF_ATTENTION_INSTANCES(, double)
