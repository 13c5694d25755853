// SPDX-License-Identifier: MIT
#include <nprf/nprf.hpp>

// a second translation unit: header-only code must link
nprf::Matrix<float> second(const nprf::Matrix<float>& x) {
  return nprf::Attention(nprf::orf<float>(8, 16), nprf::NoPosition<float>())(x, x, x);
}
