// SPDX-License-Identifier: MIT
#define NPRF_IMPLEMENT 0
#include "nprf/implementation.hpp"

NPRF_PRODUCT_INSTANCES(, double)
