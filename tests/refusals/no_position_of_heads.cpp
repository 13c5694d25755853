// SPDX-License-Identifier: MIT
// expected: nprf: the second argument of MultiHeadAttention must model nprf::Position
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/feature_map/elu.hpp"

const nprf::MultiHeadAttention attention(nprf::EluFeatures<float>(4), std::vector<int>{1, 2});
