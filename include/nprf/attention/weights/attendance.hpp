// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "nprf/core/lag_problem.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// A set of lags. It connects row i, in slot s_i, to slot t if the lag t - s_i is in the set. Which rows it connects to
/// marked slots is a product with a Boolean Toeplitz matrix:
///
///     y_i = or_t  C[i,t] and x_t,   C[i,t] = whether lag t - s_i is in the set,   x_t = whether slot t is marked
///
/// If the set has few runs of consecutive lags, or if few runs of slots are marked, each entry is a difference of
/// counts. Otherwise the set is written as bits, and shifted to each marked slot, 64 lags at a time.
class LagSet {
 public:
  /// The set of the lags of a range for which contains(lag) holds. O(range) time, and memory in the workspace.
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

  LagRange longest_run() const { return m_longest; }

  Index runs() const { return m_runs; }

  /// Each column of X (slots,p) marks slots: the entry in row t is 1 if slot t is marked, else 0. Sets the same column
  /// of y (rows.count,p) to 1 for each row that the set connects to a marked slot, else to 0. X is overwritten. The
  /// time is the least of three: O(rows p) for each run of lags; O(rows) for each run of marked slots in a column;
  /// O(lags / 64) for each mark.
  void connect(const Slots& rows, MatrixMap<double> X, MatrixMap<double> y, Workspace& workspace) const {
    connect(rows, false, X, y, workspace);
  }
  /// As connect(), but with the transposed matrix: the lag is s_i - t instead of t - s_i.
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
  // calls body(p, first, last) for each run of slots that column p of X marks
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
    std::fill_n(y.data(), y.size(), 0.0);
    if (m_runs == 0 || rows.count == 0 || X.rows() == 0) return;
    const auto oriented = [=](LagRange lags) { return transposed ? LagRange{-lags.last, -lags.first} : lags; };
    const Index marks = X.size() - std::count(X.data(), X.data() + X.size(), 0.0);
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
      double* sums = X.data();  // the numbers of marks up to each slot
      for (Index at = X.cols(); at < X.size(); ++at) sums[at] += sums[at - X.cols()];
      for_each_run([&](LagRange run) {
        const auto [first, last] = oriented(run);
        for (Index i = 0; i < rows.count; ++i) {
          const Index begin = std::max<Index>(rows[i] + first, 0), end = std::min(rows[i] + last, X.rows() - 1);
          if (begin > end) continue;
          for (Index p = 0; p < X.cols(); ++p) y(i, p) += X(end, p) - (begin > 0 ? X(begin - 1, p) : 0);
        }
      });
      std::replace_if(
          y.data(), y.data() + y.size(), [](double count) { return count > 0; }, 1.0);
    } else {
      connect_words(rows, oriented(m_lags), transposed, X, y, workspace);
    }
  }

  // shifts the set, as bits, to each marked slot t: bit k is the lag lags.last - k of `lags` (oriented), which connects
  // slot t to a row in slot s = t - lags.last + k
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

/// For each query i, largest[i] (n_q) becomes the maximum of its old value and of sizes[j] (n_k) of the keys j whose
/// lag from query i is in `lags`. A lag is a difference of slots. O(n_q + n_k), and O(log n_k) for each query if some
/// slots are empty.
template <Real T>
void sliding_window_max(const T* sizes, const Slots& queries, const Slots& keys, LagRange lags, T* largest,
                        Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  // the keys of the window whose size exceeds that of each later key of the window; the first of them has the maximum
  Index* candidates = workspace.take<Index>(keys.count);
  Index front = 0, back = 0, end = 0;
  for (Index i = 0; i < queries.count; ++i) {
    for (const Index until = keys.below(queries[i] + lags.last + 1); end < until; ++end) {
      while (back > front && sizes[candidates[back - 1]] <= sizes[end]) --back;
      candidates[back++] = end;
    }
    const Index begin = keys.below(queries[i] + lags.first);
    while (front < back && candidates[front] < begin) ++front;
    if (front < back) largest[i] = std::max(largest[i], sizes[candidates[front]]);
  }
}

/// Sets `exponents` (count) to the base-2 exponents of the non-zero sizes (count), each once, in decreasing order, and
/// returns their number. O(count log count).
template <Real T>
Index exponents_of(const T* sizes, Index count, int* exponents) {
  Index number = 0;
  for (Index j = 0; j < count; ++j)
    if (sizes[j] > 0) exponents[number++] = std::ilogb(sizes[j]);
  std::sort(exponents, exponents + number, std::greater<>());
  return std::unique(exponents, exponents + number) - exponents;
}

