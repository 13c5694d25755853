// SPDX-License-Identifier: MIT
// expected: nprf needs infinities and exact rounding
// flags: -D__FAST_MATH__
#include "nprf/config.hpp"
