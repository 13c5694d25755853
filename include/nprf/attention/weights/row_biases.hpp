// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <type_traits>

#include "nprf/attention/weights/query_biases.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// dL/db of one sequence, summed in double.
struct BiasGradient {
  std::span<double> lags;              // (LagProblem::lags); empty if not requested
  std::span<double> border;            // (E,E+2), with the columns of Border (core/slots.hpp)
  std::span<double> lag_vectors = {};  // (rank,lags) of R (query_biases.hpp)

  /// The number of gradients in a share: those of `lags`, and after them those of `border` and `lag_vectors`.
  Index size() const { return static_cast<Index>(lags.size() + border.size() + lag_vectors.size()); }
  /// Adds n shares, the rows of `shares` (n,size()), in their order.
  template <class Shares>
  void add(const Shares& shares) const {
    for (Index n = 0; n < shares.rows(); ++n) {
      const auto* share = shares.row(n).data();
      for (double& b : lags) b += static_cast<double>(*share++);
      for (double& b : border) b += static_cast<double>(*share++);
      for (double& R : lag_vectors) R += static_cast<double>(*share++);
    }
  }
};

/// The biases of some queries and all keys, plus the log-scales of the keys (toeplitz/factors.hpp), which are finite or
/// -infinity. In each row they are relative to the largest of the row, because a bias of large magnitude has no digits
/// left for a log-scale. A row may attend to no key.
template <Real T>
class RowBiases {
 public:
  /// `key_log_scales` may be null. `query_biases` are added to the biases of near pairs. O(lags + rows n_k), or of a
  /// band of w lags O(lags + rows w).
  RowBiases(const LagProblem<T>& problem, const Placement& keys, const double* key_log_scales, const RowSubset& rows,
            const Team& team, const QueryBiases<T>& query_biases = {})
      : m_x(problem),
        m_keys(keys),
        m_log_scales(key_log_scales),
        m_rows(rows),
        m_query_biases(query_biases),
        m_largest(team.workspace().template take<Largest>(rows.count())) {
    for (Index k = 0; m_x.largest_bias > never && k < m_x.lags.size(); ++k)
      m_is_narrow &= m_x.log_weights[k] == never || m_x.log_weights[k] > -few;
    for (Index at = 0; at < m_x.border_biases.size(); ++at) m_has_border |= m_x.border_biases.values[at] > never;
    m_best =
        std::find(m_x.log_weights, m_x.log_weights + m_x.lags.size(), largest_of(m_x.log_weights, m_x.lags.size())) -
        m_x.log_weights;
    if (has_table()) {
      m_table = team.workspace().template take<T>(m_x.lags.size());
      for (Index k = 0; k < m_x.lags.size(); ++k)
        m_table[k] = static_cast<T>(m_x.log_weights[k] - m_x.log_weights[m_best]);
    }
    team.run_tiles(rows.count(), [&](Index i0, Index count, Workspace&) {
      for (Index i = i0; i < i0 + count; ++i) {
        m_largest[i] = largest_bias(i);
        if (const double sum = m_log_scales ? largest_sum(i) : 0; sum > never) m_largest[i].sum = sum;
      }
    });
  }

  Index num_keys() const { return m_keys.count(); }

  /// The keys that rows i0..i0+count-1 attend to, and maybe others between them.
  toeplitz::RowRange keys(Index i0, Index count) const {
    if (m_has_border && query(i0) < m_x.queries.outside) return {0, m_keys.count()};
    return {m_largest[i0].keys.begin, m_largest[i0 + count - 1].keys.end};
  }

