// SPDX-License-Identifier: MIT
// expected: nprf needs infinities and exact rounding
#define __FAST_MATH__
#include "nprf/config.hpp"
