// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/gemm.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/banded/exponential_tail.hpp"
#include "nprf/toeplitz/banded/tail_states.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/direct/toeplitz_weights.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// The gradients of BandedEngine's product for G (n_q,p) = dL/dY: what the pairs of the band and of each tail add.
template <Real T>
class BandedBackward {
 public:
  BandedBackward(const BandDecomposition<T>& weights, const Factors<T>& x, const MatrixView<T>& G)
      : m_weights(weights), m_x(x), m_G(G) {}

  /// Adds the terms of the pairs of the band to the gradients, by tiles of the n_q x n_k matrix.
  void add_band(GradientRefs<T>& out, const Team& team) const {
    if (tiles() == 0) return;
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const BandBlocks band = blocks(workspace);
    const bool has_dc = out.dc.size() > 0;
    auto dc = workspace.matrix<T>(has_dc ? band.count : 0, band.lags.size());  // the share of each block
    dc.setZero();
    const ToeplitzWeights<T> weights = m_weights.band_weights(m_x);
    for (const Index parity : {0, 1})
      team.run((band.count + 1 - parity) / 2, [&](Index task, Workspace& scratch) {
        const Index block = 2 * task + parity;
        BackwardTile<T> band_tile(m_x, m_G, weights, scratch);
        for (Index I = band.starts[block]; I < band.starts[block + 1]; ++I) {
          band_tile.set_queries({first(I), first(I) + rows(I)});
          band_tile.add(keys(I), out, [&](const PairRow<T>& pairs) {
            if (has_dc) weights.add_gradient(pairs, dc.data() + block * dc.cols(), band.lags.first);
          });
        }
      });
    for (Index block = 0; block < dc.rows(); ++block)
      for (Index k = 0; k < dc.cols(); ++k) out.dc[band.lags.first - m_weights.table.first + k] += dc(block, k);
  }

  /// Adds the terms of the pairs of a tail to the gradients. contract() computes, for query i (slot s_i) of tile I and
  /// the keys j (slots t_j) of this tile, with the weight w at the edge of the tail and the pivot of tile I,
  ///     y_i += w f_i A_i S_I    S_I = sum_j h_j B_j^T U_j
  ///     f_i = exp(slope |s_i - pivot|)    h_j = exp(slope |t_j - (pivot + edge)|)
  /// So with N_I = dL/dS_I / w, the sum over queries of TailStates,
  ///     dA_i = w f_i G_i S_I^T    dB_j = w h_j U_j N_I^T    dU_j = w h_j B_j N_I
  void add_tail(const ExponentialTail<T>& tail, GradientRefs<T>& out, const Team& team) const {
    if (tail.lags == 0) return;
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const TailTiles<T> at(tail, m_x, tile);
    const Windows windows = Windows::of(tiles(), m_x.B.cols() * m_x.U.cols());
    TailStates<T> key_sums(TailStates<T>::Of::keys, at, m_x.B, m_x.U, windows, team);
    TailStates<T> query_sums(TailStates<T>::Of::queries, at, m_x.A, m_G, windows, team);
    Moments* moments = workspace.take<Moments>(tiles());
    for (Index window = 0; window < windows.count(); ++window) {
      key_sums.fill(window, team);
      query_sums.fill(window, team);
      const Index begin = windows.begin(window);
      team.run(windows.end(window) - begin, [&](Index task, Workspace& scratch) {
        const Index I = begin + task;
        moments[I] = {};
        if (!at.any_keys(I)) return;
        add_queries(at, I, key_sums.at(I), out, moments[I], scratch);
        add_keys(at, I, query_sums.at(I), out, moments[I], scratch);
        if (const Index distance = at.distance(I, at.inner(I)); distance > 0) {
          // the pairs of the keys of the inner tile with the queries of this tile and of the tiles outside it: their
          // distances include that between the pivots of the inner tile and of this tile
          const double flow = inner_product(key_sums.at(at.inner(I)), query_sums.at(I));
          moments[I].first += static_cast<double>(distance) * static_cast<double>(tail.power(distance)) * flow;
        }
      });
    }
    if (out.dc.size() == 0) return;
    Moments sum{};
    for (Index I = 0; I < tiles(); ++I) sum.zeroth += moments[I].zeroth, sum.first += moments[I].first;
    add_moments(tail, sum, out);
  }

 private:
  static constexpr Index tile = 5 * Block<T>::rows, most_blocks = 16, piece = 128;

  // zeroth: sum over k of exp(k slope) dc_k. first: sum over k of k exp(k slope) dc_k. k is the distance of a lag from
  // the tail's edge
  struct Moments {
    double zeroth = 0, first = 0;
  };

  Index tiles() const { return (m_x.queries.slots.count + tile - 1) / tile; }
  Index first(Index I) const { return I * tile; }
  Index rows(Index I) const { return std::min(tile, m_x.queries.slots.count - first(I)); }
  RowRange keys(Index I) const { return m_weights.band_weights(m_x).keys(first(I), rows(I), tile); }

