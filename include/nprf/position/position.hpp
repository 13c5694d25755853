// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>

#include "nprf/core/lag_bias.hpp"

namespace nprf {

/// How distance enters attention: a bias b[lag] that is added to every logit, lag = key position - query position.
template <class P>
concept Position = Real<typename P::Scalar> && requires(const P& position) {
  { position.bias() } -> std::convertible_to<const LagBias<typename P::Scalar>&>;
};

/// A position whose parameters can be learned: gradient(first, db) turns dL/db, of the lags first, first + 1, ..., into
/// that of the parameters, in their own shape.
template <class P>
concept LearnedPosition = Position<P> && requires(const P& position, Index first, const Vector<double>& db) {
  { position.gradient(first, db) } -> std::convertible_to<Matrix<typename P::Scalar>>;
};

/// b = 0: distance plays no part.
template <Real T>
class NoPosition {
 public:
  using Scalar = T;

  const LagBias<T>& bias() const { return m_bias; }

  /// No parameters: 0 x 0.
  Matrix<T> gradient(Index, const Vector<double>&) const { return Matrix<T>(0, 0); }

 private:
  LagBias<T> m_bias;
};

}  // namespace nprf