  /// Sets b (count) to the biases of row i and keys j0..j0+count-1; -infinity for a key that the row does not attend
  /// to. S is T or double.
  template <class S>
  void set(Index i, Index j0, Index count, S* b) const {
    const auto [begin, end] = m_largest[i].keys;  // fewer than those of a tile: in a near field by far
    const Index first = std::clamp(begin, j0, j0 + count), last = std::clamp(end, first, j0 + count);
    std::fill(b, b + (first - j0), static_cast<S>(never));
    if (std::is_same_v<S, T> && is_in_table(i, first, last))
      std::copy_n(m_table + (m_keys.slots.first - m_keys.outside - slot_of(i) - m_x.lags.first + first), last - first,
                  b + (first - j0));
    else
      for_each_run(i, first, last, [&](Index j, Index size, const double* sums) {
        for (Index k = 0; k < size; ++k) b[j - j0 + k] = static_cast<S>(sums[k] - m_largest[i].sum);
      });
    std::fill(b + (last - j0), b + count, static_cast<S>(never));
    if constexpr (std::is_same_v<S, T>)
      for_each_run_of_columns(i, first, last, [&](Index j, Index size, Index column) {
        m_query_biases.add(query(i), column, size, b + (j - j0));
      });
  }

  /// Without log-scales of keys and biases of queries: the largest bias of row i, minus the bias at which a far weight
  /// of its query is 1 (LagProblem::unit_bias); 0 if the row attends to no key.
  double reference(Index i) const {
    const Largest& largest = m_largest[i];
    if (largest.bias == never) return 0;
    if (largest.outside) return largest.bias - m_x.unit_bias(query(i));
    return m_x.log_weights[largest.lag - m_x.lags.first] + (m_x.largest_bias - m_x.weight_bias);
  }

  /// Adds of(k), the gradient of the bias of row i and key j0 + k, for each k < count: to the entry of the pair's lag
  /// in `lags` (LagProblem::lags), which may be null; if one of the two tokens has no slot, to the pair's entry in
  /// `border` (Border).
  template <class Of, class S>
  void add_gradient(Index i, Index j0, Index count, const Of& of, S* lags, S* border) const {
    const Index end = j0 + count, in_slots = first_in_slots(i, j0, end);
    for (Index j = j0; j < in_slots; ++j) border[m_x.border.index(query(i), m_keys.token_index(j))] += of(j - j0);
    if (in_slots == end || !lags) return;
    S* to = lags - m_x.lags.first - slot_of(i);
    const Slots& slots = m_keys.slots;
    if (slots.at) {
      for (Index j = in_slots; j < end; ++j) to[slots.at[j - m_keys.outside]] += of(j - j0);
    } else {
      to += slots.first - m_keys.outside;
      for (Index j = in_slots; j < end; ++j) to[j] += of(j - j0);
    }
  }
  /// The same, to a share of db.
  template <class Of>
  void add_gradient(Index i, Index j0, Index count, const Of& of, const BiasGradient& db, T* share) const {
    add_gradient(i, j0, count, of, db.lags.empty() ? nullptr : share, share + db.lags.size());
  }

  /// Adds what the gradients db (count) of the biases of row i and keys j0, j0 + 1, ... contribute to those of the
  /// query's r, in its row of dr (n_q,rank), and, times `factor`, to those of R, in a share of `of`.
  void add_query_gradient(Index i, Index j0, Index count, const T* db, T factor, MatrixRef<T>& dr,
                          const BiasGradient& of, T* share) const {
    for_each_run_of_columns(i, j0, j0 + count, [&](Index j, Index size, Index column) {
      m_query_biases.add_gradient(query(i), column, size, db + (j - j0), factor, writable_row(dr, query(i)).data(),
                                  share + of.lags.size() + of.border.size());
    });
  }

 private:
  static constexpr double never = -std::numeric_limits<double>::infinity();
  static constexpr double few = 512;  // a difference of two log-weights above -few has an error of at most 512 eps

  // The largest bias of a row, and the lag of the pair that has it. outside: the pair has no lag, because one of its
  // tokens has no slot, or the row attends to no key. sum: the largest of each bias minus this one, plus the log-scale
  // of the key; 0 without log-scales. keys: those that the row attends to, and maybe others between them
  struct Largest {
    double bias = never;
    Index lag = 0;
    bool outside = true;
    double sum = 0;
    toeplitz::RowRange keys{0, 0};
  };

