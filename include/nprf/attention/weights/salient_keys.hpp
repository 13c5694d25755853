// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>

#include "nprf/attention/options.hpp"
#include "nprf/core/gemm.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// The score of a key k (d), the logarithm of the mean of exp(q.k) over Gaussian queries of mean nu (d) and covariance
/// S (d,d):
///
///     score = nu.k + k S k / 2
///
/// That of a key with a NaN or an infinity is not finite. `kS` (d) is overwritten. O(d^2).
template <Real T>
T salient_score(const T* nu, const T* S, std::span<const T> k, std::span<T> kS) {
  std::ranges::fill(kS, T(0));
  for (std::size_t a = 0; a < k.size(); ++a) add_scaled(kS, k[a], {S + a * k.size(), k.size()});
  return dot({nu, k.size()}, k) + dot<T>(kS, k) / 2;
}

/// The mean nu (d) and the covariance S (d,d) of queries, and how salient they make keys (salient_score()). Both are in
/// the workspace.
template <Real T>
class SalientScores {
 public:
  /// For normalised queries q (n_q,d), all of which count, and which are overwritten. O(n_q d^2).
  SalientScores(MatrixMap<T> q, const Team& team) : SalientScores(q.cols(), team) {
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

  /// For those of a sample.
  SalientScores(const SalientRule& rule, const Team& team) : SalientScores(static_cast<Index>(rule.mean.size()), team) {
    const auto rounded = [](double x) { return static_cast<T>(x); };
    std::ranges::transform(rule.mean, m_nu.data(), rounded);
    std::ranges::transform(rule.covariance, m_S.data(), rounded);
  }

  /// Sets scores (n_k) to those of the normalised keys scale_j x_j. No bit of a score depends on other keys.
  /// O(n_k d^2).
  void set(const MatrixView<T>& x, RowScale<T> scale_of_row, T* scores) const {
    m_team.run_tiles(x.rows(), [&](Index j0, Index rows, Workspace& scratch) {
      auto of_key = scratch.matrix<T>(2, x.cols());
      const std::span<T> k = writable_row(of_key, 0), kS = writable_row(of_key, 1);
      for (Index j = j0; j < j0 + rows; ++j) {
        set_scaled(k, scale_of_row[static_cast<std::size_t>(j)], row_of(x, j));
        scores[j] = salient_score<T>(m_nu.data(), m_S.data(), k, kS);
      }
    });
  }

 private:
  static constexpr Index rows_of_S = 16;  // in a task

  SalientScores(Index d, const Team& team)
      : m_nu(team.workspace().template matrix<T>(1, d)), m_S(team.workspace().template matrix<T>(d, d)), m_team(team) {}

  MatrixMap<T> m_nu, m_S;  // (1,d) (d,d)
  const Team& m_team;
};

/// The indices, increasing, of the first `sinks` keys, or of all if there are fewer, and of the `salient` keys after
/// these that have the largest scores (n_k). Of equal scores the first ones count, and only finite scores. The indices
/// are in the workspace. O(n_k + salient log salient).
template <Real T>
std::span<const Index> most_salient(Index sinks, Index salient, std::span<const T> scores, Workspace& workspace) {
  const Index n_k = static_cast<Index>(scores.size());
  const auto score = [&](Index j) { return scores[static_cast<std::size_t>(j)]; };
  Index* indices = workspace.take<Index>(n_k);
  std::iota(indices, indices + n_k, Index{0});
  Index* const others = indices + std::min(sinks, n_k);
  Index* const end = std::remove_if(others, indices + n_k, [&](Index j) { return !std::isfinite(score(j)); });
  Index* const last = others + std::min<Index>(salient, end - others);
  std::nth_element(others, last, end,
                   [&](Index a, Index b) { return score(a) > score(b) || (score(a) == score(b) && a < b); });
  std::sort(others, last);
  return {indices, static_cast<std::size_t>(last - indices)};
}

/// Whether a key is salient by a rule, unless there are enough before it.
template <Real T>
bool exceeds(T score, double threshold) {
  return std::isfinite(score) && static_cast<double>(score) > threshold;
}

/// The same of the first `salient` keys after the sinks that exceed a threshold. O(n_k).
template <Real T>
std::span<const Index> first_salient(Index sinks, Index salient, std::span<const T> scores, double threshold,
                                     Workspace& workspace) {
  const Index n_k = static_cast<Index>(scores.size());
  Index *indices = workspace.take<Index>(n_k), count = 0, found = 0;
  for (Index j = 0; j < n_k; ++j) {
    const bool is_salient = j >= sinks && found < salient && exceeds(scores[static_cast<std::size_t>(j)], threshold);
    found += is_salient;
    if (j < sinks || is_salient) indices[count++] = j;
  }
  return {indices, static_cast<std::size_t>(count)};
}

}  // namespace nprf
