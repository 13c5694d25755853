// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "nprf/core/gemm.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/block_causal/levels.hpp"
#include "nprf/toeplitz/block_causal/running_key_max.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf::toeplitz {

/// The diagonal blocks, which CausalLevels leaves out, as dense products: strips of 32 queries times the keys of their
/// block up to the end of the strip. Time O(n CausalLevels::diagonal() (r + p)).
///
/// No bit of a row depends on later keys. Later keys have weight zero, and zero times a finite number adds nothing. For
/// rows before a key with non-finite values, these values are replaced by zeros.
template <Real T>
class DiagonalBlocks {
 public:
  DiagonalBlocks(LagWeightsView<T> c, const CausalLevels<T>& levels, const Team& team)
      : m_axis(levels.axis()), m_block(levels.diagonal()) {
    T* weights = team.workspace().take<T>(2 * m_block);
    for (Index k = 0; k < 2 * m_block; ++k) weights[k] = m_axis.weight(c, m_block - 1 - k);
    m_weights = weights;
  }

  /// Writes the product of the diagonal blocks to Y, which has one row for each slot of the queries. The factors have
  /// one row for each place (CausalAxis).
  void contract(const Factors<T>& x, const RunningKeyMax<T>& key_max, MatrixRef<T> Y, const Team& team) const {
    team.run((m_axis.queries.end + strip - 1) / strip, [&](Index task, Workspace& scratch) {
      const Index first = task * strip, end = std::min(first + strip, m_axis.queries.end);
      const Index i0 = std::max(first, m_axis.queries.first), rows = end - i0;
      if (rows <= 0) return;
      MatrixRef<T> y = Y.middleRows(i0 - m_axis.queries.first, rows);  // (rows,p)
      const Index j0 = std::max(first / m_block * m_block, m_axis.keys.first),
                  cols = std::min(end, m_axis.keys.end) - j0;
      if (cols <= 0) {
        y.setZero();
        return;
      }
      auto S = scratch.matrix<T>(rows, cols);
      set_product(S, x.A.middleRows(i0, rows), x.B.middleRows(j0, cols).transpose());  // (rows,cols)
      multiply_by_weights(S, i0, j0);
      multiply_by_key_scales(S, i0, j0, key_max, scratch);
      multiply_values(S, x.U.middleRows(j0, cols), i0 - j0, y, scratch);
    });
  }

  // forward: S = A B^T, Y = (S o C) U; so with P = G U^T: dA = (P o C) B, dB = (P o C)^T A, dU = (S o C)^T G,
  // and dc[l] sums S o P over the diagonal l
  /// Adds the gradients for G and the sums of `sizes`. The factors, G, the gradients and the sizes have one row for
  /// each place; `first` is the lag of dc[0].
  void add_gradients(const Factors<T>& x, const MatrixView<T>& G, const RunningKeyMax<T>& key_max, GradientRefs<T>& out,
                     const GradientSizes<T>& sizes, Index first, const Team& team) const {
    const Index block = m_block, blocks = (m_axis.queries.end + block - 1) / block;
    const Workspace::Scope scope(team.workspace());
    // what each block adds to dc and to the sums of lags, by distance
    auto dc = team.workspace().matrix<T>(blocks, block), size_of_lags = team.workspace().matrix<T>(blocks, block);
    team.run(blocks, [&](Index k, Workspace& scratch) {
      for (MatrixMap<T>* sums : {&dc, &size_of_lags}) std::ranges::fill(writable_row(*sums, k), T(0));
      const Index end = std::min((k + 1) * block, m_axis.queries.end), j0 = std::max(k * block, m_axis.keys.first);
      for (Index i0 = std::max(k * block, m_axis.queries.first), next; i0 < end; i0 = next) {
        next = std::min((i0 / backward_strip + 1) * backward_strip, end);
        const Index rows = next - i0, cols = std::min(next, m_axis.keys.end) - j0;
        if (cols <= 0) continue;
        const Workspace::Scope strip_scope(scratch);
        const auto a = x.A.middleRows(i0, rows), g = G.middleRows(i0, rows);
        const auto b = x.B.middleRows(j0, cols), u = x.U.middleRows(j0, cols);
        auto S = scratch.matrix<T>(rows, cols), P = scratch.matrix<T>(rows, cols);
        set_product(S, a, b.transpose());  // (rows,cols)
        set_product(P, g, u.transpose());  // (rows,cols)
        multiply_by_key_scales(P, i0, j0, key_max, scratch);
        for (Index i = 0; i < rows; ++i)
          for (Index j = 0; j < std::min(i0 + i + 1 - j0, cols); ++j) dc(k, i0 + i - j0 - j) += S(i, j) * P(i, j);
        multiply_by_key_scales(S, i0, j0, key_max, scratch);
        for (Index i = 0; sizes && i < rows; ++i)
          for (Index j = 0; j < std::min(i0 + i + 1 - j0, cols); ++j)
            size_of_lags(k, i0 + i - j0 - j) += S(i, j) * sizes.rows[i0 + i];
        multiply_by_weights(S, i0, j0);
        multiply_by_weights(P, i0, j0);
        for (Index i = 0; sizes && i < rows; ++i)
          for (Index j = 0; j < cols; ++j) sizes.keys[j0 + j] += S(i, j) * sizes.rows[i0 + i];
        add_product(out.dA.middleRows(i0, rows), P, b);              // (rows,r)
        add_product(out.dB.middleRows(j0, cols), P.transpose(), a);  // (cols,r)
        add_product(out.dU.middleRows(j0, cols), S.transpose(), g);  // (cols,p)
      }
    });
    for (Index k = 0; k < blocks; ++k)
      for (Index d = 0; d < std::min(block, m_axis.lags.size()); ++d) {
        const Index at = m_axis.lags.last - d - first;
        out.dc[at] += dc(k, d);
        if (sizes) sizes.lags[at] += size_of_lags(k, d);
      }
  }

