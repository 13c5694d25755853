// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "nprf/attention/fallback/row_subset.hpp"
#include "nprf/attention/weights/pair_bias.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/direct/backward_tile.hpp"
#include "nprf/toeplitz/direct/forward_tile.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf {

/// The weights exp(b_ij - max_j b_ij) of some rows of attention: each row relative to the largest that it sees.
template <Real T>
class RowWeights {
 public:
  using Largest = typename PairBias<T>::Largest;

  /// For the queries of these numbers, relative to whose largest bias the largest with an exponent is `largest`, and
  /// runs of at most so many keys.
  RowWeights(const PairBias<T>& bias, const RowSubset& rows, const Largest* from, const double* largest, Index most,
             Workspace& scratch)
      : m_bias(bias),
        m_rows(rows),
        m_from(from),
        m_largest(largest),
        m_most(most),
        m_b(scratch.take<double>(most)),
        m_values(scratch.take<T>(Block<T>::rows * most)) {}

  /// Of queries i..i+rows-1 of them and keys j0..j0+count-1, zeros beside the last key.
  void set(Index i, Index rows, Index j0, Index count, Index packs) {
    for (Index k = 0; k < Block<T>::rows; ++k) {
      T* row = m_values + k * m_most;
      const Index of = i + std::min(k, rows - 1);
      m_bias(m_rows.number(of), m_from[of], j0, count, m_b);
      for (Index j = 0; j < count; ++j) row[j] = static_cast<T>(m_b[j] - m_largest[of]);
      std::fill(row + count, row + packs * Pack<T>::size, -std::numeric_limits<T>::infinity());
      for (Index j = 0; j < packs * Pack<T>::size; j += Pack<T>::size) exp(Pack<T>::load(row + j)).store(row + j);
    }
  }

  const T* row(Index k) const { return m_values + k * m_most; }

 private:
  const PairBias<T>& m_bias;
  const RowSubset& m_rows;
  const Largest* m_from;
  const double* m_largest;
  Index m_most;
  double* m_b;
  T* m_values;
};

/// Some rows of attention, each by itself, whatever a common scale leaves of it:
///
///     Y_i = sum_j w_ij U_j,  w_ij = (A_i.B_j) exp(b_ij - max_j b_ij)
///
/// By tiles as DirectEngine's; O(rows n_k (r + p)), one exponential a pair. Each row must see a key. No row depends on
/// which others there are, nor on keys that it does not see.
template <Real T>
class RowTiles {
 public:
  /// Refers to all of them; largest biases lie in the team's workspace.
  RowTiles(const PairBias<T>& bias, const RowSubset& rows, const Team& team)
      : m_bias(bias),
        m_rows(rows),
        m_team(team),
        m_from(team.workspace().take<typename PairBias<T>::Largest>(rows.count())),
        m_largest(team.workspace().take<double>(rows.count())) {
    team.run_tiles(rows.count(), [&](Index i0, Index count, Workspace& scratch) {
      double* b = scratch.take<double>(keys_at_a_time);
      for (Index i = i0; i < i0 + count; ++i) {
        m_from[i] = bias.largest(rows.number(i));
        m_largest[i] = -std::numeric_limits<double>::infinity();
        const auto [begin, end] = keys_seen(i, 1, 0, bias.num_keys(), keys_at_a_time);
        for (Index j0 = begin; j0 < end; j0 += keys_at_a_time) {
          const Index cols = std::min(keys_at_a_time, end - j0);
          bias(rows.number(i), m_from[i], j0, cols, b);
          m_largest[i] = std::max(m_largest[i], *std::max_element(b, b + cols));
        }
      }
    });
  }

  /// Their Y (rows,p) and sums (rows) for A (rows,r), B (n_k,r), U (n_k,p).
  void contract(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, MatrixRef<T> Y, T* sums) const {
    using Tile = toeplitz::ForwardTile<T, RowWeights<T>>;
    const auto x = toeplitz::Factors<T>::without_gaps(A, B, U);
    m_team.run_tiles(A.rows(), Tile::rows, [&](Index i0, Index rows, Workspace& scratch) {
      auto y = Y.middleRows(i0, rows);  // (rows,p)
      y.setZero();
      std::fill_n(sums + i0, rows, T(0));
      Tile tile(x, weights(Tile::keys, scratch), i0, rows, scratch);
      const auto [begin, end] = keys_seen(i0, rows, 0, B.rows(), Tile::keys);
      add_in_chunks<T>(0, begin, end, y, sums + i0, scratch, [&](Index from, Index to, MatrixRef<T> more, T* ones) {
        for (Index j0 = from; j0 < to; j0 += Tile::keys) tile.add(j0, std::min(Tile::keys, to - j0), more, ones);
      });
    });
  }

