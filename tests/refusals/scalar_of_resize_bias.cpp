// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/position/resize_bias.hpp"

const auto table = nprf::resize_bias(nprf::Vector<int>{{1, 2, 1}}, 5);