  // Blocks of consecutive tiles. Two blocks of even number have no key in common, nor have two blocks of odd number, so
  // that threads can work on all even blocks at once, and then on all odd ones
  struct BandBlocks {
    Index count = 0;
    Index* starts;  // (count+1)  the first tile of each block
    LagRange lags;  // between the queries and the keys of all tiles
  };
  BandBlocks blocks(Workspace& workspace) const {
    const LagRange all{m_weights.table.first, m_weights.table.last()};
    BandBlocks band{0, workspace.take<Index>(most_blocks + 2), {all.last, all.first}};
    Index before_last_end = 0;
    const Index least = (tiles() + most_blocks - 1) / most_blocks;
    band.starts[0] = 0;
    for (Index I = 0; I < tiles(); ++I) {
      const auto [begin, end] = keys(I);
      if (I - band.starts[band.count] >= least && begin >= before_last_end) {
        before_last_end = keys(I - 1).end;
        band.starts[++band.count] = I;
      }
      if (begin == end) continue;
      band.lags.first = std::min(band.lags.first, m_x.keys.slots[begin] - m_x.queries.slots[first(I) + rows(I) - 1]);
      band.lags.last = std::max(band.lags.last, m_x.keys.slots[end - 1] - m_x.queries.slots[first(I)]);
    }
    band.starts[++band.count] = tiles();
    return band;
  }

  static double inner_product(const MatrixMap<T>& X, const MatrixMap<T>& Y) {
    double sum = 0;
    for (Index i = 0; i < X.rows(); ++i) sum += static_cast<double>(dot(row_of(X, i), row_of(Y, i)));
    return sum;
  }

  // dA_i += w f_i G_i S^T. If query i is in tile I, and key j is a new key of tile J (TailTiles::new_keys), the lag of
  // the pair is at distance k = |s_i - pivot_I| + |pivot_I - pivot_J| + |t_j - (pivot_J + edge)| from the tail's edge.
  // Each of the three non-negative terms is added to the first moment separately: the first one here, the second one in
  // add_tail(), the third one in add_keys()
  void add_queries(const TailTiles<T>& at, Index I, const MatrixMap<T>& S, GradientRefs<T>& out, Moments& moments,
                   Workspace& scratch) const {
    const Workspace::Scope scope(scratch);
    const ExponentialTail<T>& tail = at.tail();
    auto D = scratch.matrix<T>(rows(I), S.rows());
    set_product(D, m_G.middleRows(first(I), rows(I)), S.transpose());  // (rows,r)
    for (Index row = 0; row < rows(I); ++row) {
      const Index i = first(I) + row, distance = at.query_distance(I, i);
      scale(writable_row(D, row), tail.power(distance));
      const double pairs = static_cast<double>(dot(row_of(m_x.A, i), row_of(D, row)));
      moments.zeroth += pairs;
      moments.first += static_cast<double>(distance) * pairs;
      add_scaled(writable_row(out.dA, i), tail.weight, row_of(D, row));
    }
  }

  // dB_j += w h_j U_j N^T, dU_j += w h_j B_j N
  void add_keys(const TailTiles<T>& at, Index I, const MatrixMap<T>& N, GradientRefs<T>& out, Moments& moments,
                Workspace& scratch) const {
    const ExponentialTail<T>& tail = at.tail();
    const auto [begin, end] = at.new_keys(I);
    for (Index j0 = begin; j0 < end; j0 += piece) {
      const Workspace::Scope scope(scratch);
      const Index count = std::min(piece, end - j0);
      auto D = scratch.matrix<T>(count, N.rows());
      set_product(D, m_x.U.middleRows(j0, count), N.transpose());  // (count,r)
      for (Index row = 0; row < count; ++row) {
        const Index j = j0 + row, distance = at.key_distance(I, j);
        scale(writable_row(D, row), tail.power(distance));
        moments.first += static_cast<double>(distance) * static_cast<double>(dot(row_of(m_x.B, j), row_of(D, row)));
        add_scaled(writable_row(out.dB, j), tail.weight, row_of(D, row));
      }
      const auto Z = scaled_rows<T>(m_x.B, j0, count, scratch,
                                    [&](Index j) { return tail.weight * tail.power(at.key_distance(I, j)); });
      add_product(out.dU.middleRows(j0, count), Z, N);  // (count,p)
    }
  }

  // Sets dc at two lags of the tail, such that the sums of c dc and of k c dc are those of the whole tail. The second
  // lag is near the mean distance, so that the two values do not nearly cancel
  void add_moments(const ExponentialTail<T>& tail, const Moments& sum, GradientRefs<T>& out) const {
    const Index outwards = tail.side == Side::before ? -1 : 1, edge = tail.edge - m_weights.table.first;
    double nearest = sum.zeroth;
    if (tail.lags > 1) {
      const double mean = std::min(1 / std::max(-tail.slope, 1e-18), static_cast<double>(tail.lags - 1));
      const Index k = std::max<Index>(static_cast<Index>(mean), 1);
      const double power = std::exp(static_cast<double>(k) * tail.slope), share = sum.first / static_cast<double>(k);
      if (power > 0) {
        nearest -= share;
        out.dc[edge + k * outwards] += static_cast<T>(share / power);
      }
    }
    out.dc[edge] += static_cast<T>(nearest);
  }

  const BandDecomposition<T>& m_weights;
  const Factors<T>& m_x;
  const MatrixView<T>& m_G;
};

}  // namespace nprf::toeplitz
