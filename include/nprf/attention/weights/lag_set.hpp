// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/lag_range.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/fft/engine.hpp"

namespace nprf {

/// A set of lags t - s, and the rows that it connects to marked slots. This is a product with a Boolean Toeplitz
/// matrix:
///
///     y_i = or_t  C[i,t] and x_t,   C[i,t] = whether lag t - s_i is in the set
///
/// If the set has few runs of consecutive lags, or if few runs of slots are marked, each entry is a difference of
/// counts. Otherwise the numbers of connected marked slots are computed by FFT in double, with an error far below 1/2.
class LagSet {
 public:
  /// The lags of a range for which contains(lag) holds. O(range) time, and memory in the workspace.
  template <class Contains>
  LagSet(LagRange lags, Contains&& contains, Workspace& workspace) : m_lags(lags) {
    Index* before = workspace.take<Index>(lags.size() + 1);
    before[0] = 0;
    LagRange run{lags.first, lags.first - 1};
    for (Index k = 0; k < lags.size(); ++k) {
      const Index lag = lags.first + k;
      const bool is_in = contains(lag);
      before[k + 1] = before[k] + (is_in ? 1 : 0);
      m_runs += is_in && run.size() == 0;
      run = is_in ? LagRange{run.first, lag} : LagRange{lag + 1, lag};
      if (run.size() > m_longest.size()) m_longest = run;
    }
    m_before = before;
  }

  /// The longest run of lags of the set.
  LagRange longest_run() const { return m_longest; }

  /// The number of runs of lags.
  Index runs() const { return m_runs; }

  /// y (rows.count,p) becomes 1 where the set connects the row to a slot that a column of X marks, else 0. Row t of X
  /// (slots,p) is the mark, 0 or 1, of slot t. X is overwritten. O((rows + slots) p log n).
  void connect(const Slots& rows, MatrixMap<double> X, MatrixMap<double> y, Workspace& workspace) const {
    connect(rows, false, X, y, workspace);
  }
  /// The same for the transposed matrix: lag s_i - t instead of t - s_i.
  void connect_transposed(const Slots& rows, MatrixMap<double> X, MatrixMap<double> y, Workspace& workspace) const {
    connect(rows, true, X, y, workspace);
  }

 private:
  // the number of lags of a range that are in the set
  Index count(LagRange lags) const {
    const Index begin = std::max(lags.first, m_lags.first), end = std::min(lags.last, m_lags.last) + 1;
    return begin < end ? m_before[end - m_lags.first] - m_before[begin - m_lags.first] : 0;
  }
  bool contains(Index lag) const { return count({lag, lag}) > 0; }

  template <class Body>
  void for_each_run(Body&& body) const {
    for (Index lag = m_lags.first; lag <= m_lags.last; ++lag) {
      if (!contains(lag)) continue;
      const Index first = lag;
      while (lag < m_lags.last && contains(lag + 1)) ++lag;
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

  void connect(const Slots& rows, bool transposed, MatrixMap<double>& X, MatrixMap<double>& y,
               Workspace& workspace) const {
    y.setZero();
    if (m_runs == 0 || rows.count == 0 || X.rows() == 0) return;
    const auto oriented = [=](LagRange lags) { return transposed ? LagRange{-lags.last, -lags.first} : lags; };
    // a transform costs about as much a row as this many runs
    const Index most = 4 * static_cast<Index>(std::log2(static_cast<double>(X.rows() + rows[rows.count - 1] + 1)));
    Index marked = 0;
    for_each_marked_run(X, [&](Index, Index, Index) { ++marked; });
    if (marked <= std::min(m_runs, most) * X.cols()) {
      for_each_marked_run(X, [&](Index p, Index first, Index last) {
        for (Index i = 0; i < rows.count; ++i)
          if (count(oriented({first - rows[i], last - rows[i]})) > 0) y(i, p) = 1;
      });
    } else if (m_runs <= most) {
      for (Index t = 1; t < X.rows(); ++t) X.row(t) += X.row(t - 1);  // the number of marks up to slot t
      for_each_run([&](LagRange run) {
        const auto [first, last] = oriented(run);
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
      count_by_fft(rows, transposed, X, y, workspace);
    }
    y = (y.array() > 0.5).cast<double>();
  }

  // the numbers of connected marked slots, Y = ((A B^T) o C) X with A and B of ones
  void count_by_fft(const Slots& rows, bool transposed, const MatrixMap<double>& X, MatrixMap<double>& y,
                    Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    double* c = workspace.take<double>(m_lags.size());
    for (Index k = 0; k < m_lags.size(); ++k)
      c[transposed ? m_lags.size() - 1 - k : k] = contains(m_lags.first + k) ? 1 : 0;
    auto ones = workspace.matrix<double>(std::max(rows.count, X.rows()), 1);
    ones.setOnes();
    const MatrixView<double> a = ones.topRows(rows.count), b = ones.topRows(X.rows()), x = X;
    const Team alone(workspace);
    const toeplitz::FftEngine<double> engine({transposed ? -m_lags.last : m_lags.first, c, m_lags.size()},
                                             {rows[rows.count - 1] + 1, X.rows(), 1, X.cols()}, alone);
    engine.contract({a, b, x, rows, Slots{X.rows()}}, y, alone);
  }

  LagRange m_lags, m_longest;
  Index m_runs = 0;
  const Index* m_before;  // (m_lags.size() + 1)  the number of lags of the set before each lag
};

}  // namespace nprf
