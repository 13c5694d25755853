// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/position/alibi.hpp"

nprf::AlibiPosition<int> position(1);
