// SPDX-License-Identifier: MIT
#include "nprf/instances.hpp"

NPRF_PRODUCT_INSTANCES(, float)
