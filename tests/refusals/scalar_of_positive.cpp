// SPDX-License-Identifier: MIT
// expected: nprf: the scalar must be float or double
#include "nprf/feature_map/positive.hpp"

nprf::PositiveFeatures<int> map({.input_dim = 4, .num_features = 8});