/// Which queries of a LagProblem attend to which keys, for sets of queries and keys at once. `keys` are the keys that
/// are not masked.
template <Real T>
class Attendance {
 public:
  /// O(n_q + n_k).
  Attendance(const LagProblem<T>& problem, Workspace& workspace)
      : m_x(problem),
        m_lags(
            problem.reach, [&](Index lag) { return problem.attends(lag); }, workspace) {}

  /// mark(j, x) marks key j in some of p columns: it sets these entries of x (p), which is zero before, to 1. Column by
  /// column, out (n_q,p) becomes 1 for each query that attends to a marked key, else 0. O((n_q + n_k) p) and the cost
  /// of LagSet::connect(), and O(E n_k p) for E tokens without a slot.
  template <class Mark>
  void attending_queries(const Placement& keys, const Mark& mark, MatrixMap<double> out, Workspace& workspace) const {
    find(Side::queries, keys, mark, out, workspace);
  }
  /// mark(i, x) marks query i in the same way. Column by column, out (n_k,p) becomes 1 for each key that a marked query
  /// attends to, else 0. The cost is that of attending_queries().
  template <class Mark>
  void attended_keys(const Placement& keys, const Mark& mark, MatrixMap<double> out, Workspace& workspace) const {
    find(Side::keys, keys, mark, out, workspace);
  }

  /// attending_queries: out (n_q) is whether each query attends to any of the keys. attended_keys: out (n_k) is whether
  /// any query attends to each key. If the attended lags are one run and all tokens have slots, O(n), and O(log n) for
  /// each token if some slots are empty; otherwise the cost of the functions above.
  void attending_queries(const Placement& keys, bool* out, Workspace& workspace) const {
    if (is_one_run(keys)) return any_in_run(m_x.queries.slots, keys.slots, m_lags.longest_run(), out);
    const Workspace::Scope scope(workspace);
    auto any = workspace.template matrix<double>(m_x.queries.count(), 1);
    attending_queries(
        keys, [](Index, double* x) { x[0] = 1; }, any, workspace);
    for (Index i = 0; i < any.rows(); ++i) out[i] = any(i, 0) > 0;
  }
  void attended_keys(const Placement& keys, bool* out, Workspace& workspace) const {
    if (is_one_run(keys)) {
      const LagRange run = m_lags.longest_run();
      return any_in_run(keys.slots, m_x.queries.slots, {-run.last, -run.first}, out);
    }
    const Workspace::Scope scope(workspace);
    auto any = workspace.template matrix<double>(keys.count(), 1);
    attended_keys(
        keys, [](Index, double* x) { x[0] = 1; }, any, workspace);
    for (Index j = 0; j < any.rows(); ++j) out[j] = any(j, 0) > 0;
  }

  /// out (lags.size(),1), for LagProblem::lags, becomes 1 for a lag at which a query i with is_marked(i) attends to one
  /// of the keys, where both tokens have slots; else 0. O((n_q + n_k) log n).
  template <class IsMarked>
  void attended_lags(const Placement& keys, const IsMarked& is_marked, MatrixMap<double> out,
                     Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    auto of_queries = workspace.template matrix<double>(m_x.query_slots, 1),
         of_keys = workspace.template matrix<double>(m_x.key_slots, 1);
    of_queries.setZero();
    of_keys.setZero();
    for (Index i = 0; i < m_x.queries.slots.count; ++i)
      if (is_marked(m_x.queries.outside + i)) of_queries(m_x.queries.slots[i], 0) = 1;
    for (Index j = 0; j < keys.slots.count; ++j) of_keys(keys.slots[j], 0) = 1;
    // a query in slot s and a key in slot t = s + l have the lag l, in row i = l + shift of `out`. As
    // t - i = s - shift, the set of the numbers s - shift of all marked queries connects row i to slot t
    const Index shift = m_x.query_slots - 1;
    const LagSet queries(
        {-shift, 0}, [&](Index lag) { return of_queries(lag + shift, 0) > 0; }, workspace);
    queries.connect({out.rows()}, of_keys, out, workspace);
    for (Index l = 0; l < out.rows(); ++l)
      if (!m_x.attends(l - shift)) out(l, 0) = 0;
  }

