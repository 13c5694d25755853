// SPDX-License-Identifier: MIT
#include "nprf/instances.hpp"

NPRF_CALIBRATION_INSTANCES(, float)
NPRF_CALIBRATION_INSTANCES(, double)
