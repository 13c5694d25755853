// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/long_sums.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/exact_tokens.hpp"
#include "nprf/decoder/exponentials.hpp"
#include "nprf/decoder/step_bias.hpp"
#include "nprf/decoder/step_features.hpp"
#include "nprf/decoder/token_ring.hpp"

namespace nprf {

/// The keys of a row that have the weights of softmax, exp(q.k + b - constant): the sinks, the salient keys and the
/// near keys, which are the last keys of the ring; or, if the row is recomputed by exact softmax, all keys of the ring.
/// `constant` is the log-factor of the features of the query, so that these weights have the unit of the far ones; or 0
/// if the row is recomputed. b is relative to the largest bias of the query (StepBias::largest()).
template <Real T>
class ExactKeys {
 public:
  /// For queries of the last of `tokens` tokens, with at most `most` such keys in the ring and `most_kept` kept ones.
  /// `lag_vectors` may be null.
  ExactKeys(const StepBias<T>& bias, const Matrix<T>* lag_vectors, const TokenRing<T>& ring, const ExactTokens<T>& kept,
            Index tokens, Index most, Index most_kept, Workspace& scratch)
      : m_bias(bias),
        m_lag_vectors(lag_vectors),
        m_ring(ring),
        m_kept(kept),
        m_tokens(tokens),
        m_largest_bias(bias.largest(tokens)) {
    m_kept_exponents = scratch.take<double>(padded_to_lanes(most_kept));
    m_kept_weights = scratch.take<T>(padded_to_lanes(most_kept));
    const Index slots = most > 0 ? padded_to_lanes(most) + most_ranges * tile : 0;
    m_exponents = scratch.take<double>(slots);
    if (m_lag_vectors) m_query_biases = scratch.take<T>(m_lag_vectors->cols());
    m_weights = scratch.take<T>(slots);
  }

  /// Computes the exponents for a query, of the first `kept` kept keys and of the keys from token `first` on. Returns
  /// the largest exponent; -infinity if there is none. O(keys d), and O(near rank) for biases of the query.
  double set_exponents(const FeatureRow<T>& row, Index kept, Index first, double constant) {
    const T* query = row.normalized;
    double largest = minus_infinity;
    if (m_lag_vectors)  // r R  (near)
      Eigen::Map<Vector<T>>(m_query_biases, m_lag_vectors->cols()).noalias() =
          m_lag_vectors->transpose() * Eigen::Map<const Vector<T>>(row.vector, m_lag_vectors->rows());
    m_num_kept = kept;
    std::fill(m_kept_exponents + kept, m_kept_exponents + padded_to_lanes(kept), minus_infinity);
    for (Index j = 0; j < kept; ++j) {
      const double b = m_bias(m_tokens - 1 - m_kept.position(j));
      // a key with b = -infinity may be non-finite, so its score is not computed
      m_kept_exponents[j] = b > minus_infinity
                                ? static_cast<double>(m_kept.score(query, j)) + (b - m_largest_bias) - constant
                                : minus_infinity;
      largest = std::max(largest, m_kept_exponents[j]);
    }
    m_num_ranges = 0;
    Index at = 0;
    m_ring.for_each_run(first, m_tokens, [&](Index j, Index s, Index count) {
      const Index slot = s / tile * tile, slots = padded_to_lanes(s + count - slot);
      std::fill_n(m_exponents + at, slots, minus_infinity);
      double* exponents = m_exponents + (at + s - slot);
      const double* b = m_bias.from(m_tokens - 1 - j);
      for (Index i = 0; i < count; ++i) {
        if (b[i] == minus_infinity) continue;  // the key may be non-finite
        const T score = m_ring.score(query, s + i) + query_bias(m_tokens - 1 - j - i);
        exponents[i] = static_cast<double>(score) + (b[i] - m_largest_bias) - constant;
        largest = std::max(largest, exponents[i]);
      }
      m_ranges[m_num_ranges++] = {slot, slots, at};
      at += slots;
    });
    return largest;
  }

  /// The sum of the weights exp(exponent - reference), and the largest finite |v| of the keys that have a weight.
  struct Sums {
    T weights = 0, largest_value = 0;
  };
  /// Adds to N (padded d_v) the finite entries of the values times the weights exp(exponent - reference). `all_finite`
  /// may be true only if all values of the ring are finite. O(keys d_v).
  Sums add(double reference, bool all_finite, T* N) {
    Sums sums;
    if (reference == minus_infinity) return sums;
    exponentials(m_kept_exponents, reference, padded_to_lanes(m_num_kept), m_kept_weights);
    sums.weights = sum_in_runs(m_kept_weights, padded_to_lanes(m_num_kept));
    for (Index j = 0; j < m_num_kept; ++j)
      if (m_kept_exponents[j] > minus_infinity)
        sums.largest_value = std::max(sums.largest_value, m_kept.largest_value(j));
    m_kept.add_values(m_kept_weights, m_num_kept, N);
    for (Index i = 0; i < m_num_ranges; ++i) {
      const auto [slot, slots, at] = m_ranges[i];
      T* weights = m_weights + at;
      exponentials(m_exponents + at, reference, slots, weights);
      P most = P::all(sums.largest_value);
      for (Index s = 0; s < slots; s += P::size)
        most = larger(where_not_zero(P::load(m_ring.largest_values() + slot + s), P::load(weights + s)), most);
      sums.weights += sum_in_runs(weights, slots), sums.largest_value = most.largest();
      if (!all_finite) m_ring.add_finite_entries(weights, slots, N, slot);
      m_ring.add_values(weights, slots, N, slot);
    }
    return sums;
  }

 private:
  using P = Pack<T>;
  static constexpr Index tile = TokenRing<T>::tile, most_ranges = 2;
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

  // r.R of a key of that age
  T query_bias(Index age) const {
    const Index near = m_lag_vectors ? m_lag_vectors->cols() : 0;
    return age < near ? m_query_biases[near - 1 - age] : T(0);
  }

  // the slots slot..slot+slots-1 of the ring, whole tiles; their exponents and weights are stored from `at` on
  struct Range {
    Index slot, slots, at;
  };

  const StepBias<T>& m_bias;
  const Matrix<T>* m_lag_vectors;  // (rank,near)
  const TokenRing<T>& m_ring;
  const ExactTokens<T>& m_kept;
  Index m_tokens, m_num_kept = 0, m_num_ranges = 0;
  double m_largest_bias;
  Range m_ranges[most_ranges];
  double *m_kept_exponents, *m_exponents;
  T *m_kept_weights, *m_weights;
  T* m_query_biases = nullptr;  // (near), from the oldest near key on
};

}  // namespace nprf
