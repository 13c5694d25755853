// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "nprf/core/gemm.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/normalize/normalization.hpp"
#include "nprf/position/position.hpp"
#include "nprf/reference/bias_rows.hpp"
#include "nprf/reference/softmax_attention.hpp"

namespace nprf::python {

/// The keys of a sequence that are not padding.
struct KeptKeys {
  std::span<const bool> mask;  // false is padding; empty: all true
  Index length;                // later keys are padding

  bool contains(Index j) const { return j < length && (mask.empty() || mask[static_cast<std::size_t>(j)]); }

  /// Those of n_k keys, increasing.
  std::vector<Index> indices(Index n_k) const {
    std::vector<Index> kept;
    for (Index j = 0; j < n_k; ++j)
      if (contains(j)) kept.push_back(j);
    return kept;
  }
};

/// Exact softmax attention as in nprf/reference/softmax_attention.hpp, over the keys that are not padding, which is not
/// read. q (n_q,d) k (n_k,d) v (n_k,d_v) -> y (n_q,d_v). A row that attends to no key is zero. O(n_q n_k (d + d_v)).
template <OnlyReal T, Position P>
Matrix<T> softmax_attention(const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k,
                            const std::type_identity_t<MatrixView<T>>& v, const P& position, Direction direction,
                            Normalization normalization, const KeptKeys& keys, void (*poll)()) {
  constexpr Index tile_rows = 16;  // a row has the biases of all keys
  constexpr T minus_infinity = -std::numeric_limits<T>::infinity();
  const AttentionShape shape = attention_shape<T>(q, k, v);
  const std::vector<Index> kept = keys.indices(shape.n_k);
  const Index count = static_cast<Index>(kept.size());
  if (count == shape.n_k)
    return nprf::reference::softmax_attention<T>(q, k, v, position, direction, normalization, poll);

  check_position(position, direction);
  const nprf::reference::BiasRows<T, P> b(position, direction, shape.n_q, shape.n_k);
  const Matrix<T> k_kept = k(kept, Eigen::indexing::all), v_kept = v(kept, Eigen::indexing::all);
  const Matrix<T> qs = normalization.row_scale<T>(q).asDiagonal() * q;                          // (n_q,d)
  const Matrix<T> kt = (normalization.row_scale<T>(k_kept).asDiagonal() * k_kept).transpose();  // (d,count)

  Matrix<T> y = Matrix<T>::Zero(shape.n_q, shape.d_v);
  std::vector<Workspace> workspaces(static_cast<std::size_t>(num_threads()));
  Team(workspaces, poll).run_tiles(shape.n_q, tile_rows, [&](Index i0, Index rows, Workspace&) {
    Matrix<T> S(rows, count);
    set_product(S, qs.middleRows(i0, rows), kt);
    auto biases = b.tile(i0, rows, shape.n_k);
    for (Index i = 0; i < rows; ++i) {
      const Eigen::Array<T, 1, Eigen::Dynamic> bias = biases.row(i, 0, shape.n_k);
      T largest = minus_infinity, sum = 0;
      for (Index j = 0; j < count; ++j) {
        S(i, j) += bias[kept[static_cast<std::size_t>(j)]];
        if (S(i, j) > largest) largest = S(i, j);
      }
      const bool is_empty = largest == minus_infinity && !S.row(i).array().isNaN().any();
      for (Index j = 0; j < count; ++j) {
        S(i, j) =
            is_empty || bias[kept[static_cast<std::size_t>(j)]] == minus_infinity ? 0 : std::exp(S(i, j) - largest);
        sum += S(i, j);
      }
      if (!is_empty) S.row(i) /= sum;
    }
    set_product(y.middleRows(i0, rows), S, v_kept);
  });
  return y;
}

}  // namespace nprf::python
