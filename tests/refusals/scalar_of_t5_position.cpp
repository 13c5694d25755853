// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/position/t5.hpp"

const auto position = nprf::t5_position<int>(nprf::Vector<int>(32), nprf::Direction::causal);
