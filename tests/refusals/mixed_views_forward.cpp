// SPDX-License-Identifier: MIT
// expected: nprf: all arrays of a call must have the scalar type of its feature map
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/feature_map/elu.hpp"

using namespace nprf;

void call(const MultiHeadAttention<EluFeatures<float>, NoPosition<float>>& attention, HeadsView<const float> x,
          HeadsView<const double> v, HeadsView<float> y, Saved<float>& saved) {
  attention.forward(x, x, v, y, saved);
}
