// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>

#include "nprf/core/block_product.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// The weight w_ij = c[t_j - s_i] e^(e_j - M_i) of each pair of a query i in slot s_i and a key j in slot t_j. e_j is
/// the key's log-scale, and e^M_i is what row i is divided by (factors.hpp).
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

  /// keys_of: the range of keys to which queries i..i_last may give non-zero weights. queries_of: the range of queries
  /// that may give non-zero weights to keys j..j_last.
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

/// The weights of some queries with all keys, or of some keys with all queries. In both cases the functions of
/// TileWeights call the rows queries and the columns keys.
template <Real T>
class SelectedPairWeights final : public TileWeights<T> {
 public:
  /// `numbers` are the indices of the rows among all queries or all keys, in increasing order.
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

/// Gradients of some queries, keys and lags by the sums of their definition (factors.hpp), for a product whose engine
/// rounds them too coarsely. Each is rounded relative to its own terms.
template <Real T>
class RecomputedGradients {
 public:
  RecomputedGradients(const PairWeights<T>& weights, const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T>& out,
                      const Team& team)
      : m_weights(weights), m_x(x), m_G(G), m_out(out), m_team(team) {}

  /// Writes dA_i = sum_j w_ij (G_i.U_j) B_j for these queries i. O(n_k (r + p)) each.
  void queries(std::span<const Index> numbers) const {
    contract(Weights(TileRows::queries, m_weights, numbers), {m_G, m_x.U, m_x.B, {}, {}}, m_out.dA);
  }

  /// Writes dB_j = sum_i w_ij (G_i.U_j) A_i and dU_j = sum_i w_ij (A_i.B_j) G_i for these keys j. O(n_q (r + p)) each.
  void keys(std::span<const Index> numbers) const {
    contract(Weights(TileRows::keys, m_weights, numbers), {m_x.U, m_G, m_x.A, {}, {}}, m_out.dB);
    contract(Weights(TileRows::keys, m_weights, numbers), {m_x.B, m_x.A, m_G, {}, {}}, m_out.dU);
  }

  /// Writes dc_l = sum over t_j - s_i = l of e^(e_j - M_i) (A_i.B_j)(G_i.U_j) for these lags l. dc[0] is for the lag
  /// `first`. O(r + p) for each pair.
  void lags(std::span<const Index> numbers, Index first) const {
    m_team.run(static_cast<Index>(numbers.size()), [&](Index at, Workspace&) {
      const Index lag = numbers[static_cast<std::size_t>(at)];
      double sum = 0;
      for_each_pair(lag, [&](Index i, Index j) {
        sum += static_cast<double>(dot(row_of(m_x.A, i), row_of(m_x.B, j))) *
               static_cast<double>(dot(row_of(m_G, i), row_of(m_x.U, j))) * static_cast<double>(m_weights.factor(i, j));
      });
      m_out.dc[lag - first] = static_cast<T>(sum);
    });
  }

  /// Writes all gradients, computed by tiles as in the direct engine. dc[0] is for the lag `first`. O(n_q n_k (r + p)).
  void all(Index first) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index n_q = m_x.A.rows(), lags = m_out.dc.size();
    Index* numbers = workspace.template take<Index>(n_q);
    std::iota(numbers, numbers + n_q, Index{0});
    const Weights weights(TileRows::queries, m_weights, {numbers, static_cast<std::size_t>(n_q)});
    m_out.set_zero();
    const auto c_dc =
        TiledProduct<T>(m_x, weights).add_gradients(m_G, m_out, lags, m_team, [&](const PairRow<T>& pairs, T* share) {
          const Slots &q = m_x.queries.slots, &k = m_x.keys.slots;
          for (Index j = 0; lags > 0 && j < pairs.count; ++j)
            share[k[pairs.j0 + j] - q[pairs.i] - first] +=
                pairs.C[j] == T(0) ? T(0) : pairs.S[j] * pairs.P[j] * pairs.C[j];
        });
    for (Index l = 0; l < lags; ++l)
      if (const T c = m_weights.at_lag(first + l); c > T(0)) {
        T sum = 0;
        for (Index block = 0; block < c_dc.rows(); ++block) sum += c_dc(block, l);
        m_out.dc[l] = sum / c;
      }
  }

  /// Calls use(i, j) for each query and key at this lag.
  template <class Use>
  void for_each_pair(Index lag, Use&& use) const {
    const Slots &q = m_x.queries.slots, &k = m_x.keys.slots;
    for (Index i = 0, j = k.below((q.count > 0 ? q[0] : 0) + lag); i < q.count && j < k.count; ++i) {
      while (j < k.count && k[j] < q[i] + lag) ++j;
      if (j < k.count && k[j] == q[i] + lag) use(i, j);
    }
  }

 private:
  using Weights = SelectedPairWeights<T>;

  // writes the rows weights.numbers() of ((A B^T) o W) U to the same rows of out, for the weights W
  void contract(const Weights& weights, const Factors<T>& x, MatrixRef<T>& out) const {
    const Index count = static_cast<Index>(weights.numbers().size());
    const auto number = [&](Index k) { return weights.numbers()[static_cast<std::size_t>(k)]; };
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    auto A = workspace.template matrix<T>(count, x.A.cols()), Y = workspace.template matrix<T>(count, x.U.cols());
    for (Index k = 0; k < count; ++k) std::ranges::copy(row_of(x.A, number(k)), writable_row(A, k).data());
    const Factors<T> selected = Factors<T>::without_gaps(A, x.B, x.U);
    TiledProduct<T>(selected, weights).contract(Y, m_team, nullptr);
    for (Index k = 0; k < count; ++k) std::ranges::copy(row_of(Y, k), writable_row(out, number(k)).data());
  }

  const PairWeights<T>& m_weights;
  const Factors<T>& m_x;
  const MatrixView<T>& m_G;
  GradientRefs<T>& m_out;
  const Team& m_team;
};

}  // namespace nprf::toeplitz