  /// Their gradients for G (rows,p) = dL/dY: dA (rows,r) becomes theirs, dB and dU are added to; and so are db of the
  /// lags of LagProblem::lags, or of none, and of the border (E,E+2).
  void gradients(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, const MatrixView<T>& G,
                 MatrixRef<T> dA, MatrixRef<T> dB, MatrixRef<T> dU, std::span<double> db_lags,
                 std::span<double> db_border) const {
    using Tile = toeplitz::BackwardTile<T, RowWeights<T>>;
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const auto x = toeplitz::Factors<T>::without_gaps(A, B, U);
    const Index tiles = (std::max(A.rows(), B.rows()) + Tile::rows - 1) / Tile::rows;
    const Index blocks = std::clamp<Index>(tiles, 1, most_blocks);
    const auto edge = [&](Index block) { return tiles * block / blocks * Tile::rows; };
    const Index lags = static_cast<Index>(db_lags.size()), border = static_cast<Index>(db_border.size());
    auto db = workspace.template matrix<T>(blocks, lags + border);  // the share of each block of rows
    db.setZero();
    toeplitz::GradientRefs<T> out{dA, dB, dU, Eigen::Map<Vector<T>>(nullptr, 0)};
    out.dA.setZero();
    m_team.run_pairs(blocks, [&](Index block, Index key_block, Workspace& scratch) {
      Tile tile(x, G, weights(Tile::keys, scratch), scratch);
      const Index i_end = std::min(edge(block + 1), A.rows()), j_end = std::min(edge(key_block + 1), B.rows());
      T* of_lags = db.data() + block * db.cols();
      for (Index i0 = edge(block); i0 < i_end; i0 += Tile::rows) {
        const Index rows = std::min(Tile::rows, i_end - i0);
        tile.set_queries(i0, rows);
        const auto add_db = [&](Index i, Index j, Index count, const T* s, const T* p, const T* c) {
          const auto of = [=](Index k) { return c[k] == T(0) ? T(0) : s[k] * p[k] * c[k]; };
          m_bias.add_gradient(m_rows.number(i), j, count, of, lags > 0 ? of_lags : nullptr, of_lags + lags);
        };
        const auto [begin, end] = keys_seen(i0, rows, edge(key_block), j_end, Tile::keys);
        for (Index j0 = begin; j0 < end; j0 += Tile::keys) tile.add(j0, std::min(Tile::keys, end - j0), out, add_db);
      }
    });
    for (Index block = 0; block < blocks; ++block) {
      for (Index l = 0; l < lags; ++l) db_lags[static_cast<std::size_t>(l)] += static_cast<double>(db(block, l));
      for (Index e = 0; e < border; ++e)
        db_border[static_cast<std::size_t>(e)] += static_cast<double>(db(block, lags + e));
    }
  }

 private:
  static constexpr Index most_blocks = 8, keys_at_a_time = 256;

  RowWeights<T> weights(Index most, Workspace& scratch) const {
    return {m_bias, m_rows, m_from, m_largest, most, scratch};
  }

  // those of the keys j_begin..j_end-1 that rows i0.. may see, from the first to the one after the last; the first
  // begins a run of so many: so neither where runs begin nor any bit of a sum depends on the rows
  std::pair<Index, Index> keys_seen(Index i0, Index rows, Index j_begin, Index j_end, Index run) const {
    const auto [first, last] = m_bias.reach(m_rows.number(i0), m_rows.number(i0 + rows - 1));
    return {j_begin + std::max<Index>(first - j_begin, 0) / run * run, std::min(last, j_end)};
  }

  const PairBias<T>& m_bias;
  const RowSubset& m_rows;
  const Team& m_team;
  typename PairBias<T>::Largest* m_from;
  double* m_largest;
};

}  // namespace nprf
