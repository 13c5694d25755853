// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"
#include "nprf/position/position.hpp"

namespace nprf {

/// A position with biases that also depend on the query, in the near field:
///
///     b_ij = b[j-i] + r_i.R[j-i]     |j - i| < near;  b[j-i] elsewhere
///
/// where b are the biases of P, R[lag] (rank) is the vector of a lag, and r_i (rank) that of query i, which the queries
/// of a call have in `rank` more channels, after the d channels of the feature map. The vectors r_i are not normalised.
/// An attention with such a position needs a near field (AttentionOptions::near) of the width that R is for. O(rank) a
/// near pair. P must not assign slots to tokens (PlacedPosition).
///
///     QueryBiased position(NoPosition<float>(), R);  // R (rank,near) if causal
///     Attention attention(TaylorFeatures<float>({.input_dim = 64}), position,
///                         {.direction = Direction::causal, .near = near});
///     Matrix<float> y = attention(q, k, v);          // q (n_q,64+rank) k (n_k,64) v (n_k,d_v)
template <Position P>
class QueryBiased : public P {
 public:
  using T = typename P::Scalar;

  /// lag_vectors: R, with a column for each near lag, from lag 1 - near to 0 (rank,near) for causal attention, or to
  /// near - 1 (rank,2near-1) for bidirectional attention. Throws InvalidArgument if an entry is not finite.
  QueryBiased(P position, Matrix<T> lag_vectors) : P(std::move(position)), m_lag_vectors(std::move(lag_vectors)) {
    require(m_lag_vectors.allFinite(), "lag_vectors: expected finite numbers, got others");
  }

  const Matrix<T>& lag_vectors() const { return m_lag_vectors; }

 private:
  Matrix<T> m_lag_vectors;  // (rank,lags)
};

}  // namespace nprf
