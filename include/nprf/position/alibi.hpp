// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <span>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_bias.hpp"
#include "nprf/core/resize.hpp"

namespace nprf {

/// ALiBi: b = -slope |lag| (Press et al. 2022). A negative slope is accepted: training may pass through it, and then
/// the weights grow with distance.
template <OnlyReal T>
class AlibiPosition {
 public:
  using Scalar = T;

  /// Throws InvalidArgument unless |slope| <= 1e30, so that every bias is finite.
  explicit AlibiPosition(T slope) {
    require(std::abs(slope) <= T(1e30), "slope: expected a number between -1e30 and 1e30, got ", slope);
    m_bias.slope_before = m_bias.slope_after = -slope;
  }

  T slope() const { return -m_bias.slope_after; }
  const LagBias<T>& bias() const { return m_bias; }

  /// dL/dslope (1,1) = -sum over lags l of |l| dL/db[l]; db holds dL/db of the lags first, first + 1, ...
  void gradient(Index first, std::span<const double> db, Matrix<double>& d) const {
    resize(d, 1);
    d.setZero();
    for (std::size_t l = 0; l < db.size(); ++l)
      d(0, 0) -= static_cast<double>(std::abs(first + static_cast<Index>(l))) * db[l];
  }

 private:
  LagBias<T> m_bias;
};

}  // namespace nprf
