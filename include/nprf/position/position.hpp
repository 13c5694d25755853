// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <span>

#include "nprf/core/lag_bias.hpp"

namespace nprf {

/// How distance enters attention: a bias b[lag] that is added to every logit, lag = key position - query position.
template <class P>
concept Position = Real<typename P::Scalar> && requires(const P& position) {
  { position.bias() } -> std::convertible_to<const LagBias<typename P::Scalar>&>;
};

/// A position whose parameters can be learned: gradient(first, db, d) turns dL/db, of the lags first, first + 1, ...,
/// into that of the parameters, and sets d to it, in their own shape; to zeros for an empty db.
template <class P>
concept LearnedPosition = Position<P> && requires(const P& position, Index first, std::span<const double> db,
                                                  Matrix<double>& d) { position.gradient(first, db, d); };

/// A position whose tokens do not follow each other slot by slot, or stand outside of all slots: GridPosition
/// (grid.hpp).
/// slot(i) rises with the cell i; bias(i, j) is that of query token i for key token j.
template <class P>
concept PlacedPosition = Position<P> && requires(const P& position, Index i) {
  { position.tokens() } -> std::convertible_to<Index>;
  { position.slot(i) } -> std::convertible_to<Index>;
  { position.extra() } -> std::convertible_to<const Matrix<typename P::Scalar>&>;
  { position.bias(i, i) } -> std::convertible_to<double>;
};

/// The bias that query token i, `offset` further on, has for key token j.
template <Position P>
double bias_between(const P& position, Index i, Index j, Index offset) {
  if constexpr (PlacedPosition<P>)
    return position.bias(i, j);
  else
    return position.bias()[j - i - offset];
}

/// b = 0: distance plays no part.
template <OnlyReal T>
class NoPosition {
 public:
  using Scalar = T;

  const LagBias<T>& bias() const { return m_bias; }

  /// No parameters: 0 x 0.
  void gradient(Index, std::span<const double>, Matrix<double>& d) const { d.resize(0, 0); }

 private:
  LagBias<T> m_bias;
};

}  // namespace nprf
