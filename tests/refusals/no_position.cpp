// SPDX-License-Identifier: MIT
// expected: nprf: the second argument of Attention must model nprf::Position
#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"

struct Nowhere {
  using Scalar = float;
};

const nprf::Attention attention(nprf::EluFeatures<float>(4), Nowhere{});
