// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/gemm.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/gradients.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U and its gradients for a tile of queries and a run of keys, tile by tile of the quadratic matrix:
/// exact to rounding for every bias. O(rows keys (r + p)); scratch for one tile, for the gradients two.
template <Real T>
class LagTiles {
 public:
  static constexpr Index tile = Team::tile;

  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1; its table lies in the workspace.
  LagTiles(LagWeightsView<T> lags, const ProductShape& span, Workspace& workspace)
      : m_first(-(span.n_q - 1)), m_size(span.n_q + span.n_k - 1) {
    T* c = workspace.take<T>(m_size);
    for (Index k = 0; k < m_size; ++k) c[k] = lags[m_first + k];
    m_c = c;
  }

  /// All lags that there can be.
  LagRange lags() const { return {m_first, m_first + m_size - 1}; }

  /// y (rows,p) += ((A_I B_J^T) o C) U_J  for the queries i0, i0 + 1, ... and the keys j_begin..j_end-1.
  template <class Y>
  void add(const ProductFactors<T>& x, Index i0, Index j_begin, Index j_end, Y&& y, Workspace& scratch) const {
    const Index rows = y.rows();
    for (Index j0 = j_begin; j0 < j_end; j0 += tile) {
      const Index cols = std::min(tile, j_end - j0);
      const Workspace::Scope scope(scratch);
      auto S = scratch.matrix<T>(rows, cols);
      set_product(S, x.A.middleRows(i0, rows), x.B.middleRows(j0, cols).transpose());  // (rows,cols)
      for (Index i = 0; i < rows; ++i) {
        const T* c = m_c + (x.keys[j0] - x.queries[i0 + i] - m_first);
        T* s = &S(i, 0);
        for_each_key(x.keys, j0, cols, [=](Index j, Index distance) { s[j] = times(s[j], c[distance]); });
      }
      add_product(y, S, x.U.middleRows(j0, cols));  // (rows,p)
    }
  }

  // forward: S = A B^T, Y = (S o C) U; so with P = G U^T: dA = (P o C) B, dB = (P o C)^T A, dU = (S o C)^T G,
  // and dc[l] sums S o P over the diagonal l
  /// Adds what these tokens give to out.dA (n_q,r), out.dB (n_k,r) and out.dU (n_k,p), and, unless it is null, to dc,
  /// whose first lag is dc_first.
  void add_gradients(const ProductFactors<T>& x, const MatrixView<T>& G, Index i0, Index rows, Index j_begin,
                     Index j_end, GradientRefs<T>& out, T* dc, Index dc_first, Workspace& scratch) const {
    for (Index j0 = j_begin; j0 < j_end; j0 += tile) {
      const Index cols = std::min(tile, j_end - j0);
      const Workspace::Scope scope(scratch);
      auto S = scratch.matrix<T>(rows, cols), P = scratch.matrix<T>(rows, cols);
      set_product(S, x.A.middleRows(i0, rows), x.B.middleRows(j0, cols).transpose());  // (rows,cols)
      set_product(P, G.middleRows(i0, rows), x.U.middleRows(j0, cols).transpose());    // (rows,cols)
      for (Index i = 0; i < rows; ++i) {
        const Index lag = x.keys[j0] - x.queries[i0 + i];
        const T* c = m_c + (lag - m_first);
        T *s = &S(i, 0), *p = &P(i, 0);
        if (dc) {
          T* sum = dc + (lag - dc_first);
          for_each_key(x.keys, j0, cols, [=](Index j, Index distance) { sum[distance] += s[j] * p[j]; });
        }
        for_each_key(x.keys, j0, cols, [=](Index j, Index distance) {
          s[j] = times(s[j], c[distance]);
          p[j] = times(p[j], c[distance]);
        });
      }
      add_product(out.dA.middleRows(i0, rows), P, x.B.middleRows(j0, cols));              // (rows,r)
      add_product(out.dB.middleRows(j0, cols), P.transpose(), x.A.middleRows(i0, rows));  // (cols,r)
      add_product(out.dU.middleRows(j0, cols), S.transpose(), G.middleRows(i0, rows));    // (cols,p)
    }
  }

 private:
  // body(j, slots from key j0 to key j0 + j); slots without gaps are left to the compiler to vectorise
  template <class Body>
  static void for_each_key(const Slots& keys, Index j0, Index cols, Body&& body) {
    if (keys.at) {
      for (Index j = 0; j < cols; ++j) body(j, keys.at[j0 + j] - keys.at[j0]);
    } else {
      for (Index j = 0; j < cols; ++j) body(j, j);
    }
  }

  // a weight of 0 hides even what is infinite
  static T times(T s, T c) { return c == T(0) ? T(0) : s * c; }

  Index m_first, m_size;
  const T* m_c = nullptr;  // (m_size)  c[l] at l - m_first
};

}  // namespace nprf::toeplitz
