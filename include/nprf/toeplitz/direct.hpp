// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/gemm.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U by tiles of the quadratic matrix: exact to rounding for every bias, and fastest for short n.
///
/// Time O(n_q n_k (r + p)), tiles outside the support of c skipped; workspace O(n_q + n_k). Threads take rows of tiles.
template <Real T>
class DirectEngine {
 public:
  static constexpr Index tile = Team::tile;

  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1; its table lies in the team's workspace.
  DirectEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : m_n_q(span.n_q), m_lags(m_n_q + span.n_k - 1), m_support(lags.support()) {
    T* c = team.workspace().take<T>(m_lags);
    for (Index k = 0; k < m_lags; ++k) c[k] = lags[k - (m_n_q - 1)];
    m_c = c;
  }

  /// Y (n_q,p) = ((A B^T) o C) U.
  void contract(const ProductFactors<T>& x, MatrixRef<T> Y, const Team& team) const {
    team.run_tiles(x.queries.count, [&](Index i0, Index rows, Workspace& scratch) {
      auto y = Y.middleRows(i0, rows);  // (rows,p)
      y.setZero();
      for_each_tile(x, i0, rows, 0, x.keys.count, [&](Index j0, Index cols) {
        const Workspace::Scope scope(scratch);
        auto S = scratch.matrix<T>(rows, cols);
        set_product(S, x.A.middleRows(i0, rows), x.B.middleRows(j0, cols).transpose());  // (rows,cols)
        multiply_by_c(x, i0, j0, S);
        add_product(y, S, x.U.middleRows(j0, cols));  // (rows,p)
      });
    });
  }

  // forward: S = A B^T, Y = (S o C) U; so with P = G U^T: dA = (P o C) B, dB = (P o C)^T A, dU = (S o C)^T G,
  // and dc[l] sums S o P over the diagonal l
  /// The gradients for G (n_q,p) = dL/dY.
  void gradients(const ProductFactors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const Team& team) const {
    out.set_zero();
    const Index n_q = x.queries.count, n_k = x.keys.count;
    const Index tiles = (std::max(n_q, n_k) + tile - 1) / tile, blocks = std::clamp<Index>(tiles, 1, most_blocks);
    const auto edge = [&](Index block) { return tiles * block / blocks * tile; };
    const Workspace::Scope scope(team.workspace());
    auto dc = team.workspace().matrix<T>(blocks, m_lags);  // the share of each block of queries
    dc.setZero();
    team.run_pairs(blocks, [&](Index block, Index key_block, Workspace& scratch) {
      const Index i_end = std::min(edge(block + 1), n_q);
      for (Index i0 = edge(block); i0 < i_end; i0 += tile) {
        const Index rows = std::min(tile, i_end - i0);
        for_each_tile(x, i0, rows, edge(key_block), std::min(edge(key_block + 1), n_k), [&](Index j0, Index cols) {
          const Workspace::Scope tile_scope(scratch);
          auto S = scratch.matrix<T>(rows, cols), P = scratch.matrix<T>(rows, cols);
          set_product(S, x.A.middleRows(i0, rows), x.B.middleRows(j0, cols).transpose());  // (rows,cols)
          set_product(P, G.middleRows(i0, rows), x.U.middleRows(j0, cols).transpose());    // (rows,cols)
          add_diagonals(x, i0, j0, S, P, &dc(block, 0));
          multiply_by_c(x, i0, j0, S);
          multiply_by_c(x, i0, j0, P);
          add_product(out.dA.middleRows(i0, rows), P, x.B.middleRows(j0, cols));              // (rows,r)
          add_product(out.dB.middleRows(j0, cols), P.transpose(), x.A.middleRows(i0, rows));  // (cols,r)
          add_product(out.dU.middleRows(j0, cols), S.transpose(), G.middleRows(i0, rows));    // (cols,p)
        });
      }
    });
    for (Index block = 0; block < blocks; ++block) out.dc += dc.row(block).transpose();
  }

 private:
  static constexpr Index most_blocks = 8;

  // the tiles of keys j_begin..j_end-1 that the support of c touches
  template <class Body>
  void for_each_tile(const ProductFactors<T>& x, Index i0, Index rows, Index j_begin, Index j_end, Body&& body) const {
    const Index first = std::max(x.keys.below(x.queries[i0] + m_support.first), j_begin);
    const Index end = std::min(x.keys.below(x.queries[i0 + rows - 1] + m_support.last + 1), j_end);
    for (Index j0 = first; j0 < end; j0 += tile) body(j0, std::min(tile, end - j0));
  }

  // where the lag of query slot s and key slot 0 stands in a table of all lags
  Index lag_index(Index s) const { return m_n_q - 1 - s; }

  // body(j, slot) for the keys j0 + j; slots without gaps are left to the compiler to vectorise
  template <class Body>
  static void for_each_slot(const Slots& keys, Index j0, Index cols, Body&& body) {
    if (keys.at) {
      for (Index j = 0; j < cols; ++j) body(j, keys.at[j0 + j]);
    } else {
      const Index first = keys.first + j0;
      for (Index j = 0; j < cols; ++j) body(j, first + j);
    }
  }

  // a weight of 0 hides even what is infinite
  static T times(T s, T c) { return c == T(0) ? T(0) : s * c; }

  template <class M>
  void multiply_by_c(const ProductFactors<T>& x, Index i0, Index j0, M& S) const {
    for (Index i = 0; i < S.rows(); ++i) {
      const T* c = m_c + lag_index(x.queries[i0 + i]);
      T* s = &S(i, 0);
      for_each_slot(x.keys, j0, S.cols(), [=](Index j, Index slot) { s[j] = times(s[j], c[slot]); });
    }
  }

  template <class M>
  void add_diagonals(const ProductFactors<T>& x, Index i0, Index j0, const M& S, const M& P, T* dc) const {
    for (Index i = 0; i < S.rows(); ++i) {
      T* sum = dc + lag_index(x.queries[i0 + i]);
      const T *s = &S(i, 0), *p = &P(i, 0);
      for_each_slot(x.keys, j0, S.cols(), [=](Index j, Index slot) { sum[slot] += s[j] * p[j]; });
    }
  }

  Index m_n_q, m_lags;
  LagRange m_support;
  const T* m_c = nullptr;  // (m_lags)  c[l] at n_q - 1 + l
};

}  // namespace nprf::toeplitz
