// SPDX-License-Identifier: MIT
#include "nprf/instances.hpp"

NPRF_INSTANCES(, double)
