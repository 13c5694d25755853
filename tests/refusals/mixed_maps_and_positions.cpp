// SPDX-License-Identifier: MIT
// expected: nprf: the feature maps and the positions must have the same scalar, float or double
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/feature_map/elu.hpp"

const nprf::MultiHeadAttention attention(nprf::EluFeatures<float>(4), std::vector(2, nprf::NoPosition<double>()));
