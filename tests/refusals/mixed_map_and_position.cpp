// SPDX-License-Identifier: MIT
// expected: nprf: the feature map and the position of an Attention must have the same scalar, float or double
#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"

const nprf::Attention attention(nprf::EluFeatures<float>(4), nprf::NoPosition<double>());
