// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/attention/weights/row_biases.hpp"
#include "nprf/core/block_product.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/direct/tiled_product.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// The weights exp(s_ij + b_ij + a_i) of pairs, with scores s_ij = q_i.k_j and constants a_i and f_i of each query.
/// They are the weights C of a tiled product (toeplitz/direct/tiled_product.hpp). It computes gradients of (S o C) U.
/// With C = exp(S + b + a) the gradients of C U by S and by U are those of (S o C) U at S = 1. S is replaced by f
/// instead of 1, because what a row adds to the gradients of keys, values and biases is multiplied by f_i. The
/// gradients of queries are not, because they could underflow.
template <Real T>
class ExponentialWeights final : public toeplitz::TileWeights<T> {
 public:
  /// `constants` and `factors` have a_i and f_i of each query.
  ExponentialWeights(const RowBiases<T>& biases, const T* constants, const T* factors)
      : m_biases(biases), m_constants(constants), m_factors(factors) {}

  toeplitz::RowRange keys(Index i0, Index rows, Index) const override { return m_biases.keys(i0, rows); }

  /// Sets the weights to b + a, until replace_scores() is called.
  void set(const toeplitz::PairBlock& of, toeplitz::WeightBlock<T>& c) const override {
    for (Index k = 0; k < Block<T>::rows; ++k) {
      T* row = c.own_row(k);
      const Index given = k < of.rows ? of.count : 0;
      if (given > 0) m_biases.set(of.i + k, of.j0, of.count, row);
      for (Index j = 0; j < given; ++j) row[j] += m_constants[of.i + k];
      std::fill(row + given, row + of.packs * Pack<T>::size, -std::numeric_limits<T>::infinity());
    }
  }

  /// Sets the weights to exp(S + b + a), and the scores S to f.
  void replace_scores(const toeplitz::PairBlock& of, T* S, Index stride, toeplitz::WeightBlock<T>& c) const override {
    for (Index k = 0; k < Block<T>::rows; ++k) {
      T* weights = c.own_row(k);
      const Pack<T> f = factor(of, k);
      for (Index j = 0; j < of.packs * Pack<T>::size; j += Pack<T>::size) {
        T* s = S + k * stride + j;
        exp(Pack<T>::load(s) + Pack<T>::load(weights + j)).store(weights + j);
        f.store(s);
      }
    }
  }

  /// Multiplies the rows of P by f.
  void multiply_by_factors(const toeplitz::PairBlock& of, T* P, Index stride) const override {
    for (Index k = 0; k < Block<T>::rows; ++k) {
      const Pack<T> f = factor(of, k);
      for (Index j = 0; j < of.packs * Pack<T>::size; j += Pack<T>::size) {
        T* p = P + k * stride + j;
        (Pack<T>::load(p) * f).store(p);
      }
    }
  }

 private:
  // f of query k of a block; 0 after its last query
  Pack<T> factor(const toeplitz::PairBlock& of, Index k) const {
    return Pack<T>::all(k < of.rows ? m_factors[of.i + k] : T(0));
  }

  const RowBiases<T>& m_biases;
  const T *m_constants, *m_factors;
};

/// The queries, keys and values of pairs with exponential weights, and the gradients of their sums. There is a row for
/// each query of the biases.
template <Real T>
struct ExponentialSums {
  const MatrixView<T>&q, &k, &U, &G;  // (rows,d) (n_k,d) (n_k,p) (rows,p)
  const double* log_scales;           // (rows)  weights are relative to exp(log_scale)
  const int* exponents;               // (rows)  what a row adds to dk, dU and db gets the factor 2^exponent
};

/// The gradients of exponential weights by q, k, U = [v 1], r (QueryBiases) and b, in the caller's storage. All are
/// added to.
template <Real T>
struct FieldGradients {
  MatrixRef<T> dq, dk, dU;  // (rows,d) (n_k,d) (n_k,p)
  MatrixRef<T> dr;          // (n_q,rank)
  BiasGradient db;
};

// with P = G U^T and S = q k^T:  dS = P o w, dq = dS k, dk = dS^T q, dU = w^T G, db = dS
/// Adds the gradients of w U, where w_ij = exp(q_i.k_j + b_ij - log_scale_i) and biases.set() returns b_ij.
template <Real T>
void add_exponential_gradients(const RowBiases<T>& biases, const ExponentialSums<T>& of, FieldGradients<T> out,
                               const Team& team) {
  const Workspace::Scope scope(team.workspace());
  const Index rows = of.q.rows();
  T *constants = team.workspace().template take<T>(rows), *factors = team.workspace().template take<T>(rows);
  for (Index i = 0; i < rows; ++i) {
    constants[i] = static_cast<T>(-of.log_scales[i]);
    factors[i] = std::ldexp(T(1), of.exponents[i]);
  }
  const ExponentialWeights<T> weights(biases, constants, factors);
  const auto x = toeplitz::Factors<T>::without_gaps(of.q, of.k, of.U);
  toeplitz::GradientRefs<T> gradients{out.dq, out.dk, out.dU, Eigen::Map<Vector<T>>(nullptr, 0)};
  const auto add_db = [&](const toeplitz::PairRow<T>& pairs, T* share) {
    if (out.db.size() == 0) return;
    const toeplitz::RowRange keys = biases.keys(pairs.i, 1);
    const Index first = std::max(keys.begin - pairs.j0, Index{0}), end = std::min(keys.end - pairs.j0, pairs.count);
    if (first >= end) return;
    T db[toeplitz::BackwardTile<T>::keys];  // in an array, so that compilers vectorise it
    for (Index j = first; j < end; ++j) db[j] = pairs.C[j] == T(0) ? T(0) : pairs.P[j] * pairs.C[j];
    biases.add_query_gradient(pairs.i, pairs.j0 + first, end - first, db + first, pairs.S[first], out.dr, out.db,
                              share);
    for (Index j = first; j < end; ++j) db[j] *= pairs.S[j];
    biases.add_gradient(
        pairs.i, pairs.j0 + first, end - first, [of = db + first](Index j) { return of[j]; }, out.db, share);
  };
  out.db.add(toeplitz::TiledProduct<T>(x, weights).add_gradients(of.G, gradients, out.db.size(), team, add_db));
}

}  // namespace nprf
