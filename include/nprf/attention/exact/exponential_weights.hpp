// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/attention/exact/softmax_tile.hpp"
#include "nprf/core/block_product.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf {

/// The weights exp(s_ij + b_ij + a_i) of a block of queries and a run of keys, with scores s_ij = q_i.k_j and constants
/// a_i and f_i of each query. As a factor C of a tiled product of scores S (toeplitz/direct/backward_tile.hpp) they
/// replace S by f: with C = exp(S + b + a) the gradients of C U by S are those of (S o C) U at S = 1. The gradients of
/// keys, values and biases are multiplied by f_i, but not those of queries, which could underflow.
template <Real T, ScoreBiases<T> Biases>
class ExponentialBlockWeights {
 public:
  /// For runs of at most `most` keys, padded to whole packs. `constants` and `factors` have a_i and f_i of each query.
  ExponentialBlockWeights(const Biases& biases, const T* constants, const T* factors, Index most, Workspace& scratch)
      : m_biases(biases),
        m_constants(constants),
        m_factors(factors),
        m_most(most),
        m_values(scratch.take<T>(Block<T>::rows * most)) {}

  /// For queries i..i+rows-1 and keys j0..j0+count-1: s + b + a without s, until replace_scores() is called.
  void set(Index i, Index rows, Index j0, Index count, Index packs) {
    for (Index k = 0; k < Block<T>::rows; ++k) {
      m_block_factors[k] = k < rows ? m_factors[i + k] : T(0);
      T* row = m_values + k * m_most;
      const Index given = k < rows ? count : 0;
      if (given > 0) m_biases.set(i + k, j0, count, row);
      for (Index j = 0; j < given; ++j) row[j] += m_constants[i + k];
      std::fill(row + given, row + packs * Pack<T>::size, -std::numeric_limits<T>::infinity());
    }
  }

  /// Completes the weights by the scores S (Block<T>::rows,stride), which become f.
  void replace_scores(T* S, Index stride, Index packs) {
    for (Index k = 0; k < Block<T>::rows; ++k)
      for (Index j = 0; j < packs * Pack<T>::size; j += Pack<T>::size) {
        T *s = S + k * stride + j, *weight = m_values + k * m_most + j;
        exp(Pack<T>::load(s) + Pack<T>::load(weight)).store(weight);
        Pack<T>::all(m_block_factors[k]).store(s);
      }
  }

  /// Multiplies the rows of P (Block<T>::rows,stride) by f.
  void multiply_by_factors(T* P, Index stride, Index packs) const {
    for (Index k = 0; k < Block<T>::rows; ++k)
      for (Index j = 0; j < packs * Pack<T>::size; j += Pack<T>::size) {
        T* p = P + k * stride + j;
        (Pack<T>::load(p) * Pack<T>::all(m_block_factors[k])).store(p);
      }
  }

  const T* row(Index k) const { return m_values + k * m_most; }

 private:
  const Biases& m_biases;
  const T *m_constants, *m_factors;
  T m_block_factors[Block<T>::rows] = {};
  Index m_most;
  T* m_values;
};

/// The same weights for a tiled product. A TileWeights (toeplitz/direct/tiled_product.hpp) of its gradients.
template <Real T, ScoreBiases<T> Biases>
struct ExponentialWeights {
  const Biases& biases;
  const T *constants, *factors;  // one for each query

  ExponentialBlockWeights<T, Biases> block_weights(Index run, Workspace& scratch) const {
    return {biases, constants, factors, run, scratch};
  }

  toeplitz::RowRange keys(Index i0, Index rows, Index) const { return biases.keys(i0, rows); }

  Index chunk_origin(Index begin) const { return begin; }
};

/// The queries, keys and values of pairs with exponential weights, and the gradients of their sums. Row i of q and G is
/// that of the biases' query i, which is query `index(i)` of all.
template <Real T, class Indices>
struct ExponentialSums {
  const MatrixView<T>&q, &k, &U, &G;  // (rows,d) (n_k,d) (n_k,p) (rows,p)
  const double* log_scales;           // by query: weights are relative to exp(log_scale)
  const int* exponents;               // by query: the share of a row in dk, dU and db gets the factor 2^exponent
  Indices index;
};

// with P = G U^T and S = q k^T:  dS = P o w, dq = dS k, dk = dS^T q, dU = w^T G, db = dS
/// Adds the gradients of w U, w_ij = exp(q_i.k_j + b_ij + reference_i - log_scale_i), to dq (rows,d), dk (n_k,d) and
/// dU (n_k,p), for the biases.reference(i) of which the biases of row i are differences. add_db(i, j0, count, of,
/// share) adds of(j), the gradient of the bias of row i and key j0 + j, to a share (size). Returns the shares
/// (blocks,size), in the team's workspace.
template <Real T, ScoreBiases<T> Biases, class Indices, class AddDb>
MatrixMap<T> add_exponential_gradients(const Biases& biases, const ExponentialSums<T, Indices>& of, MatrixRef<T> dq,
                                       MatrixRef<T> dk, MatrixRef<T> dU, Index size, const Team& team, AddDb&& add_db) {
  const Index rows = of.q.rows();
  T *constants = team.workspace().template take<T>(rows), *factors = team.workspace().template take<T>(rows);
  for (Index i = 0; i < rows; ++i) {
    constants[i] = static_cast<T>(biases.reference(i) - of.log_scales[of.index(i)]);
    factors[i] = std::ldexp(T(1), of.exponents[of.index(i)]);
  }
  const ExponentialWeights<T, Biases> weights{biases, constants, factors};
  const auto x = toeplitz::Factors<T>::without_gaps(of.q, of.k, of.U);
  toeplitz::GradientRefs<T> gradients{dq, dk, dU, Eigen::Map<Vector<T>>(nullptr, 0)};
  return toeplitz::TiledProduct<T, ExponentialWeights<T, Biases>>(x, weights)
      .add_gradients(of.G, gradients, size, team, [&](const toeplitz::PairRow<T>& pairs, T* share) {
        const auto db = [&](Index j) { return pairs.C[j] == T(0) ? T(0) : pairs.P[j] * pairs.C[j] * pairs.S[j]; };
        add_db(pairs.i, pairs.j0, pairs.count, db, share);
      });
}

}  // namespace nprf
