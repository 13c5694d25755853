// SPDX-License-Identifier: MIT
#include "nprf/instances.hpp"

NPRF_DECODER_INSTANCES(, float)
NPRF_DECODER_INSTANCES(, double)
