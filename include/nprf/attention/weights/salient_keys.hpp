// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>

#include "nprf/core/gemm.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// The mean nu (d) and the covariance S (d,d) of the queries of a sequence, and how salient they make its keys. All
/// arrays are in the workspace.
template <Real T>
class SalientScores {
 public:
  /// For normalised queries q (n_q,d), all of which count, and which are overwritten. O(n_q d^2).
  SalientScores(MatrixMap<T> q, const Team& team)
      : m_nu(team.workspace().template matrix<T>(1, q.cols())),
        m_S(team.workspace().template matrix<T>(q.cols(), q.cols())),
        m_team(team) {
    const std::span<T> nu = writable_row(m_nu, 0);
    const T n_q = static_cast<T>(std::max<Index>(q.rows(), 1));
    std::ranges::fill(nu, T(0));
    for (Index i = 0; i < q.rows(); ++i) add_scaled(nu, 1 / n_q, row_of(q, i));
    // S = X^T X / n_q, where X = q - nu
    for (Index i = 0; i < q.rows(); ++i) add_scaled(writable_row(q, i), T(-1), row_of(m_nu, 0));
    team.run_tiles(q.cols(), rows_of_S, [&](Index a0, Index rows, Workspace&) {
      set_product(m_S.middleRows(a0, rows), q.middleCols(a0, rows).transpose(), q);  // (rows,d)
    });
    for (Index a = 0; a < q.cols(); ++a) scale(writable_row(m_S, a), 1 / n_q);
  }

  /// Sets scores (n_k) to the logarithm of the mean of exp(q.k_j) over Gaussian queries of this mean and covariance,
  ///
  ///     score_j = nu.k_j + k_j S k_j / 2
  ///
  /// for the normalised keys k_j = scale_j x_j. That of a key with a NaN or an infinity is not finite. No bit of a
  /// score depends on other keys. O(n_k d^2).
  void set(const MatrixView<T>& x, RowScale<T> scale_of_row, T* scores) const {
    m_team.run_tiles(x.rows(), [&](Index j0, Index rows, Workspace& scratch) {
      auto of_key = scratch.matrix<T>(2, x.cols());
      const std::span<T> k = writable_row(of_key, 0), kS = writable_row(of_key, 1);
      for (Index j = j0; j < j0 + rows; ++j) {
        set_scaled(k, scale_of_row[static_cast<std::size_t>(j)], row_of(x, j));
        std::ranges::fill(kS, T(0));
        for (Index a = 0; a < x.cols(); ++a) add_scaled(kS, of_key(0, a), row_of(m_S, a));
        scores[j] = dot(row_of(m_nu, 0), row_of(of_key, 0)) + dot(row_of(of_key, 1), row_of(of_key, 0)) / 2;
      }
    });
  }

 private:
  static constexpr Index rows_of_S = 16;  // in a task

  MatrixMap<T> m_nu, m_S;  // (1,d) (d,d)
  const Team& m_team;
};

/// The indices, increasing, of the first `sinks` of n_k keys, or of all if there are fewer, and of the `salient` keys
/// after these that have the largest scores (n_k). Of equal scores the first ones count, and only finite scores. The
/// indices are in the workspace. O(n_k + salient log salient).
template <Real T>
std::span<const Index> most_salient(Index sinks, Index salient, Index n_k, const T* scores, Workspace& workspace) {
  sinks = std::min(sinks, n_k);
  Index* indices = workspace.take<Index>(n_k);
  std::iota(indices, indices + n_k, Index{0});
  Index* const others = indices + sinks;
  Index* const end = std::remove_if(others, indices + n_k, [&](Index j) { return !std::isfinite(scores[j]); });
  Index* const last = others + std::min<Index>(salient, end - others);
  const auto is_before = [&](Index a, Index b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); };
  std::nth_element(others, last, end, is_before);
  std::sort(others, last);
  return {indices, static_cast<std::size_t>(last - indices)};
}

}  // namespace nprf
