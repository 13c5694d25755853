// SPDX-License-Identifier: MIT
// expected: nprf: all arrays of a call must have the scalar of its feature map
#include "nprf/feature_map/elu.hpp"
#include "nprf/multi_head/multi_head_attention.hpp"

using namespace nprf;

void call(const MultiHeadAttention<EluFeatures<float>, NoPosition<float>>& attention, HeadsView<float> x,
          HeadsView<double> y) {
  attention(x, x, x, y);
}
