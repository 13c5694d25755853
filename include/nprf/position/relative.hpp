// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_bias.hpp"
#include "nprf/core/resize.hpp"

namespace nprf {

/// A learned bias for each lag -R..R. Lags below -R have the bias of lag -R, lags above R that of lag R (clipping).
template <OnlyReal T>
class RelativePosition {
 public:
  using Scalar = T;

  /// b has 2R+1 scalars; b[R + lag] is the bias of a lag, where -infinity means weight 0. is_smooth: b is a smooth
  /// function of the lag far from 0, with a few parameters of the caller's to which the gradient of b is handed on, as
  /// in FIRE (Li et al. 2024); then that gradient may be the one of a smooth table near b. Throws InvalidArgument for
  /// an even length, NaN or +infinity.
  explicit RelativePosition(Vector<T> b, bool is_smooth = false) : m_is_smooth(is_smooth) {
    require(b.size() % 2 == 1, "b: expected an odd number of scalars, 2n-1 for the lags -(n-1)..n-1, got ", b.size(),
            "; of 2n leave out the one of lag -n or n");
    for (Index l = 0; l < b.size(); ++l)
      require(b[l] < std::numeric_limits<T>::infinity(), "b[", l, "]: expected a finite number or -infinity, got ",
              b[l]);
    m_bias.first = -(b.size() / 2);
    m_bias.table = std::move(b);
  }

  /// R, the largest lag with a scalar of its own.
  Index reach() const { return m_bias.last(); }
  bool is_smooth() const { return m_is_smooth; }
  /// As in MaybeSmoothPosition. The parameters are not known: a wave in log(1 + |lag|), which has a zero about once in
  /// each doubling of the lag beyond some, stands for their derivatives. Gradients of splines of 16 and of 32 knots
  /// were within 1.3e-4 and 2e-3 of their largest entry (n = 8192, float, initial values 0).
  void tangent(const LagRange& lags, double* w) const {
    constexpr double frequency = 4;
    for (Index lag = lags.first; lag <= lags.last; ++lag)
      w[lag - lags.first] = std::cos(frequency * std::log1p(static_cast<double>(std::abs(lag))));
  }
  const LagBias<T>& bias() const { return m_bias; }

  /// Sets d (2R+1,1) to the gradient of the table; db holds dL/db of the lags first, first + 1, ... The gradients of
  /// lags beyond the table are added to its ends.
  void gradient(Index first, std::span<const double> db, Matrix<double>& d) const {
    resize(d, m_bias.table.size());
    d.setZero();
    for (std::size_t l = 0; l < db.size(); ++l)
      d(std::clamp(first + static_cast<Index>(l), -reach(), reach()) + reach(), 0) += db[l];
  }

 private:
  LagBias<T> m_bias;
  bool m_is_smooth;
};

}  // namespace nprf
