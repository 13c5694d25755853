// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <span>

#include "nprf/core/engine.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/lag_bias.hpp"

namespace nprf {

/// A relative position bias: b[lag] is added to every logit, lag = key position - query position.
template <class P>
concept Position = Real<typename P::Scalar> && requires(const P& position) {
  { position.bias() } -> std::convertible_to<const LagBias<typename P::Scalar>&>;
};

/// A position whose parameters can be learned. gradient(first, db, d) gets db = dL/db of the lags first, first + 1, ...
/// and sets d, in the shape of the parameters, to the gradient of the parameters; to zeros if db is empty.
template <class P>
concept LearnedPosition = Position<P> && requires(const P& position, Index first, std::span<const double> db,
                                                  Matrix<double>& d) { position.gradient(first, db, d); };

/// A position that assigns slots (core/slots.hpp) to tokens: GridPosition (grid.hpp). Its first E tokens, the extra
/// tokens, have no slots; extra() has the biases of their pairs (E,E+2): column 0 of row e is for query e and every
/// cell, column 1 for every cell and key e, column 2 + f for query e and key f. The other tokens are the cells 0, 1,
/// ...; slot(i) is the slot of cell i. Slots increase with the cell, with gaps. bias(i, j) is the bias of query token i
/// and key token j. For a near field (AttentionOptions) a position also has pitch(), the difference of the slots of
/// cells that are one row apart.
template <class P>
concept PlacedPosition = Position<P> && requires(const P& position, Index i) {
  { position.tokens() } -> std::convertible_to<Index>;
  { position.slot(i) } -> std::convertible_to<Index>;
  { position.extra() } -> std::convertible_to<const Matrix<typename P::Scalar>&>;
  { position.bias(i, i) } -> std::convertible_to<double>;
};

/// A position that is built for one direction: T5Position (t5.hpp).
template <class P>
concept DirectedPosition = Position<P> && requires(const P& position) {
  { position.direction() } -> std::convertible_to<Direction>;
};

/// Throws InvalidArgument if `direction` is not one of the enumerators, if the position was built for the other
/// direction, or if its bias is not valid (check_bias).
template <Position P>
void check_position(const P& position, Direction direction) {
  check_direction(direction);
  check_bias(position.bias());
  if constexpr (DirectedPosition<P>) {
    const auto word = [](Direction x) { return x == Direction::causal ? "causal" : "bidirectional"; };
    require(position.direction() == direction, "position: expected one for ", word(direction),
            " attention, got one that was built for ", word(position.direction()));
  }
}

/// A position that may be a smooth function of the lag, with fewer parameters than lags. If is_smooth(), it may get the
/// gradient of nearby biases that are smooth far from lag 0 (toeplitz/smooth/engine.hpp): CurvePosition (curve.hpp).
/// tangent(lags, w) then sets w (lags.size()) to a sum of the derivatives of the biases of these lags by the
/// parameters, with weights that make each derivative at most about 1: the gradient is accurate if functions such as w
/// are represented.
template <class P>
concept MaybeSmoothPosition = Position<P> && requires(const P& position, const LagRange& lags, double* w) {
  { position.is_smooth() } -> std::same_as<bool>;
  position.tangent(lags, w);
};

/// A position whose biases of near pairs also depend on the query: QueryBiased (query_biased.hpp). lag_vectors() has a
/// column for each near lag, or is empty.
template <class P>
concept QueryBiasedPosition = Position<P> && requires(const P& position) {
  { position.lag_vectors() } -> std::same_as<const Matrix<typename P::Scalar>&>;
};

/// The bias of query token i and key token j, where the query's position is i + offset; a placed position ignores the
/// offset.
template <Position P>
double bias_between(const P& position, Index i, Index j, Index offset) {
  if constexpr (PlacedPosition<P>)
    return position.bias(i, j);
  else
    return position.bias()[j - i - offset];
}

/// b = 0: no position bias.
template <OnlyReal T>
class NoPosition {
 public:
  using Scalar = T;

  const LagBias<T>& bias() const { return m_bias; }

  /// Sets d to 0 x 0: there are no parameters.
  void gradient(Index, std::span<const double>, Matrix<double>& d) const { d.resize(0, 0); }

 private:
  LagBias<T> m_bias;
};

}  // namespace nprf