  Index query(Index i) const { return m_rows.index(i); }
  // the slot of the query of a row
  Index slot_of(Index i) const { return m_x.queries.slots[query(i) - m_x.queries.outside]; }
  // of the keys j0..end-1, the first with which row i has a lag; `end` if there is none
  Index first_in_slots(Index i, Index j0, Index end) const {
    return query(i) < m_x.queries.outside ? end : std::clamp(m_keys.outside, j0, end);
  }

  // calls use(j, size, column) for runs of near keys in successive slots among first..last-1, if there are biases of
  // queries: key j + k has the lag of column + k of R
  template <class Use>
  void for_each_run_of_columns(Index i, Index first, Index last, const Use& use) const {
    if (!m_query_biases.any()) return;
    const LagRange lags = m_query_biases.lags();
    const Slots& slots = m_keys.slots;
    const Index origin = slot_of(i) + lags.first, end = std::min(last, slots.below(origin + lags.size()));
    for (Index j = std::max(first, slots.below(origin)), size = 0; j < end; j += size) {
      size = slots.at ? 1 : end - j;
      while (j + size < end && slots[j + size] == slots[j] + size) ++size;
      use(j, size, slots[j] - origin);
    }
  }

  bool has_table() const {
    return m_is_narrow && !m_log_scales && m_best < m_x.lags.size() && m_x.log_weights[m_best] > never;
  }
  // whether the biases of row i and keys first..last-1 are adjacent entries of the table
  bool is_in_table(Index i, Index first, Index last) const {
    const Largest& largest = m_largest[i];
    return has_table() && !m_keys.slots.at && first < last && !largest.outside && first >= m_keys.outside &&
           m_x.log_weights[largest.lag - m_x.lags.first] == m_x.log_weights[m_best];
  }

  // a row that attends to no key has its range at that of the row after it
  toeplitz::RowRange keys_of(Index i) const {
    const Placement& queries = m_x.queries;
    if (m_has_border && (query(i) < queries.outside || m_keys.outside > 0)) return {0, m_keys.count()};
    const Index at = std::max(query(i) - queries.outside, Index{0});
    if (at >= queries.slots.count) return {0, 0};
    const auto below = [&](Index lag) { return m_keys.outside + m_keys.slots.below(queries.slots[at] + lag); };
    const Index begin = below(m_x.reach.first);
    return {begin, query(i) < queries.outside ? begin : below(m_x.reach.last + 1)};
  }

  // O(n_k)
  Largest largest_bias(Index i) const {
    Largest found{.keys = keys_of(i)};
    const auto [begin, end] = found.keys;
    const Index first = first_in_slots(i, begin, end);
    for (Index j = begin; j < first; ++j)
      found.bias = std::max(found.bias, m_x.bias_between(query(i), m_keys.token_index(j)));
    if (first == end || m_x.largest_bias == never) return found;
    const Index at = slot_of(i);
    Index best = -1;
    if (const Slots& slots = m_keys.slots; !slots.at) {
      const double* log_weights = m_x.log_weights + (slots.first - m_keys.outside - at - m_x.lags.first);  // by key
      const Index key = m_x.log_weights + m_best - log_weights;  // the one with the largest bias of all
      const bool has_key = first <= key && key < end;
      const double largest = has_key ? log_weights[key] : largest_of(log_weights + first, end - first);
      if (has_key && largest > never)
        best = m_best;
      else if (largest > never)
        best = std::find(log_weights + first, log_weights + end, largest) - m_x.log_weights;
    } else {
      for (Index j = first; j < end; ++j) {
        const Index k = slots.at[j - m_keys.outside] - at - m_x.lags.first;
        if (m_x.log_weights[k] > never && (best < 0 || m_x.log_weights[k] > m_x.log_weights[best])) best = k;
      }
    }
    if (best >= 0 && m_x.biases[best] > found.bias)
      found.bias = m_x.biases[best], found.lag = m_x.lags.first + best, found.outside = false;
    return found;
  }

