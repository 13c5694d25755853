// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/core/block_product.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/direct/tile_weights.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// The weight c[t_j - s_i] e^(e_j - M_i) of each pair of a query and a key, with the key log-scales e (factors.hpp).
template <Real T>
class PairWeights {
 public:
  PairWeights(LagWeightsView<T> c, const Factors<T>& x, const Team& team)
      : m_c(c),
        m_support(c.support()),
        m_queries(x.queries.slots),
        m_keys(x.keys.slots),
        m_log_scales(x.key_log_scales) {
    if (!m_log_scales) return;
    m_largest = team.workspace().template take<double>(m_queries.count);
    double largest = -std::numeric_limits<double>::infinity();
    for (Index i = 0, j = 0; i < m_queries.count; ++i) {
      for (const Index end = m_keys.below(m_queries[i] + m_support.last + 1); j < end; ++j)
        largest = std::max(largest, m_log_scales[j]);
      m_largest[i] = largest;
    }
  }

  T operator()(Index i, Index j) const { return m_c[m_keys[j] - m_queries[i]] * factor(i, j); }

  /// e^(e_j - M_i). It is 0 if e_j > M_i: then the query does not attend to the key.
  T factor(Index i, Index j) const {
    if (!m_log_scales) return 1;
    const double exponent = m_log_scales[j] - m_largest[i];
    return exponent <= 0 ? static_cast<T>(std::exp(exponent)) : T(0);
  }

  T at_lag(Index lag) const { return m_c[lag]; }

  /// The keys that queries i..i_last may have non-zero weights for, and the queries that may have them for keys
  /// j..j_last.
  RowRange keys_of(Index i, Index i_last) const {
    return {m_keys.below(m_queries[i] + m_support.first), m_keys.below(m_queries[i_last] + m_support.last + 1)};
  }
  RowRange queries_of(Index j, Index j_last) const {
    return {m_queries.below(m_keys[j] - m_support.last), m_queries.below(m_keys[j_last] - m_support.first + 1)};
  }

 private:
  LagWeightsView<T> m_c;
  LagRange m_support;
  Slots m_queries, m_keys;
  const double* m_log_scales;
  double* m_largest = nullptr;  // M (n_q)
};

/// Which tokens are the rows of a tile; the others are its columns.
enum class TileRows { queries, keys };

/// The weights of some queries and all keys, or of some keys and all queries, in which rows are called queries and
/// columns keys.
template <Real T>
class SelectedPairWeights final : public TileWeights<T> {
 public:
  /// For the rows with these numbers, increasing.
  SelectedPairWeights(TileRows rows, const PairWeights<T>& weights, std::span<const Index> numbers)
      : m_rows(rows), m_weights(weights), m_numbers(numbers) {}

  std::span<const Index> numbers() const { return m_numbers; }

  void set(const PairBlock& of, WeightBlock<T>& c) const override {
    for (Index k = 0; k < Block<T>::rows; ++k) {
      const Index row = number(of.i + std::min(k, of.rows - 1));
      T* weights = c.own_row(k);
      for (Index j = 0; j < of.count; ++j)
        weights[j] = m_rows == TileRows::queries ? m_weights(row, of.j0 + j) : m_weights(of.j0 + j, row);
      std::fill(weights + of.count, weights + of.packs * Pack<T>::size, T(0));
    }
  }

  RowRange keys(Index k0, Index count, Index) const override {
    const Index first = number(k0), last = number(k0 + count - 1);
    return m_rows == TileRows::queries ? m_weights.keys_of(first, last) : m_weights.queries_of(first, last);
  }

 private:
  Index number(Index k) const { return m_numbers[static_cast<std::size_t>(k)]; }

  TileRows m_rows;
  const PairWeights<T>& m_weights;
  std::span<const Index> m_numbers;
};

}  // namespace nprf::toeplitz
