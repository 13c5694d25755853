// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/position/position.hpp"

nprf::NoPosition<long double> position;
