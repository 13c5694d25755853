// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/position/grid.hpp"

nprf::GridPosition<int> position(1, 1, nprf::Matrix<int>(1, 1));
