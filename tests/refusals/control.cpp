// SPDX-License-Identifier: MIT
#include "nprf/attention/attention.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/feature_map/elu.hpp"

using namespace nprf;

struct Fixed {
  using Scalar = float;
  LagBias<float> bias() const { return {}; }
};

auto call(const Attention<EluFeatures<float>, Fixed>& attention, const Matrix<float>& x, Saved<float>& saved) {
  Matrix<float> y = attention(x, x, x, {.offset = 1});
  y += attention.forward(x.topRows(2), 2 * x, x, saved);
  return y;
}

void call(const MultiHeadAttention<EluFeatures<double>, NoPosition<double>>& attention, HeadsView<double> x,
          HeadsView<const double> v, Saved<double>& saved) {
  std::vector<Matrix<double>> dbias;
  attention(x, x, v, x, {.offset = 1});
  attention.forward(x, v, v, x, saved);
  attention.backward(saved, v, x, x, x, dbias);
}