 private:
  static constexpr Index strip = 32, backward_strip = 64;

  void multiply_by_weights(MatrixMap<T>& S, Index i0, Index j0) const {
    for (Index i = 0; i < S.rows(); ++i) {
      const T* c = m_weights + m_block - 1 + j0 - (i0 + i);
      T* s = &S(i, 0);
      for (Index j = 0; j < S.cols(); ++j) s[j] = c[j] == T(0) ? T(0) : s[j] * c[j];
    }
  }

  // multiplies S(i,j) by e^(e_j - M_i), where M_i is the largest log-scale of the keys up to row i
  static void multiply_by_key_scales(MatrixMap<T>& S, Index i0, Index j0, const RunningKeyMax<T>& key_max,
                                     Workspace& scratch) {
    const double* e = key_max.log_scales();
    if (!e) return;
    const Workspace::Scope scope(scratch);
    T* factors = scratch.take<T>(S.cols());
    double largest = key_max.before(j0);
    // the first `seen` keys are not above `largest`, and the first `valid` factors are relative to it
    for (Index i = 0, seen = 0, valid = 0; i < S.rows(); ++i) {
      const Index keys = std::clamp<Index>(i0 + i + 1 - j0, 0, S.cols());  // the number that row i attends to
      for (; seen < keys; ++seen)
        if (e[j0 + seen] > largest) largest = e[j0 + seen], valid = 0;
      for (; valid < keys; ++valid) factors[valid] = static_cast<T>(ratio(e[j0 + valid], largest));
      T* s = &S(i, 0);
      for (Index j = 0; j < keys; ++j) s[j] *= factors[j];
    }
  }

  // Y = S U; row i attends to the keys up to `lead` + i
  static void multiply_values(const MatrixMap<T>& S, const MatrixView<T>& U, Index lead, MatrixRef<T>& y,
                              Workspace& scratch) {
    const MatrixView<T> finite = finite_rows<T>(U, scratch);
    set_product(y, S, finite);  // (rows,p)
    if (finite.data() == U.data()) return;
    Index first = 0;  // the first non-finite row
    while (is_finite(row_of(U, first))) ++first;
    for (Index i = std::max<Index>(first - lead, 0); i < S.rows(); ++i) {
      std::ranges::fill(writable_row(y, i), T(0));
      for (Index j = 0; j < std::min(lead + i + 1, S.cols()); ++j)
        add_scaled(writable_row(y, i), S(i, j), row_of(U, j));
    }
  }

  CausalAxis m_axis;
  Index m_block;                 // the size of the blocks
  const T* m_weights = nullptr;  // (2 m_block)  the weight of distance d at m_block - 1 - d
};

}  // namespace nprf::toeplitz
