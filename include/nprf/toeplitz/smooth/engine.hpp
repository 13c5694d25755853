// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <span>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/cost.hpp"
#include "nprf/toeplitz/direct/toeplitz_weights.hpp"
#include "nprf/toeplitz/engine.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/smooth/backward.hpp"
#include "nprf/toeplitz/smooth/chunk_rows.hpp"
#include "nprf/toeplitz/smooth/chunk_sums.hpp"
#include "nprf/toeplitz/smooth/cost.hpp"
#include "nprf/toeplitz/smooth/plan.hpp"
#include "nprf/toeplitz/smooth/tiles.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U for weights that are smooth far from the diagonal. Where a block of C is smooth (SmoothPlan) it
/// is a product of polynomials of the slots, so that its rows need only the moments of its keys: an H2 matrix
/// (Hackbusch and Boerm 2002) over distances, with polynomials that nest. All other blocks are tiles. No fit is needed,
/// and a kink, a step or a zero costs tiles where it is.
///
/// A weight changes by at most LagWeightsView::max_deviation, relative to it; blocks that would change more are tiles.
/// So with max_deviation 0 all are. Rounding errors are relative to each row, and no row depends on later keys if the
/// weights are one-sided.
///
/// Time O(n r p) for weights that are smooth at all distances but a few, with about 2 terms + 10 multiply-adds for each
/// entry of r p, for terms = 5 to 8; workspace O(n r p / 10). Threads share out chunks of slots.
template <Real T>
class SmoothEngine {
 public:
  static constexpr Engine names[] = {Engine::smooth};
  static constexpr Rounding rounding = Rounding::per_row;
  static constexpr bool accepts_key_log_scales = false, is_automatic = true;
  static Engine name_for(const LagWeightsView<T>&) { return names[0]; }
  static double cost(const CostInputs<T>& x) { return smooth_cost(x).cost; }

  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1.
  SmoothEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : m_c(all_lags(lags, span, team.workspace())),
        m_plan(m_c, span.n_q, span.n_k, smooth_cost<T>({m_c, span, span}).terms, team.workspace()) {}

  const SmoothPlan<T>& plan() const { return m_plan; }

  /// SmoothPlan::deviation().
  double deviation() const { return m_plan.deviation(); }

  Index longest_plain_sum(Index n_k) const {
    const Index in_tiles = static_cast<Index>(m_plan.tiles().size()) * smooth_chunk;
    return std::min(n_k, std::max(nprf::longest_plain_sum(n_k), in_tiles));
  }

  /// Writes Y (n_q,p) = ((A B^T) o C) U. If sums is not null, also writes sums (n_q) = ((A B^T) o C) 1.
  void contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    const Workspace::Scope scope(team.workspace());
    const RoughTiles<T> tiles(m_plan, x, m_c);
    const ChunkRows<T> queries(m_plan.terms(), x.queries.slots, x.A);
    const ChunkValues<T> values(x.U, sums != nullptr);
    const ChunkMoments<T> moments(m_plan, Axis::keys, x.keys.slots, x.B, values, team.workspace());
    ChunkSums<T>(m_plan, Axis::queries, moments).run(team, [&](Index I, const T* L, Workspace& scratch) {
      const RowRange rows = queries.rows(I);
      if (rows.size() == 0) return;
      MatrixRef<T> y = Y.middleRows(rows.begin, rows.size());
      T* row_sums = sums ? sums + rows.begin : nullptr;
      if (L) {
        set_rows(queries, I, values, L, y, row_sums, scratch);
      } else {
        y.setZero();
        if (sums) std::fill_n(row_sums, rows.size(), T(0));
      }
      tiles.add(I, y, row_sums, scratch);
    });
  }

  /// Writes to `out` the gradients for G (n_q,p) = dL/dY; out.dc may be empty. dc is that of the product that
  /// contract() computes: the gradient of a weight of a smooth block is smooth, too.
  void gradients(const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const GradientSizes<T>&,
                 const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const Index terms = m_plan.terms();
    const ChunkRows<T> queries(terms, x.queries.slots, x.A), keys(terms, x.keys.slots, x.B);
    const ChunkValues<T> values(x.U, false), gradients(G, false);
    const ChunkMoments<T> of_keys(m_plan, Axis::keys, x.keys.slots, x.B, values, workspace),
        of_queries(m_plan, Axis::queries, x.queries.slots, x.A, gradients, workspace);
    out.set_zero();
    ChunkSums<T>(m_plan, Axis::queries, of_keys).run(team, [&](Index I, const T* L, Workspace& scratch) {
      if (L && queries.rows(I).size() > 0) set_factor_gradients(queries, I, gradients, L, out.dA, scratch);
    });
    const ChunkSums<T> sums(m_plan, Axis::keys, of_queries);
    const auto finish = [&](Index J, const T* L, Workspace& scratch) {
      const RowRange rows = keys.rows(J);
      if (!L || rows.size() == 0) return;
      set_factor_gradients(keys, J, values, L, out.dB, scratch);
      set_rows<T>(keys, J, gradients, L, out.dU.middleRows(rows.begin, rows.size()), nullptr, scratch);
    };
    if (out.dc.size() == 0) {
      sums.run(team, finish);
    } else {
      const WeightGradients<T> weights(m_plan, sums, of_queries, of_keys, workspace);
      sums.run(team, finish, [&](Index l, Index J) { weights.add_blocks(l, J); });
      weights.add_to({out.dc.data(), static_cast<std::size_t>(out.dc.size())}, m_c.first, workspace);
    }
    RoughTiles<T>(m_plan, x, m_c).add_gradients(G, out, team);
  }

 private:
  // tables of c and of its tangents that have all lags between the slots
  static LagWeightsView<T> all_lags(LagWeightsView<T> lags, const ProductShape& span, Workspace& workspace) {
    LagWeightsView<T> c = tabulate(lags, span, workspace);
    c.max_deviation = lags.max_deviation;
    lags.values = lags.tangents;
    if (lags.tangents) c.tangents = tabulate(lags, span, workspace).values;
    return c;
  }

  LagWeightsView<T> m_c;  // of all lags that the slots can reach
  SmoothPlan<T> m_plan;
};

}  // namespace nprf::toeplitz
