// SPDX-License-Identifier: MIT
// expected: nprf: the first argument of Attention must model nprf::FeatureMap
#include "nprf/attention/attention.hpp"

struct NoMap {
  using Scalar = float;
  nprf::Index input_dim() const { return 4; }
};

const nprf::Attention attention(NoMap{}, nprf::NoPosition<float>{});
