// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include "nprf/core/lag_range.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// A set of lags t - s, and the rows that it connects to marked slots. This is a product with a Boolean Toeplitz
/// matrix:
///
///     y_i = or_t  C[i,t] and x_t,   C[i,t] = whether lag t - s_i is in the set
///
/// If the set has few runs of consecutive lags, or if few runs of slots are marked, each entry is a difference of
/// counts. Otherwise the set is moved to each marked slot, 64 lags at a time.
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
  /// (slots,p) is the mark, 0 or 1, of slot t. X is overwritten. O(rows p) times the number of runs of lags, or that of
  /// marked slots, or O(lags / 64) a mark, whichever is least.
  void connect(const Slots& rows, MatrixMap<double> X, MatrixMap<double> y, Workspace& workspace) const {
    connect(rows, false, X, y, workspace);
  }
  /// The same for the transposed matrix: lag s_i - t instead of t - s_i.
  void connect_transposed(const Slots& rows, MatrixMap<double> X, MatrixMap<double> y, Workspace& workspace) const {
    connect(rows, true, X, y, workspace);
  }

 private:
  static constexpr Index bits = 64;  // of a word

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
    const Index marks = (X.array() != 0).count();
    Index marked_runs = 0;
    for_each_marked_run(X, [&](Index, Index, Index) { ++marked_runs; });
    const Index by_marks = marked_runs * rows.count, by_lags = m_runs * rows.count * X.cols(),
                by_words = marks * (m_lags.size() / bits + 1);
    if (by_marks <= std::min(by_lags, by_words)) {
      for_each_marked_run(X, [&](Index p, Index first, Index last) {
        for (Index i = 0; i < rows.count; ++i)
          if (count(oriented({first - rows[i], last - rows[i]})) > 0) y(i, p) = 1;
      });
    } else if (by_lags <= by_words) {
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
      y = (y.array() > 0).cast<double>();
    } else {
      connect_words(rows, oriented(m_lags), transposed, X, y, workspace);
    }
  }

  // moves the set, as bits, to each marked slot t: lag k of `lags` (oriented), from the last one, is at slot
  // s = t - lags.last + k
  void connect_words(const Slots& rows, LagRange lags, bool transposed, const MatrixMap<double>& X,
                     MatrixMap<double>& y, Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    const Index words = (lags.size() - 1) / bits + 1, row_words = rows[rows.count - 1] / bits + 1;
    std::uint64_t *set = workspace.take<std::uint64_t>(words + 2) + 1,
                  *reached = workspace.take<std::uint64_t>(row_words);
    std::fill_n(set - 1, words + 2, 0);  // a word of zeros before and after
    for (Index k = 0; k < lags.size(); ++k)
      if (contains(transposed ? m_lags.first + k : m_lags.last - k)) set[k / bits] |= std::uint64_t{1} << k % bits;
    for (Index p = 0; p < X.cols(); ++p) {
      std::fill_n(reached, row_words, 0);
      for (Index t = 0; t < X.rows(); ++t) {
        if (X(t, p) == 0) continue;
        const Index from = t - lags.last, shift = (from % bits + bits) % bits, word = (from - shift) / bits;
        for (Index w = std::max<Index>(word, 0); w <= std::min(word + words, row_words - 1); ++w)
          reached[w] |= set[w - word] << shift | set[w - word - 1] >> 1 >> (bits - 1 - shift);
      }
      for (Index i = 0; i < rows.count; ++i) y(i, p) = (reached[rows[i] / bits] >> rows[i] % bits & 1) != 0 ? 1 : 0;
    }
  }

  LagRange m_lags, m_longest;
  Index m_runs = 0;
  const Index* m_before;  // (m_lags.size() + 1)  the number of lags of the set before each lag
};

}  // namespace nprf
