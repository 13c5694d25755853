// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

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

/// Gradients of some queries, keys and lags by the sums of their definition (factors.hpp), for a product whose engine
/// rounds them too coarsely. Each is rounded relative to its own terms.
template <Real T>
class RecomputedGradients {
 public:
  RecomputedGradients(const PairWeights<T>& weights, const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T>& out,
                      const Team& team)
      : m_weights(weights), m_x(x), m_G(G), m_out(out), m_team(team) {}

  /// Writes dA_i = sum_j w_ij (G_i.U_j) B_j for these queries i, which must increase. O(n_k (r + p)) each.
  void queries(std::span<const Index> numbers) const {
    const RowSubset rows(numbers, m_team);
    const auto weight = [&](Index i, Index j) { return m_weights(rows.index(i), j); };
    const auto keys = [&](Index i, Index n) { return m_weights.keys_of(rows.index(i), rows.index(i + n - 1)); };
    const EachWeight weights(weight, keys);
    contract(rows, weights, {m_G, m_x.U, m_x.B, {}, {}}, m_out.dA);
  }

  /// Writes dB_j = sum_i w_ij (G_i.U_j) A_i and dU_j = sum_i w_ij (A_i.B_j) G_i for these keys j, which must increase.
  /// O(n_q (r + p)) each.
  void keys(std::span<const Index> numbers) const {
    const RowSubset rows(numbers, m_team);  // of tiles whose rows are keys, and whose keys are queries
    const auto weight = [&](Index j, Index i) { return m_weights(i, rows.index(j)); };
    const auto queries = [&](Index j, Index n) { return m_weights.queries_of(rows.index(j), rows.index(j + n - 1)); };
    const EachWeight weights(weight, queries);
    contract(rows, weights, {m_x.U, m_G, m_x.A, {}, {}}, m_out.dB);
    contract(rows, weights, {m_x.B, m_x.A, m_G, {}, {}}, m_out.dU);
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
    const Workspace::Scope scope(m_team.workspace());
    const Index lags = m_out.dc.size();
    const auto weight = [&](Index i, Index j) { return m_weights(i, j); };
    const auto keys = [&](Index i, Index n) { return m_weights.keys_of(i, i + n - 1); };
    const EachWeight weights(weight, keys);
    m_out.set_zero();
    const auto c_dc =
        TiledProduct<T>(m_x, weights).add_gradients(m_G, m_out, lags, m_team, [&](const PairRow<T>& pairs, T* share) {
          const Slots &q = m_x.queries.slots, &k = m_x.keys.slots;
          for (Index j = 0; lags > 0 && j < pairs.count; ++j)
            share[k[pairs.j0 + j] - q[pairs.i] - first] += pairs.log_weight_gradient(j);
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
  // writes these rows of ((A B^T) o W) U to the same rows of out
  void contract(const RowSubset& rows, const TileWeights<T>& W, const Factors<T>& x, MatrixRef<T>& out) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const MatrixView<T> A = rows.of<T>(x.A);
    auto Y = workspace.template matrix<T>(rows.count(), x.U.cols());
    TiledProduct<T>(Factors<T>::without_gaps(A, x.B, x.U), W).contract(Y, m_team, nullptr);
    rows.put<T>(Y, out);
  }

  const PairWeights<T>& m_weights;
  const Factors<T>& m_x;
  const MatrixView<T>& m_G;
  GradientRefs<T>& m_out;
  const Team& m_team;
};

}  // namespace nprf::toeplitz
