// SPDX-License-Identifier: MIT
#include "nprf/instances.hpp"

NPRF_ATTENTION_INSTANCES(, float)
