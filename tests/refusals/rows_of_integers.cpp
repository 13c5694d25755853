// SPDX-License-Identifier: MIT
// expected: nprf: the rows of a projection must have the scalar type of their feature map
#include "nprf/feature_map/positive.hpp"

nprf::PositiveFeatures<float> map(nprf::Matrix<int>(4, 8));
