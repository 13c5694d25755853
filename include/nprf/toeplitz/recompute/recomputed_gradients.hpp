// SPDX-License-Identifier: MIT
#pragma once

#include <numeric>
#include <span>

#include "nprf/core/team.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/gradients.hpp"
#include "nprf/toeplitz/recompute/pair_weights.hpp"

namespace nprf::toeplitz {

/// Gradients of some queries, keys and lags by the sums of their definition (gradients.hpp), for a product whose engine
/// rounds them too coarsely. Each is rounded relative to its own terms.
template <Real T>
class RecomputedGradients {
 public:
  RecomputedGradients(const PairWeights<T>& weights, const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T>& out,
                      const Team& team)
      : m_weights(weights), m_x(x), m_G(G), m_out(out), m_team(team) {}

  /// dA_i = sum_j w_ij (G_i.U_j) B_j of these queries. O(n_k (r + p)) each.
  void queries(std::span<const Index> numbers) const {
    contract(Weights(TileRows::queries, m_weights, numbers), {m_G, m_x.U, m_x.B, {}, {}}, m_out.dA);
  }

  /// dB_j = sum_i w_ij (G_i.U_j) A_i and dU_j = sum_i w_ij (A_i.B_j) G_i of these keys. O(n_q (r + p)) each.
  void keys(std::span<const Index> numbers) const {
    contract(Weights(TileRows::keys, m_weights, numbers), {m_x.U, m_G, m_x.A, {}, {}}, m_out.dB);
    contract(Weights(TileRows::keys, m_weights, numbers), {m_x.B, m_x.A, m_G, {}, {}}, m_out.dU);
  }

  /// dc_l = sum over t_j - s_i = l of e^(e_j - M_i) (A_i.B_j)(G_i.U_j) of these lags; dc's first lag is `first`.
  /// O(r + p) a pair.
  void lags(std::span<const Index> numbers, Index first) const {
    m_team.run(static_cast<Index>(numbers.size()), [&](Index at, Workspace&) {
      const Index lag = numbers[static_cast<std::size_t>(at)];
      double sum = 0;
      for_each_pair(lag, [&](Index i, Index j) {
        sum += static_cast<double>(m_x.A.row(i).dot(m_x.B.row(j))) * static_cast<double>(m_G.row(i).dot(m_x.U.row(j))) *
               static_cast<double>(m_weights.factor(i, j));
      });
      m_out.dc[lag - first] = static_cast<T>(sum);
    });
  }

  /// All gradients, as by the direct engine; dc's first lag is `first`. O(n_q n_k (r + p)).
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
      if (const T c = m_weights.at_lag(first + l); c > T(0)) m_out.dc[l] = c_dc.col(l).sum() / c;
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

  // the rows weights.numbers() of out = ((A B^T) o W) U
  void contract(const Weights& weights, const Factors<T>& x, MatrixRef<T>& out) const {
    const Index count = static_cast<Index>(weights.numbers().size());
    const auto number = [&](Index k) { return weights.numbers()[static_cast<std::size_t>(k)]; };
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    auto A = workspace.template matrix<T>(count, x.A.cols()), Y = workspace.template matrix<T>(count, x.U.cols());
    for (Index k = 0; k < count; ++k) A.row(k) = x.A.row(number(k));
    const Factors<T> selected = Factors<T>::without_gaps(A, x.B, x.U);
    TiledProduct<T>(selected, weights).contract(Y, m_team, nullptr);
    for (Index k = 0; k < count; ++k) out.row(number(k)) = Y.row(k);
  }

  const PairWeights<T>& m_weights;
  const Factors<T>& m_x;
  const MatrixView<T>& m_G;
  GradientRefs<T>& m_out;
  const Team& m_team;
};

}  // namespace nprf::toeplitz
