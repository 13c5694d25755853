// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/core/block_product.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// The weight c[t_j - s_i] e^(e_j - M_i) of each pair of a query and a key (shapes.hpp), looked up one by one.
template <Real T>
class PairWeights {
 public:
  /// Refers to the weights' table and to the factors' slots and exponents; its own table lies in the team's workspace.
  PairWeights(LagWeightsView<T> c, const Factors<T>& x, const Team& team)
      : m_c(c), m_queries(x.queries.slots), m_keys(x.keys.slots), m_exponents(x.key_log_scales) {
    if (!m_exponents) return;
    const Index last = c.support().last;
    m_largest = team.workspace().template take<double>(m_queries.count);
    double largest = -std::numeric_limits<double>::infinity();
    for (Index i = 0, j = 0; i < m_queries.count; ++i) {
      for (const Index end = m_keys.below(m_queries[i] + last + 1); j < end; ++j)
        largest = std::max(largest, m_exponents[j]);
      m_largest[i] = largest;
    }
  }

  T operator()(Index i, Index j) const { return m_c[m_keys[j] - m_queries[i]] * factor(i, j); }

  /// e^(e_j - M_i), and 0 where that is above 1: then the query does not attend to the key.
  T factor(Index i, Index j) const {
    if (!m_exponents) return 1;
    const double exponent = m_exponents[j] - m_largest[i];
    return exponent <= 0 ? static_cast<T>(std::exp(exponent)) : T(0);
  }

  const Slots& queries() const { return m_queries; }
  const Slots& keys() const { return m_keys; }
  /// The lags of non-zero weight.
  LagRange support() const { return m_c.support(); }
  T at_lag(Index lag) const { return m_c[lag]; }

 private:
  LagWeightsView<T> m_c;
  Slots m_queries, m_keys;
  const double* m_exponents;
  double* m_largest = nullptr;  // M (n_q)
};

/// Weights of a tile (direct/forward_tile.hpp) whose rows are some queries and whose columns are keys, or the other way
/// round.
template <Real T>
class TilePairWeights {
 public:
  enum class Rows { queries, keys };

  /// For the rows of these numbers, and runs of at most `most` columns.
  TilePairWeights(Rows rows, const PairWeights<T>& weights, std::span<const Index> numbers, Index most,
                  Workspace& scratch)
      : m_rows(rows),
        m_weights(weights),
        m_numbers(numbers),
        m_most(most),
        m_values(scratch.take<T>(Block<T>::rows * most)) {}

  /// Of rows k0..k0+rows-1 of them and columns j0..j0+count-1, zeros beside the last column.
  void set(Index k0, Index rows, Index j0, Index count, Index packs) {
    for (Index k = 0; k < Block<T>::rows; ++k) {
      const Index number = m_numbers[static_cast<std::size_t>(k0 + std::min(k, rows - 1))];
      T* row = m_values + k * m_most;
      for (Index j = 0; j < count; ++j)
        row[j] = m_rows == Rows::queries ? m_weights(number, j0 + j) : m_weights(j0 + j, number);
      std::fill(row + count, row + packs * Pack<T>::size, T(0));
    }
  }

  const T* row(Index k) const { return m_values + k * m_most; }

 private:
  Rows m_rows;
  const PairWeights<T>& m_weights;
  std::span<const Index> m_numbers;
  Index m_most;
  T* m_values;
};

}  // namespace nprf::toeplitz
