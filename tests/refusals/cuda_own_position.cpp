// SPDX-License-Identifier: MIT
// expected: nprf: on a GPU the position must be one of nprf's own
#include "nprf/cuda/plan/model_of.hpp"

using namespace nprf;

struct Fixed {
  using Scalar = float;
  LagBias<float> bias() const { return {}; }
};

const auto model = cuda::model_of(Attention(EluFeatures<float>(4), Fixed{}));
