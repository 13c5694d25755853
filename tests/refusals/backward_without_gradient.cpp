// SPDX-License-Identifier: MIT
// expected: nprf: backward needs a position with gradient()
#include "nprf/attention/attention.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/feature_map/elu.hpp"

using namespace nprf;

struct Fixed {
  using Scalar = float;
  LagBias<float> bias() const { return {}; }
};

auto call(const Attention<EluFeatures<float>, Fixed>& attention, const Saved<float>& saved, const Matrix<float>& dy) {
  return attention.backward(saved, dy);  // refused
}

void call(const MultiHeadAttention<EluFeatures<float>, Fixed>& attention, const Saved<float>& saved,
          HeadsView<float> x) {
  std::vector<Matrix<float>> dbias;
  attention.backward(saved, x, x, x, x, dbias);  // refused
}
