// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/core/gemm.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/reference/bias_rows.hpp"
#include "nprf/reference/softmax_attention.hpp"

namespace nprf::reference {

namespace detail {

/// The keys that are padding: those for which the mask is false. An empty mask has none.
class Padding {
 public:
  /// Throws InvalidArgument unless the mask is empty or has n_k values.
  Padding(std::span<const bool> key_mask, Index n_k) : m_mask(key_mask) {
    const Index size = static_cast<Index>(key_mask.size());
    require(size == 0 || size == n_k, "key_mask: expected ", n_k, " values (the number of keys), got ", size);
  }

  /// Sets the entries of padding in s, which has one for each of the keys j0, j0 + 1, ...
  template <class Row>
  void fill(Row& s, Index j0, typename Row::Scalar value) const {
    for (Index j = 0; !m_mask.empty() && j < s.size(); ++j)
      if (!m_mask[static_cast<std::size_t>(j0 + j)]) s[j] = value;
  }

  /// v (n_k,d_v) with zeros in the rows of padding; empty without padding.
  template <Real T>
  Matrix<T> without(const MatrixView<T>& v) const {
    Matrix<T> kept;
    if (!m_mask.empty()) kept = v;
    for (Index p = 0; p < kept.cols(); ++p) {
      auto column = kept.col(p);
      fill(column, 0, T(0));
    }
    return kept;
  }

 private:
  std::span<const bool> m_mask;
};

template <Real T>
Matrix<T> softmax_attention(const MatrixView<T>& q, const MatrixView<T>& k, const MatrixView<T>& v,
                            const PositionView<T>& position, Direction direction, Normalization normalization,
                            void (*poll)(), std::span<const bool> key_mask, Index offset, CompiledFlags<T>) {
  constexpr Index tile_rows = 128, tile_cols = 256;
  constexpr T minus_infinity = -std::numeric_limits<T>::infinity();
  const AttentionShape shape = attention_shape<T>(q, k, v);
  const Index n_q = shape.n_q, n_k = shape.n_k, d_v = shape.d_v;
  const Padding padding(key_mask, n_k);

  const Matrix<T> qs = normalization.row_scale<T>(q).asDiagonal() * q;                // (n_q,d)
  const Matrix<T> kt = (normalization.row_scale<T>(k).asDiagonal() * k).transpose();  // (d,n_k)
  const BiasRows<T> b(position, direction, n_q, n_k, offset);
  const bool any_masked = b.any_masked(), may_be_nan = !qs.allFinite() || !kt.allFinite();
  const Matrix<T> kept = padding.template without<T>(v);
  const MatrixView<T> values = key_mask.empty() ? v : MatrixView<T>(kept);  // (n_k,d_v)

  Matrix<T> y = Matrix<T>::Zero(n_q, d_v);
  std::vector<Workspace> workspaces(static_cast<std::size_t>(num_threads()));
  Team(workspaces, poll).run_tiles(n_q, tile_rows, [&](Index i0, Index rows, Workspace&) {
    Matrix<T> S;
    const Index end = direction == Direction::causal ? std::clamp<Index>(i0 + rows + offset, 0, n_k) : n_k;
    auto biases = b.tile(i0, rows, end);
    auto out = y.middleRows(i0, rows);  // (rows,d_v)
    Vector<T> largest = Vector<T>::Constant(rows, minus_infinity), sum = Vector<T>::Zero(rows);
    for (Index j0 = 0; j0 < end; j0 += tile_cols) {
      const Index cols = std::min(tile_cols, end - j0);
      resize(S, rows, cols);
      set_product(S, qs.middleRows(i0, rows), kt.middleCols(j0, cols));  // (rows,cols)
      for (Index i = 0; i < rows; ++i) {
        auto s = S.row(i).array();
        const auto bias = biases.row(i, j0, cols);
        s += bias;
        padding.fill(s, j0, minus_infinity);
        // of the numbers beside a NaN: one of a key that the row attends to makes the sum NaN, others have no effect
        T new_max = may_be_nan ? s.template maxCoeff<Eigen::PropagateNumbers>() : s.maxCoeff();
        if (!(new_max >= largest[i])) new_max = largest[i];
        if (new_max == minus_infinity && !(s.isNaN() && bias != minus_infinity).any()) {  // no key so far
          s.setZero();
          continue;
        }
        if (new_max != largest[i]) {
          const T rescale = std::exp(largest[i] - new_max);
          out.row(i) *= rescale;
          sum[i] *= rescale;
          largest[i] = new_max;
        }
        s = (s - new_max).exp();
        // Eigen's exp(-infinity) may be positive
        if (any_masked) s = (bias == minus_infinity).select(T(0), s);
        sum[i] += s.sum();
      }
      add_product(out, S, values.middleRows(j0, cols));  // (rows,d_v)
    }
    for (Index i = 0; i < rows; ++i)
      if (largest[i] != minus_infinity) out.row(i) /= sum[i];
  });
  return y;
}

}  // namespace detail

}  // namespace nprf::reference
