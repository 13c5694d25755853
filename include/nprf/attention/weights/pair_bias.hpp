// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "nprf/core/lag_problem.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// dL/db of one sequence, summed in double.
struct BiasGradient {
  std::span<double> lags;    // (LagProblem::lags); empty if not requested
  std::span<double> border;  // (E,E+2), with the columns of Border (core/slots.hpp)

  /// The number of gradients in a share: those of `lags`, and after them those of `border`.
  Index size() const { return static_cast<Index>(lags.size() + border.size()); }
  /// Adds n shares, the rows of `shares` (n,size()), in their order.
  template <class Shares>
  void add(const Shares& shares) const {
    for (Index n = 0; n < shares.rows(); ++n) {
      const auto* share = shares.row(n).data();
      for (double& b : lags) b += static_cast<double>(*share++);
      for (double& b : border) b += static_cast<double>(*share++);
    }
  }
};

/// The bias of every query and key, relative to the largest bias of the query, plus the log-scale of the key
/// (toeplitz/factors.hpp), which is finite or -infinity. -infinity for a key that the query does not attend to.
///
/// The bias is relative because the sum of a bias of large magnitude and a log-scale would lose the digits of the
/// log-scale.
template <Real T>
class PairBias {
 public:
  /// The largest bias of a query, and the lag of the pair that has it. `outside`: the pair has no lag, because one of
  /// its tokens has no slot, or the query attends to no key.
  struct Largest {
    double bias;
    Index lag;
    bool outside;
  };

  /// `key_log_scales` may be null. O(n_q + n_k).
  PairBias(const LagProblem<T>& problem, const Placement& keys, const double* key_log_scales)
      : m_x(problem), m_keys(keys), m_log_scales(key_log_scales) {
    for (Index k = 0; m_x.largest_bias > never && k < m_x.lags.size(); ++k)
      m_is_narrow &= m_x.log_weights[k] == never || m_x.log_weights[k] > -few;
  }

  Index num_keys() const { return m_keys.count(); }

  /// The first key that any of the queries i..i_last may attend to, and one past the last such key.
  std::pair<Index, Index> reach(Index i, Index i_last) const {
    const Placement& queries = m_x.queries;
    if (i < queries.outside || m_keys.outside > 0) return {0, m_keys.count()};
    return {m_keys.slots.below(queries.slots[i - queries.outside] + m_x.reach.first),
            m_keys.slots.below(queries.slots[i_last - queries.outside] + m_x.reach.last + 1)};
  }

  /// The largest bias of query i. O(n_k).
  Largest largest(Index i) const {
    const Placement& queries = m_x.queries;
    Largest found{never, 0, true};
    const Index one_by_one = i < queries.outside ? m_keys.count() : m_keys.outside;
    for (Index j = 0; j < one_by_one; ++j)
      found.bias = std::max(found.bias, m_x.bias_between(i, m_keys.token_index(j)));
    if (one_by_one == m_keys.count() || m_x.largest_bias == never) return found;
    const Index at = queries.slots[i - queries.outside];
    const auto [begin, end] = reach(i, i);
    const Index first = std::max(begin, m_keys.outside);
    Index best = -1;
    if (const Slots& slots = m_keys.slots; !slots.at) {
      const double* log_weights = m_x.log_weights + (slots.first - m_keys.outside - at - m_x.lags.first);  // by key
      const double largest = largest_of(log_weights + first, end - first);
      if (largest > never) best = std::find(log_weights + first, log_weights + end, largest) - m_x.log_weights;
    } else {
      for (Index j = first; j < end; ++j) {
        const Index k = slots.at[j - m_keys.outside] - at - m_x.lags.first;
        if (m_x.log_weights[k] > never && (best < 0 || m_x.log_weights[k] > m_x.log_weights[best])) best = k;
      }
    }
    if (best >= 0 && m_x.biases[best] > found.bias) found = {m_x.biases[best], m_x.lags.first + best, false};
    return found;
  }

  /// Sets b (count) to the biases of query i and keys j0..j0+count-1, relative to largest(i).
  void operator()(Index i, const Largest& from, Index j0, Index count, double* b) const {
    const Placement& queries = m_x.queries;
    Index j = j0;
    const Index end = j0 + count, one_by_one = i < queries.outside ? end : std::min(m_keys.outside, end);
    for (; j < one_by_one; ++j) b[j - j0] = m_x.bias_between(i, m_keys.token_index(j)) - from.bias;
    if (m_x.largest_bias == never)
      std::fill(b + (j - j0), b + count, never);
    else if (j < end)
      set_by_lags(queries.slots[i - queries.outside], from, j, end - j, b + (j - j0));
    if (m_log_scales) add(m_log_scales + j0, count, b);
  }

  /// Adds of(k), the gradient of the bias of query i and key j0 + k, for each k < count: to the entry of the pair's lag
  /// in `lags` (LagProblem::lags), which may be null; if one of the two tokens has no slot, to the pair's entry in
  /// `border` (Border).
  template <class Of, Real S>
  void add_gradient(Index i, Index j0, Index count, const Of& of, S* lags, S* border) const {
    const Placement& queries = m_x.queries;
    Index j = j0;
    const Index end = j0 + count, one_by_one = i < queries.outside ? end : std::min(m_keys.outside, end);
    for (; j < one_by_one; ++j) border[m_x.border.index(i, m_keys.token_index(j))] += of(j - j0);
    if (j == end || !lags) return;
    S* to = lags - m_x.lags.first - queries.slots[i - queries.outside];
    const Slots& slots = m_keys.slots;
    if (slots.at) {
      for (; j < end; ++j) to[slots.at[j - m_keys.outside]] += of(j - j0);
    } else {
      to += slots.first - m_keys.outside;
      for (; j < end; ++j) to[j] += of(j - j0);
    }
  }

 private:
  static constexpr double never = -std::numeric_limits<double>::infinity();
  static constexpr double few = 512;  // a difference of two log-weights above -few has an error of at most 512 eps

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
  bool m_is_narrow = true;  // all log-weights are above -few, or -infinity
};

}  // namespace nprf
