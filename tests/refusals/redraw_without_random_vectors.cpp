// SPDX-License-Identifier: MIT
// expected: nprf: redraw needs a feature map with random vectors
#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"

using namespace nprf;

auto call(const Attention<EluFeatures<float>, NoPosition<float>>& attention) {
  return attention.redraw(1);  // refused
}
