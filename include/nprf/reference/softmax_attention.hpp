// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "nprf/core/gemm.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/normalize/normalization.hpp"
#include "nprf/position/position.hpp"
#include "nprf/reference/bias_rows.hpp"

namespace nprf::reference {

/// Exact softmax attention with a bias for the distance, y_i = sum_j softmax_j(q_i.k_j + b[j-i]) v_j over normalised
/// q and k (Normalization::none() divides the logits by sqrt(d)): the yardstick.
///
/// q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v). O(n_q n_k (d + d_v)), memory O((n_q + n_k)(d + d_v)). Tiles with a
/// running maximum (Milakov and Gimelshein 2018), by all threads. Throws InvalidArgument for shapes that do not fit.
template <OnlyReal T, Position P>
Matrix<T> softmax_attention(const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k,
                            const std::type_identity_t<MatrixView<T>>& v, const P& position, Direction direction,
                            Normalization normalization) {
  constexpr Index tile_rows = 128, tile_cols = 256;
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  check_direction(direction);
  const AttentionShape shape = attention_shape<T>(q, k, v);
  const Index n_q = shape.n_q, n_k = shape.n_k, d_v = shape.d_v;

  const Matrix<T> qs = normalization.row_scale<T>(q).asDiagonal() * q;                // (n_q,d)
  const Matrix<T> kt = (normalization.row_scale<T>(k).asDiagonal() * k).transpose();  // (d,n_k)
  const BiasRows<T, P> b(position, direction, n_q, n_k);
  const bool hides = b.hides();

  Matrix<T> y = Matrix<T>::Zero(n_q, d_v);
  std::vector<Workspace> workspaces(static_cast<std::size_t>(num_threads()));
  Team(workspaces).run_tiles(n_q, tile_rows, [&](Index i0, Index rows, Workspace&) {
    Matrix<T> S;
    const Index end = direction == Direction::causal ? std::min(i0 + rows, n_k) : n_k;
    auto biases = b.tile(i0, rows, end);
    auto out = y.middleRows(i0, rows);  // (rows,d_v)
    Vector<T> largest = Vector<T>::Constant(rows, lowest), sum = Vector<T>::Zero(rows);
    for (Index j0 = 0; j0 < end; j0 += tile_cols) {
      const Index cols = std::min(tile_cols, end - j0);
      resize(S, rows, cols);
      set_product(S, qs.middleRows(i0, rows), kt.middleCols(j0, cols));  // (rows,cols)
      for (Index i = 0; i < rows; ++i) {
        auto s = S.row(i).array();
        const auto bias = biases.row(i, j0, cols);
        s += bias;
        T top = s.maxCoeff();  // may pass over a NaN, which the sum then finds
        if (top < largest[i]) top = largest[i];
        if (top == lowest && !s.isNaN().any()) {  // every key so far is at -infinity
          s.setZero();
          continue;
        }
        if (top != largest[i]) {
          const T rescale = std::exp(largest[i] - top);
          out.row(i) *= rescale;
          sum[i] *= rescale;
          largest[i] = top;
        }
        s = (s - top).exp();
        // Eigen's exp(-infinity) may stop short of 0
        if (hides) s = (bias == lowest).select(T(0), s);
        sum[i] += s.sum();
      }
      add_product(out, S, v.middleRows(j0, cols));  // (rows,d_v)
    }
    for (Index i = 0; i < rows; ++i)
      if (largest[i] != lowest) out.row(i) /= sum[i];
  });
  return y;
}

}  // namespace nprf::reference
