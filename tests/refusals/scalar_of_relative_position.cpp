// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/position/relative.hpp"

nprf::RelativePosition<int> position(nprf::Vector<int>{{1, 2, 1}});
