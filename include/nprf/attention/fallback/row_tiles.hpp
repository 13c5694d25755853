// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <span>

#include "nprf/attention/weights/pair_bias.hpp"
#include "nprf/core/block_product.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// A subset of the queries. Its rows are copied from and to matrices that have a row for each query.
class RowSubset {
 public:
  /// The queries with these indices, which must increase.
  RowSubset(std::span<const Index> indices, const Team& team) : m_indices(indices), m_team(team) {}

  Index count() const { return static_cast<Index>(m_indices.size()); }
  /// The index of the i-th query of the subset among all queries.
  Index index(Index i) const { return m_indices[static_cast<std::size_t>(i)]; }

  /// Returns a copy of the subset's rows of x, in the workspace.
  template <Real T>
  MatrixMap<T> of(const MatrixView<T>& x) const {
    auto rows = m_team.workspace().matrix<T>(count(), x.cols());
    m_team.run_tiles(count(), [&](Index i0, Index n, Workspace&) {
      for (Index i = i0; i < i0 + n; ++i) std::ranges::copy(row_of(x, index(i)), writable_row(rows, i).begin());
    });
    return rows;
  }

  /// Copies `rows`, one for each query of the subset, to the subset's rows of x.
  template <Real T>
  void put(const MatrixView<T>& rows, MatrixRef<T> x) const {
    m_team.run_tiles(count(), [&](Index i0, Index n, Workspace&) {
      for (Index i = i0; i < i0 + n; ++i) std::ranges::copy(row_of(rows, i), writable_row(x, index(i)).begin());
    });
  }

 private:
  std::span<const Index> m_indices;
  const Team& m_team;
};

/// The weights exp(b_ij - max_j b_ij) of some rows of attention. Runs and chunks of keys begin at the same keys
/// whichever rows a tile has, so that no bit of a row depends on the other rows.
template <Real T>
class RowWeights final : public toeplitz::TileWeights<T> {
 public:
  using Largest = typename PairBias<T>::Largest;

  /// Two maxima of each row over its keys: `bias` of the biases alone; `scaled` of each bias minus `bias`, plus the
  /// log-scale of the key.
  struct Maxima {
    const Largest* bias;
    const double* scaled;
  };

  RowWeights(const PairBias<T>& bias, const RowSubset& rows, const Maxima& largest)
      : m_bias(bias), m_rows(rows), m_largest(largest) {}

  void set(const toeplitz::PairBlock& of, toeplitz::WeightBlock<T>& c) const override {
    constexpr Index most = std::max(toeplitz::ForwardTile<T>::keys, toeplitz::BackwardTile<T>::keys);
    double b[most];
    for (Index k = 0; k < Block<T>::rows; ++k) {
      T* weights = c.own_row(k);
      const Index i = of.i + std::min(k, of.rows - 1), width = of.packs * Pack<T>::size;
      m_bias(m_rows.index(i), m_largest.bias[i], of.j0, of.count, b);
      for (Index j = 0; j < of.count; ++j) weights[j] = static_cast<T>(b[j] - m_largest.scaled[i]);
      std::fill(weights + of.count, weights + width, -std::numeric_limits<T>::infinity());
      for (Index j = 0; j < width; j += Pack<T>::size) exp(Pack<T>::load(weights + j)).store(weights + j);
    }
  }

  toeplitz::RowRange keys(Index i0, Index count, Index run) const override {
    const auto [begin, end] = m_bias.reach(m_rows.index(i0), m_rows.index(i0 + count - 1));
    return {begin / run * run, end};
  }

  Index chunk_origin(Index) const override { return 0; }

 private:
  const PairBias<T>& m_bias;
  const RowSubset& m_rows;
  Maxima m_largest;
};

/// The unnormalised output of some rows of attention, each with weights relative to the largest of the row, so that a
/// row is precise however small it is beside other rows:
///
///     Y_i = sum_j w_ij U_j,  w_ij = (A_i.B_j) exp(b_ij - max_j b_ij)
///
/// O(rows n_k (r + p)), and one exponential a pair. Each row must attend to a key. No bit of a row depends on which
/// other rows there are, nor on keys that it does not attend to.
template <Real T>
class RowTiles {
 public:
  RowTiles(const PairBias<T>& bias, const RowSubset& rows, const Team& team)
      : m_bias(bias), m_rows(rows), m_team(team), m_weights(bias, rows, largest()) {}

  /// Sets Y (rows,p) for A (rows,r), B (n_k,r), U (n_k,p), and sums (rows) to the column of Y for a column of ones in
  /// U.
  void contract(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, MatrixRef<T> Y, T* sums) const {
    const auto x = toeplitz::Factors<T>::without_gaps(A, B, U);
    toeplitz::TiledProduct<T>(x, m_weights).contract(Y, m_team, sums);
  }

  /// Where gradients() writes: dA is set, the others are added to.
  struct Gradients {
    MatrixRef<T> dA, dB, dU;  // (rows,r) (n_k,r) (n_k,p)
    BiasGradient db;
  };

  /// The gradients for G (rows,p) = dL/dY.
  void gradients(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, const MatrixView<T>& G,
                 Gradients out) const {
    const Workspace::Scope scope(m_team.workspace());
    const auto x = toeplitz::Factors<T>::without_gaps(A, B, U);
    const std::size_t lags = out.db.lags.size();
    toeplitz::GradientRefs<T> factors{out.dA, out.dB, out.dU, Eigen::Map<Vector<T>>(nullptr, 0)};
    out.dA.setZero();
    const auto add_db = [&](const toeplitz::PairRow<T>& pairs, T* share) {
      const auto of = [=](Index j) { return pairs.C[j] == T(0) ? T(0) : pairs.S[j] * pairs.P[j] * pairs.C[j]; };
      m_bias.add_gradient(m_rows.index(pairs.i), pairs.j0, pairs.count, of, lags > 0 ? share : nullptr, share + lags);
    };
    out.db.add(toeplitz::TiledProduct<T>(x, m_weights).add_gradients(G, factors, out.db.size(), m_team, add_db));
  }

 private:
  using Maxima = typename RowWeights<T>::Maxima;

  Maxima largest() const {
    constexpr Index run = 256;
    auto* bias = m_team.workspace().template take<typename PairBias<T>::Largest>(m_rows.count());
    double* scaled = m_team.workspace().template take<double>(m_rows.count());
    m_team.run_tiles(m_rows.count(), [&](Index i0, Index count, Workspace& scratch) {
      double* b = scratch.take<double>(run);
      for (Index i = i0; i < i0 + count; ++i) {
        const Index query = m_rows.index(i);
        bias[i] = m_bias.largest(query);
        scaled[i] = -std::numeric_limits<double>::infinity();
        const auto [begin, end] = m_bias.reach(query, query);
        for (Index j0 = begin; j0 < end; j0 += run) {
          const Index keys = std::min(run, end - j0);
          m_bias(query, bias[i], j0, keys, b);
          scaled[i] = std::max(scaled[i], *std::max_element(b, b + keys));
        }
      }
    });
    return {bias, scaled};
  }

  const PairBias<T>& m_bias;
  const RowSubset& m_rows;
  const Team& m_team;
  RowWeights<T> m_weights;
};

}  // namespace nprf