  /// Sets largest[i] (n_q) to the largest sizes[j] (n_k) of the keys j that query i attends to. If the attended lags
  /// are several runs, it may be smaller than that, but it is above half of it. No entry depends on keys that its query
  /// does not attend to. O((n_q + n_k) log n) and O(E n_k) for E tokens without a slot; with several runs, the first
  /// term times 1/8 of the number of different exponents of the sizes.
  void largest_attended(const T* sizes, const Placement& keys, T* largest, Workspace& workspace) const {
    const Placement& queries = m_x.queries;
    for (Index i = 0; i < queries.outside; ++i) {
      largest[i] = 0;
      for (Index j = 0; j < keys.count(); ++j)
        if (m_x.attends(i, keys.token_index(j))) largest[i] = std::max(largest[i], sizes[j]);
    }
    T outside = 0;  // all queries with a slot attend to the same keys without one
    for (Index j = 0; j < keys.outside; ++j)
      if (m_x.attends(queries.outside, keys.token_index(j))) outside = std::max(outside, sizes[j]);
    T* in_slots = largest + queries.outside;
    std::fill_n(in_slots, queries.slots.count, outside);
    sliding_window_max(sizes + keys.outside, queries.slots, keys.slots, m_lags.longest_run(), in_slots, workspace);
    if (m_lags.runs() > 1) add_other_runs(sizes + keys.outside, keys.slots, in_slots, workspace);
  }

 private:
  enum class Side { queries, keys };

  // marks the tokens of one side that attend to, or are attended to by, a marked token of the other side
  template <class Mark>
  void find(Side side, const Placement& keys, const Mark& mark, MatrixMap<double>& out, Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    const bool of_queries = side == Side::queries;
    const Placement &rows = of_queries ? m_x.queries : keys, &marked = of_queries ? keys : m_x.queries;
    const Index p = out.cols(), marked_slots = of_queries ? m_x.key_slots : m_x.query_slots;
    const auto attends = [&](Index row, Index other) {
      return of_queries ? m_x.attends(row, keys.token_index(other)) : m_x.attends(other, keys.token_index(row));
    };
    auto X = workspace.template matrix<double>(marked_slots, p);
    double* x = workspace.template take<double>(p);
    auto in_slots = workspace.template matrix<double>(rows.slots.count, p);
    X.setZero();
    for (Index j = 0; j < marked.slots.count; ++j) mark(marked.outside + j, X.data() + marked.slots[j] * p);
    if (of_queries)
      m_lags.connect(rows.slots, X, in_slots, workspace);
    else
      m_lags.connect_transposed(rows.slots, X, in_slots, workspace);
    std::fill_n(out.data(), rows.outside * p, 0.0);
    std::copy_n(in_slots.data(), in_slots.size(), out.data() + rows.outside * p);
    for (Index j = 0; j < marked.count() && rows.outside + marked.outside > 0; ++j) {
      std::fill_n(x, p, 0.0);
      mark(j, x);
      if (std::count(x, x + p, 0.0) == p) continue;
      for (Index i = 0; i < (j < marked.outside ? rows.count() : rows.outside); ++i)
        if (attends(i, j))
          for (Index l = 0; l < p; ++l) out(i, l) = std::max(out(i, l), x[l]);
    }
  }

  bool is_one_run(const Placement& keys) const { return m_lags.runs() == 1 && m_x.queries.outside + keys.outside == 0; }

  // any[i] is whether any of `others` is at one of these lags from slots[i]
  static void any_in_run(const Slots& slots, const Slots& others, LagRange lags, bool* any) {
    for (Index i = 0; i < slots.count; ++i)
      any[i] = others.below(slots[i] + lags.first) < others.below(slots[i] + lags.last + 1);
  }

  // largest[i] becomes the maximum of its old value and of 2^floor(log2 s), where s is the largest size that query i
  // attends to
  void add_other_runs(const T* sizes, const Slots& keys, T* largest, Workspace& workspace) const {
    const Workspace::Scope scope(workspace);
    const Slots& queries = m_x.queries.slots;
    constexpr Index columns = 8;  // powers of two at a time
    auto X = workspace.template matrix<double>(m_x.key_slots, columns),
         any = workspace.template matrix<double>(queries.count, columns);
    int* exponents = workspace.template take<int>(keys.count);
    bool* is_found = workspace.template take<bool>(queries.count);
    std::fill_n(is_found, queries.count, false);
    const Index number = exponents_of(sizes, keys.count, exponents);
    for (Index k0 = 0, found = 0; k0 < number && found < queries.count; k0 += columns) {
      const Index cols = std::min(columns, number - k0);
      X.setZero();
      for (Index j = 0; j < keys.count; ++j)
        if (sizes[j] > 0)
          for (Index k = 0; k < cols; ++k) X(keys[j], k) = std::ilogb(sizes[j]) == exponents[k0 + k] ? 1 : 0;
      m_lags.connect(queries, X, any, workspace);
      for (Index i = 0; i < queries.count; ++i)
        for (Index k = 0; k < cols && !is_found[i]; ++k) {
          if (!(any(i, k) > 0)) continue;
          is_found[i] = true;
          largest[i] = std::max(largest[i], std::ldexp(T(1), exponents[k0 + k]));
          ++found;
        }
    }
  }

  LagProblem<T> m_x;
  LagSet m_lags;
};

}  // namespace nprf
