// SPDX-License-Identifier: MIT
#define NPRF_IMPLEMENT 0
#include "nprf/implementation.hpp"

NPRF_DECODER_INSTANCES(, float)
NPRF_DECODER_INSTANCES(, double)
