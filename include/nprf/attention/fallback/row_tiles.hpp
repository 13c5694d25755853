// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

#include "nprf/attention/weights/row_biases.hpp"
#include "nprf/core/block_product.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// The weights exp(b_ij - max_j b_ij) of some rows of attention. Runs and chunks of keys begin at the same keys
/// whichever rows a tile has, so that no bit of a row depends on the other rows.
template <Real T>
class RowWeights final : public toeplitz::TileWeights<T> {
 public:
  explicit RowWeights(const RowBiases<T>& biases) : m_biases(biases) {}

  void set(const toeplitz::PairBlock& of, toeplitz::WeightBlock<T>& c) const override {
    for (Index k = 0; k < Block<T>::rows; ++k) {
      T* weights = c.own_row(k);
      const Index width = of.packs * Pack<T>::size;
      m_biases.set(of.i + std::min(k, of.rows - 1), of.j0, of.count, weights);
      std::fill(weights + of.count, weights + width, -std::numeric_limits<T>::infinity());
      for (Index j = 0; j < width; j += Pack<T>::size) exp(Pack<T>::load(weights + j)).store(weights + j);
    }
  }

  toeplitz::RowRange keys(Index i0, Index count, Index run) const override {
    const auto [begin, end] = m_biases.keys(i0, count);
    return {begin / run * run, end};
  }

  Index chunk_origin(Index) const override { return 0; }

 private:
  const RowBiases<T>& m_biases;
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
  RowTiles(const RowBiases<T>& biases, const Team& team) : m_biases(biases), m_team(team), m_weights(biases) {}

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
    toeplitz::GradientRefs<T> factors{out.dA, out.dB, out.dU, Eigen::Map<Vector<T>>(nullptr, 0)};
    out.dA.setZero();
    const auto add_db = [&](const toeplitz::PairRow<T>& pairs, T* share) {
      const auto of = [=](Index j) { return pairs.log_weight_gradient(j); };
      m_biases.add_gradient(pairs.i, pairs.j0, pairs.count, of, out.db, share);
    };
    out.db.add(toeplitz::TiledProduct<T>(x, m_weights).add_gradients(G, factors, out.db.size(), m_team, add_db));
  }

 private:
  const RowBiases<T>& m_biases;
  const Team& m_team;
  RowWeights<T> m_weights;
};

}  // namespace nprf
