// SPDX-License-Identifier: MIT
// expected: nprf: all arrays of a call must have the scalar type of its feature map
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/feature_map/elu.hpp"

using namespace nprf;

void call(const MultiHeadAttention<EluFeatures<float>, NoPosition<float>>& attention, HeadsView<float> x,
          HeadsView<double> y) {
  attention(x, x, x, y);
}