  double largest_sum(Index i) const {
    double largest = never;
    const auto [begin, end] = m_largest[i].keys;
    for_each_run(i, begin, end, [&](Index, Index size, const double* sums) {
      largest = std::max(largest, *std::max_element(sums, sums + size));
    });
    return largest;
  }

  // calls use(j, size, sums) for runs of the keys j0..end-1, with each bias minus the largest, plus the log-scale
  template <class Use>
  void for_each_run(Index i, Index j0, Index end, const Use& use) const {
    constexpr Index run = 256;
    double sums[run];
    for (Index j = j0; j < end; j += run) {
      const Index size = std::min(run, end - j);
      set_sums(i, j, size, sums);
      use(j, size, sums);
    }
  }

  void set_sums(Index i, Index j0, Index count, double* b) const {
    const Largest& from = m_largest[i];
    const Index end = j0 + count, in_slots = first_in_slots(i, j0, end);
    if (from.bias == never) {  // a difference of infinities would be NaN
      std::fill_n(b, count, never);
      return;
    }
    for (Index j = j0; j < in_slots; ++j) b[j - j0] = m_x.bias_between(query(i), m_keys.token_index(j)) - from.bias;
    if (m_x.largest_bias == never)
      std::fill(b + (in_slots - j0), b + count, never);
    else if (in_slots < end)
      set_by_lags(slot_of(i), from, in_slots, end - in_slots, b + (in_slots - j0));
    if (m_log_scales) add(m_log_scales + j0, count, b);
  }

  static double largest_of(const double* x, Index n) {
    using P = Pack<double>;
    P most = P::all(never);
    Index j = 0;
    for (; j + P::size <= n; j += P::size) most = larger(P::load(x + j), most);
    double largest = most.largest();
    for (; j < n; ++j) largest = std::max(largest, x[j]);
    return largest;
  }

  // sets b (count) to the biases of a query in slot `at` and the keys j0..j0+count-1, which have slots, relative to
  // `from`
  void set_by_lags(Index at, const Largest& from, Index j0, Index count, double* b) const {
    const Slots& slots = m_keys.slots;
    const auto index = [&](Index j) { return slots[j - m_keys.outside] - at - m_x.lags.first; };
    if (!from.outside && !m_is_narrow) {
      for (Index j = 0; j < count; ++j) b[j] = m_x.bias_difference(index(j0 + j) + m_x.lags.first, from.lag);
      return;
    }
    const double* x = from.outside ? m_x.biases : m_x.log_weights;
    const double largest = from.outside ? from.bias : x[from.lag - m_x.lags.first];
    if (slots.at)
      for (Index j = 0; j < count; ++j) b[j] = x[index(j0 + j)] - largest;
    else
      subtract(x + index(j0), largest, count, b);
  }

  // b = x - from (n)
  static void subtract(const double* x, double from, Index n, double* b) {
    using P = Pack<double>;
    for (Index j = 0; j < n; j += P::size) (P::load(x + j, n - j) - P::all(from)).store(b + j, n - j);
  }

  // b += x (n)
  static void add(const double* x, Index n, double* b) {
    using P = Pack<double>;
    for (Index j = 0; j < n; j += P::size) (P::load(b + j, n - j) + P::load(x + j, n - j)).store(b + j, n - j);
  }

  const LagProblem<T>& m_x;
  const Placement& m_keys;
  const double* m_log_scales;
  RowSubset m_rows;
  QueryBiases<T> m_query_biases;
  Largest* m_largest;         // (rows)
  Index m_best;               // where the largest log-weight is
  T* m_table = nullptr;       // (lags) the log-weights minus that one; null unless has_table()
  bool m_is_narrow = true;    // all log-weights are above -few, or -infinity
  bool m_has_border = false;  // a pair attends of which a token has no slot
};

}  // namespace nprf
