// SPDX-License-Identifier: MIT
#define NPRF_IMPLEMENT 0
#include "nprf/implementation.hpp"

NPRF_FEATURE_INSTANCES(, float)
NPRF_ATTENTION_INSTANCES(, float)
