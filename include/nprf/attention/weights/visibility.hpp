// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/lag_bias.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/fft/engine.hpp"

namespace nprf {

/// A set of lags t - s, those that attention sees. And so which queries see any of some keys, which is a product with a
/// Toeplitz matrix of Booleans:
///
///     y_i = or_j  C[i,j] and x_j,   C[i,j] = whether lag t_j - s_i is seen
///
/// Where few runs of lags are seen, or the keys are few runs, each is a difference of counts; else the counts of keys
/// are a product by transforms in double, whose error is far below 1/2.
class Visibility {
 public:
  /// Those of a range for which sees(lag). O(range) time, and memory in the workspace.
  template <class Sees>
  Visibility(LagRange lags, Sees&& sees, Workspace& workspace) : m_lags(lags) {
    Index* before = workspace.take<Index>(lags.size() + 1);
    before[0] = 0;
    LagRange run{lags.first, lags.first - 1};
    for (Index k = 0; k < lags.size(); ++k) {
      const Index lag = lags.first + k;
      const bool seen = sees(lag);
      before[k + 1] = before[k] + (seen ? 1 : 0);
      m_runs += seen && run.size() == 0;
      run = seen ? LagRange{run.first, lag} : LagRange{lag + 1, lag};
      if (run.size() > m_longest.size()) m_longest = run;
    }
    m_before = before;
  }

  /// The longest run of lags that are all seen.
  LagRange longest_run() const { return m_longest; }

  /// How many runs of lags are seen.
  Index runs() const { return m_runs; }

  /// y (queries.count,p) becomes 1 where a query sees one of the keys that a column of X marks, else 0; row t of X
  /// (slots,p), of zeros and ones, is that of the key in slot t. X is lost. O((n_q + slots) p log n).
  void any_seen(const Slots& queries, MatrixMap<double> X, MatrixMap<double> y, Workspace& workspace) const {
    any(queries, false, X, y, workspace);
  }
  /// The same the other way round: where a key is seen by one of the queries that X marks.
  void seen_by_any(const Slots& keys, MatrixMap<double> X, MatrixMap<double> y, Workspace& workspace) const {
    any(keys, true, X, y, workspace);
  }

 private:
  // how many of these lags are seen
  Index count(LagRange lags) const {
    const Index begin = std::max(lags.first, m_lags.first), end = std::min(lags.last, m_lags.last) + 1;
    return begin < end ? m_before[end - m_lags.first] - m_before[begin - m_lags.first] : 0;
  }
  bool sees(Index lag) const { return count({lag, lag}) > 0; }

  template <class Body>
  void for_each_run(Body&& body) const {
    for (Index lag = m_lags.first; lag <= m_lags.last; ++lag) {
      if (!sees(lag)) continue;
      const Index first = lag;
      while (lag < m_lags.last && sees(lag + 1)) ++lag;
      body(LagRange{first, lag});
    }
  }
  // body(p, first, last) for each run of slots that a column of X marks
  template <class Body>
  static void for_each_marked_run(const MatrixMap<double>& X, Body&& body) {
    for (Index p = 0; p < X.cols(); ++p)
      for (Index t = 0; t < X.rows(); ++t) {
        if (X(t, p) == 0) continue;
        const Index first = t;
        while (t + 1 < X.rows() && X(t + 1, p) != 0) ++t;
        body(p, first, t);
      }
  }

  // from rows to the slots of X: by the lags themselves, or `back` by their opposites
  void any(const Slots& rows, bool back, MatrixMap<double>& X, MatrixMap<double>& y, Workspace& workspace) const {
    y.setZero();
    if (m_runs == 0 || rows.count == 0 || X.rows() == 0) return;
    const auto at = [back](LagRange lags) { return back ? LagRange{-lags.last, -lags.first} : lags; };
    // a transform costs a row as much as some runs, about
    const Index most = 4 * static_cast<Index>(std::log2(static_cast<double>(X.rows() + rows[rows.count - 1] + 1)));
    Index marked = 0;
    for_each_marked_run(X, [&](Index, Index, Index) { ++marked; });
    if (marked <= std::min(m_runs, most) * X.cols()) {
      for_each_marked_run(X, [&](Index p, Index first, Index last) {
        for (Index i = 0; i < rows.count; ++i)
          if (count(at({first - rows[i], last - rows[i]})) > 0) y(i, p) = 1;
      });
    } else if (m_runs <= most) {
      for (Index t = 1; t < X.rows(); ++t) X.row(t) += X.row(t - 1);  // how many are marked up to a slot
      for_each_run([&](LagRange run) {
        const auto [first, last] = at(run);
        for (Index i = 0; i < rows.count; ++i) {
          const Index begin = std::max<Index>(rows[i] + first, 0), end = std::min(rows[i] + last, X.rows() - 1);
          if (begin > end) continue;
          if (begin == 0)
            y.row(i) += X.row(end);
          else
            y.row(i) += X.row(end) - X.row(begin - 1);
        }
      });
    } else {
      by_transforms(rows, back, X, y, workspace);
    }
    y = (y.array() > 0.5).cast<double>();
  }

  // the counts of marked slots, Y = ((A B^T) o C) X with A and B of ones
  void by_transforms(const Slots& rows, bool back, const MatrixMap<double>& X, MatrixMap<double>& y,
                     Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    double* c = workspace.take<double>(m_lags.size());
    for (Index k = 0; k < m_lags.size(); ++k) c[back ? m_lags.size() - 1 - k : k] = sees(m_lags.first + k) ? 1 : 0;
    auto ones = workspace.matrix<double>(std::max(rows.count, X.rows()), 1);
    ones.setOnes();
    const MatrixView<double> a = ones.topRows(rows.count), b = ones.topRows(X.rows()), x = X;
    const Team alone(workspace);
    const toeplitz::LanesEngine<double> engine({back ? -m_lags.last : m_lags.first, c, m_lags.size()},
                                               {rows[rows.count - 1] + 1, X.rows(), 1, X.cols()}, alone);
    engine.contract({a, b, x, rows, Slots{X.rows()}}, y, alone);
  }

  LagRange m_lags, m_longest;
  Index m_runs = 0;
  const Index* m_before;  // lags that are seen before each of the range
};

}  // namespace nprf
