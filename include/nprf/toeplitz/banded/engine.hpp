// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>

#include "nprf/core/gemm.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/banded/backward.hpp"
#include "nprf/toeplitz/banded/exponential_tail.hpp"
#include "nprf/toeplitz/banded/tail_states.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/direct/toeplitz_weights.hpp"
#include "nprf/toeplitz/engine.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U for weights with tails (lag_weights.hpp): T5's buckets, clipped tables, ALiBi, no position at
/// all. The result is exact up to rounding, and the time is linear in the number of tokens.
///
/// The band between the tails is computed by tiles of the n_q x n_k matrix, as in DirectEngine. For each tail, a tile
/// of queries needs one matrix S (r,p): a sum over the keys of the tile in this tail, whose weights are relative to the
/// pivot of the tile (banded/exponential_tail.hpp). With slots s_i of queries and t_j of keys:
///
///     y_i += weight exp(slope |s_i - pivot|) A_i S        S = sum_j exp(slope |t_j - (pivot + edge)|) B_j^T U_j
///
/// Time O(n_q (r + p) (tile + R) + (n_q + n_k) r p) for R lags between the tails; workspace O(n_q + n_k) and the sums
/// of a window (banded/tail_states.hpp). Threads share out tiles of queries. Without tails it is DirectEngine with
/// smaller tiles.
template <Real T>
class BandedEngine {
 public:
  static constexpr Engine names[] = {Engine::banded, Engine::recurrence};
  static constexpr Rounding rounding = Rounding::per_row;
  static constexpr bool accepts_key_log_scales = false, is_automatic = true;
  static Engine name_for(const LagWeightsView<T>& c) {
    return c.tails.slope_before == 0 && c.tails.slope_after == 0 ? Engine::banded : Engine::recurrence;
  }

  ///     n_q * band * (r + p + weight_cost) + n_q * 24 * (r + p + cut_weight_cost)
  ///     + tails * tail_state * (n_q + n_k) * r * (p + 2 * W)
  ///
  /// for `band` lags that are in no tail, and W lanes of a register. The second term is for the pairs of tiles that are
  /// outside the band. If all weights are equal, the cost is 2 * (n_q + n_k) * r * p. Without tails it is infinite.
  static double cost(const CostInputs<T>& x) {
    constexpr double beside_band = 24, tail_state = cost_factors.tail_state, sum_of_outer = 2;
    const ExponentialTail<T> before(Side::before, x.weights, x.span), after(Side::after, x.weights, x.span);
    const int tails = (before.lags > 0) + (after.lags > 0);
    if (x.tokens.empty() || tails == 0) return std::numeric_limits<double>::infinity();
    const double r = static_cast<double>(x.tokens.r), p = static_cast<double>(x.tokens.p),
                 n_q = static_cast<double>(x.tokens.n_q), n = n_q + static_cast<double>(x.tokens.n_k);
    const double band = static_cast<double>(band_between(before, after, x.weights).size());
    if (band <= 1 && before.flat() && after.flat()) return n * r * p * sum_of_outer;
    const double states = n * r * (p + static_cast<double>(2 * fft::lane_count<T>));
    return n_q * (band * (r + p + weight_cost) + beside_band * (r + p + cut_weight_cost)) + tails * states * tail_state;
  }

  BandedEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : m_weights(lags, span, team.workspace()) {}

