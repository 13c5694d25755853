// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <span>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_bias.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/resize.hpp"

namespace nprf {

/// A function of the lag with a few parameters. bias(lag) is finite; add_gradient(lag, db, d) adds db times the
/// derivatives of bias(lag) to d (num_parameters). with_parameters(p) is the same curve with others.
template <class C>
concept Curve = requires(const C& curve, Index lag, double db, double* d, std::span<const double> parameters) {
  { curve.num_parameters() } -> std::convertible_to<Index>;
  { curve.bias(lag) } -> std::convertible_to<double>;
  curve.add_gradient(lag, db, d);
  { curve.with_parameters(parameters) } -> std::convertible_to<C>;
};

/// A bias that is a curve: KerpleLog, KerplePower (kerple.hpp), AlibiSum (alibi_sum.hpp), Spline (spline.hpp), or a
/// user's own. Gradients are those of the curve's parameters.
///
/// Where the curve is smooth far from lag 0, attention with this bias takes O(n): Engine::automatic may choose the
/// engine `smooth` in training, too.
template <OnlyReal T, Curve C>
class CurvePosition {
 public:
  using Scalar = T;

  /// The curve at the lags -reach..reach, continued by straight lines through its last two lags. The reach should be at
  /// least the number of tokens. Throws InvalidArgument for a reach below 1, and for biases that T does not represent.
  /// O(reach).
  CurvePosition(C curve, Index reach) : m_curve(std::move(curve)), m_reach(reach) {
    require(reach >= 1, "reach: expected at least 1, got ", reach);
    m_bias.first = -reach;
    resize(m_bias.table, 2 * reach + 1);
    for (Index lag = -reach; lag <= reach; ++lag) m_bias.table[lag + reach] = static_cast<T>(m_curve.bias(lag));
    m_bias.slope_before = static_cast<T>(m_curve.bias(-reach) - m_curve.bias(1 - reach));
    m_bias.slope_after = static_cast<T>(m_curve.bias(reach) - m_curve.bias(reach - 1));
    for (Index lag = -reach; lag <= reach; ++lag)
      require(std::isfinite(m_bias.table[lag + reach]), "curve: expected finite biases, got ",
              m_bias.table[lag + reach], " at lag ", lag);
    check_bias(m_bias);
  }

  const C& curve() const { return m_curve; }
  Index reach() const { return m_reach; }
  bool is_smooth() const { return true; }
  const LagBias<T>& bias() const { return m_bias; }

  /// The same curve for other lengths, or with other parameters.
  CurvePosition with_reach(Index reach) const { return CurvePosition(m_curve, reach); }
  CurvePosition with_parameters(std::span<const double> parameters) const {
    return CurvePosition(m_curve.with_parameters(parameters), m_reach);
  }

  /// Sets d (parameters,1) to the gradient of the parameters; db holds dL/db of the lags first, first + 1, ...
  void gradient(Index first, std::span<const double> db, Matrix<double>& d) const {
    resize(d, m_curve.num_parameters());
    d.setZero();
    for (std::size_t l = 0; l < db.size(); ++l) add_gradient(first + static_cast<Index>(l), db[l], d.data());
  }

  /// As in MaybeSmoothPosition. O(lags parameters).
  void tangent(const LagRange& lags, double* w) const {
    const Index size = m_curve.num_parameters();
    Vector<double> d(size), largest = Vector<double>::Zero(size);
    const auto set_derivatives = [&](Index lag) {
      d.setZero();
      add_gradient(lag, 1, d.data());
    };
    for (Index lag = lags.first; lag <= lags.last; ++lag) {
      set_derivatives(lag);
      for (Index k = 0; k < size; ++k) largest[k] = std::max(largest[k], std::abs(d[k]));
    }
    for (Index lag = lags.first; lag <= lags.last; ++lag) {
      set_derivatives(lag);
      double sum = 0;
      // signs in the order of the Thue-Morse sequence, so that no simple sum of derivatives vanishes
      for (Index k = 0; k < size; ++k)
        if (largest[k] > 0) sum += (std::popcount(static_cast<std::size_t>(k)) % 2 == 0 ? d[k] : -d[k]) / largest[k];
      w[lag - lags.first] = sum;
    }
  }

 private:
  // adds db times the derivatives of the bias of a lag to d (parameters)
  void add_gradient(Index lag, double db, double* d) const {
    const Index end = lag < 0 ? -m_reach : m_reach, beyond = std::abs(lag) - m_reach;
    if (beyond <= 0) return m_curve.add_gradient(lag, db, d);
    const double steps = static_cast<double>(beyond);
    m_curve.add_gradient(end, (1 + steps) * db, d);
    m_curve.add_gradient(lag < 0 ? end + 1 : end - 1, -steps * db, d);
  }

  C m_curve;
  Index m_reach;
  LagBias<T> m_bias;
};

}  // namespace nprf
