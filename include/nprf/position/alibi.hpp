// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_bias.hpp"

namespace nprf {

/// ALiBi: b = -slope |lag| (Press et al. 2022).
template <Real T>
class AlibiPosition {
 public:
  using Scalar = T;

  /// Throws InvalidArgument unless |slope| <= 1e30, which keeps every bias finite.
  explicit AlibiPosition(T slope) {
    require(std::abs(slope) <= T(1e30), "slope: expected a number between -1e30 and 1e30, got ", slope);
    m_bias.slope_before = m_bias.slope_after = -slope;
  }

  T slope() const { return -m_bias.slope_after; }
  const LagBias<T>& bias() const { return m_bias; }

  /// dL/dslope (1,1) = -sum_l |l| db[l].
  Matrix<T> gradient(Index first, const Vector<double>& db) const {
    double sum = 0;
    for (Index l = 0; l < db.size(); ++l) sum -= static_cast<double>(std::abs(first + l)) * db[l];
    return Matrix<T>::Constant(1, 1, static_cast<T>(sum));
  }

 private:
  LagBias<T> m_bias;
};

}  // namespace nprf