  void contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    if (m_weights.constant != T(0)) return contract_constant(x, Y, team, sums);
    const Workspace::Scope scope(team.workspace());
    const ExponentialTail<T>&b = m_weights.before, &a = m_weights.after;
    const ToeplitzWeights<T> band_weights = m_weights.band_weights(x);
    const TiledProduct<T> band(x, band_weights);
    const Index tiles = (x.queries.slots.count + tile - 1) / tile, ones = sums ? 1 : 0;
    const Windows windows = Windows::of(tiles, x.B.cols() * (x.U.cols() + ones));
    std::optional<TailStates<T>> before, after;
    if (b.lags > 0) before.emplace(TailStates<T>::Of::keys, TailTiles<T>(b, x, tile), x.B, x.U, windows, team, ones);
    if (a.lags > 0) after.emplace(TailStates<T>::Of::keys, TailTiles<T>(a, x, tile), x.B, x.U, windows, team, ones);
    for (Index window = 0; window < windows.count(); ++window) {
      if (before) before->fill(window, team);
      if (after) after->fill(window, team);
      const Index begin = windows.begin(window);
      team.run(windows.end(window) - begin, [&](Index task, Workspace& scratch) {
        const Index I = begin + task, i0 = I * tile, rows = std::min(tile, x.queries.slots.count - i0);
        MatrixRef<T> y = Y.middleRows(i0, rows);  // (rows,p)
        T* tile_sums = sums ? sums + i0 : nullptr;
        y.setZero();
        if (sums) std::fill_n(tile_sums, rows, T(0));
        if (before && after && b.flat() && a.flat()) {
          add_flat_tails(x, *before, *after, I, y, tile_sums, scratch);
        } else {
          if (before) add_tail(x, *before, I, y, tile_sums, scratch);
          if (after) add_tail(x, *after, I, y, tile_sums, scratch);
        }
        band.add(i0, y, tile_sums, scratch);
      });
    }
  }

  /// The keys of the band, at most a chunk (long_sums.hpp), and those that one tile adds to the sum of a tail. The sums
  /// of several tiles are compensated (banded/tail_states.hpp).
  Index longest_plain_sum(Index n_k) const {
    constexpr Index of_tile = 2048;
    static_assert(tile <= of_tile);
    return std::min(n_k, of_tile + (m_weights.constant != T(0) ? 0 : nprf::longest_plain_sum(m_weights.band.size())));
  }

  /// out.dc may be empty. In a tail, dc of two lags stands for the dc of all its lags (Gradients, factors.hpp).
  void gradients(const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const GradientSizes<T>&,
                 const Team& team) const {
    if (m_weights.constant != T(0) && out.dc.size() == 0) return gradients_of_constant(x, G, out, team);
    out.set_zero();
    const BandedBackward<T> gradients(m_weights, x, G);
    gradients.add_band(out, team);
    gradients.add_tail(m_weights.before, out, team);
    gradients.add_tail(m_weights.after, out, team);
  }

 private:
  static constexpr Index tile = 5 * Block<T>::rows;

  // y += Z S for the first p columns of S; if sums is not null, also sums += Z S for the last column of S
  static void add_rows(const MatrixView<T>& Z, const MatrixMap<T>& S, MatrixRef<T>& y, T* sums, Workspace& scratch) {
    add_product(y, Z, MatrixView<T>(S.leftCols(y.cols())));  // (rows,p)
    if (!sums) return;
    const Workspace::Scope scope(scratch);
    T* s = scratch.take<T>(S.rows());
    for (Index k = 0; k < S.rows(); ++k) s[k] = S(k, y.cols());
    for (Index i = 0; i < y.rows(); ++i) sums[i] += dot(row_of(Z, i), {s, static_cast<std::size_t>(S.rows())});
  }

  // y_i += weight exp(slope |s_i - pivot|) A_i S
  static void add_tail(const Factors<T>& x, const TailStates<T>& of, Index I, MatrixRef<T>& y, T* sums,
                       Workspace& scratch) {
    if (!of.tiles().any_keys(I)) return;
    const Workspace::Scope scope(scratch);
    const ExponentialTail<T>& tail = of.tiles().tail();
    const auto Z = scaled_rows<T>(x.A, I * tile, y.rows(), scratch,
                                  [&](Index i) { return tail.weight * tail.power(of.tiles().query_distance(I, i)); });
    add_rows(Z, of.at(I), y, sums, scratch);
  }

  // y += A (b.weight S_before + a.weight S_after), for tails of slope 0
  static void add_flat_tails(const Factors<T>& x, const TailStates<T>& before, const TailStates<T>& after, Index I,
                             MatrixRef<T>& y, T* sums, Workspace& scratch) {
    const Workspace::Scope scope(scratch);
    const T b = before.tiles().tail().weight, a = after.tiles().tail().weight;
    auto S = scratch.matrix<T>(x.B.cols(), x.U.cols() + (sums ? 1 : 0));
    const auto entries = [](const MatrixMap<T>& X) { return Eigen::Map<const Vector<T>>(X.data(), X.size()); };
    Vector<T>::Map(S.data(), S.size()) = b * entries(before.at(I)) + a * entries(after.at(I));
    add_rows(x.A.middleRows(I * tile, y.rows()), S, y, sums, scratch);
  }

  // all weights equal: Y = A (c B^T U)
  void contract_constant(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    auto S = workspace.matrix<T>(x.B.cols(), x.U.cols() + (sums ? 1 : 0));
    sum_of_outer(x.B, x.U, S, team);
    S *= m_weights.constant;
    team.run_tiles(x.queries.slots.count, [&](Index i0, Index rows, Workspace& scratch) {
      MatrixRef<T> y = Y.middleRows(i0, rows);  // (rows,p)
      y.setZero();
      if (sums) std::fill_n(sums + i0, rows, T(0));
      add_rows(x.A.middleRows(i0, rows), S, y, sums ? sums + i0 : nullptr, scratch);
    });
  }

  // forward: S = c B^T U, Y = A S; so with N = c A^T G: dA = G S^T, dB = U N^T, dU = B N
  void gradients_of_constant(const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T>& out,
                             const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    auto S = workspace.matrix<T>(x.B.cols(), x.U.cols()), N = workspace.matrix<T>(x.A.cols(), G.cols());
    sum_of_outer(x.B, x.U, S, team);
    sum_of_outer(x.A, G, N, team);
    S *= m_weights.constant;
    N *= m_weights.constant;
    team.run_tiles(x.queries.slots.count, [&](Index i0, Index rows, Workspace&) {
      set_product(out.dA.middleRows(i0, rows), G.middleRows(i0, rows), S.transpose());  // (rows,r)
    });
    team.run_tiles(x.keys.slots.count, [&](Index j0, Index rows, Workspace&) {
      set_product(out.dB.middleRows(j0, rows), x.U.middleRows(j0, rows), N.transpose());  // (rows,r)
      set_product(out.dU.middleRows(j0, rows), x.B.middleRows(j0, rows), N);              // (rows,p)
    });
  }

  BandDecomposition<T> m_weights;
};

}  // namespace nprf::toeplitz
