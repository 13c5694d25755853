// SPDX-License-Identifier: MIT
// expected: nprf: all arrays of a call must have the scalar type of its feature map
#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"

using namespace nprf;

auto call(const Attention<EluFeatures<float>, NoPosition<float>>& attention, const Matrix<double>& x) {
  return attention(x, x, x);
}
