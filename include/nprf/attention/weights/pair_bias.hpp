// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "nprf/attention/weights/head_weights.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// The bias of every pair of a query and a key that takes part, relative to the largest of the query's, with the key's
/// exponent, relative to which its row of B is (shapes.hpp); -infinity for a key that the query does not see.
///
/// Relative, since a bias that is large in size has no digits left for the exponent.
template <Real T>
class PairBias {
 public:
  /// The largest bias that a query has for its keys, and at which difference of slots, unless for a token outside.
  struct Largest {
    double bias;
    Index slot_lag;
    bool outside;
  };

  /// Refers to all of them; `exponents` may be null. Its table lies in the workspace. O(n_q + n_k).
  PairBias(const HeadWeights<T>& weights, const Placement& keys, const double* exponents, Workspace& workspace)
      : m_weights(weights), m_keys(keys), m_exponents(exponents), m_first(weights.slot_lags().first) {
    const LagRange lags = weights.slot_lags();
    double* table = workspace.take<double>(lags.size());
    Index from = 0;
    for (Index k = 0; k < lags.size(); ++k) {
      table[k] = weights.slot_bias(lags.first + k);
      if (table[k] > table[from]) from = k;
    }
    if (lags.size() > 0 && table[from] > never) {
      m_table_largest = table[from];
      for (Index k = 0; k < lags.size(); ++k) {
        table[k] = weights.slot_bias_difference(lags.first + k, lags.first + from);
        m_is_narrow &= table[k] == never || table[k] > -few;
      }
    }
    m_table = table;
  }

  Index num_keys() const { return m_keys.count(); }

  /// The first key that any query from i to i_last may see, and the one after the last.
  std::pair<Index, Index> seen(Index i, Index i_last) const {
    const Placement& queries = m_weights.queries();
    const LagRange lags = m_weights.seen_slot_lags();
    if (i < queries.outside || m_keys.outside > 0) return {0, m_keys.count()};
    return {m_keys.slots.below(queries.slots[i - queries.outside] + lags.first),
            m_keys.slots.below(queries.slots[i_last - queries.outside] + lags.last + 1)};
  }

  /// Of query i. O(n_k).
  Largest largest(Index i) const {
    const Placement& queries = m_weights.queries();
    Largest found{never, 0, true};
    const Index one_by_one = i < queries.outside ? m_keys.count() : m_keys.outside;
    for (Index j = 0; j < one_by_one; ++j) found.bias = std::max(found.bias, m_weights.bias(i, m_keys.number(j)));
    if (one_by_one == m_keys.count()) return found;
    const Index at = queries.slots[i - queries.outside];
    Index best = -1;
    const auto [begin, end] = seen(i, i);
    for (Index j = std::max(begin - m_keys.outside, Index{0}); j < end - m_keys.outside; ++j) {
      const Index k = m_keys.slots[j] - at - m_first;
      if (m_table[k] > never && (best < 0 || m_table[k] > m_table[best])) best = k;
    }
    if (best >= 0 && m_table[best] + m_table_largest > found.bias)
      found = {m_table[best] + m_table_largest, m_first + best, false};
    return found;
  }

  /// Of query i and keys j0..j0+count-1, relative to largest(i), into b (count).
  void operator()(Index i, const Largest& from, Index j0, Index count, double* b) const {
    const Placement& queries = m_weights.queries();
    Index j = j0;
    const Index end = j0 + count, one_by_one = i < queries.outside ? end : std::min(m_keys.outside, end);
    for (; j < one_by_one; ++j) b[j - j0] = m_weights.bias(i, m_keys.number(j)) - from.bias;
    const Slots& slots = m_keys.slots;
    if (j < end) {
      const Index first = m_first + queries.slots[i - queries.outside];  // the slot of the table's first entry
      const auto slot = [&](Index key) { return slots[key - m_keys.outside]; };
      if (!from.outside && !m_is_narrow) {
        for (; j < end; ++j) b[j - j0] = m_weights.slot_bias_difference(slot(j) - first + m_first, from.slot_lag);
      } else {
        const double largest = from.outside ? from.bias - m_table_largest : m_table[from.slot_lag - m_first];
        for (; j < end; ++j) b[j - j0] = m_table[slot(j) - first] - largest;
      }
    }
    if (!m_exponents) return;
    for (j = j0; j < end; ++j) b[j - j0] = b[j - j0] > never ? b[j - j0] + m_exponents[j] : never;
  }

  /// Adds what belongs to the pairs of query i and keys j0..j0+count-1 to the lags, by their number from the first one
  /// of HeadWeights::gradient_lags(), or to the border (E,E+2).
  template <class Of, Real S>
  void add_gradient(Index i, Index j0, Index count, const Of& of, S* lags, S* border) const {
    const Placement& queries = m_weights.queries();
    Index j = j0;
    const Index end = j0 + count, one_by_one = i < queries.outside ? end : std::min(m_keys.outside, end);
    for (; j < one_by_one; ++j) border[m_weights.border_place(i, m_keys.number(j))] += of(j - j0);
    if (j == end || !lags) return;
    S* to = lags - m_first - queries.slots[i - queries.outside];
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
  static constexpr double few = 512;  // differences of two such numbers keep the digits of weights that matter

  const HeadWeights<T>& m_weights;
  const Placement& m_keys;
  const double* m_exponents;
  Index m_first;
  const double* m_table;  // by difference of slots, relative to the largest of them
  double m_table_largest = 0;
  bool m_is_narrow = true;  // no entry is far from the largest
};

}  // namespace nprf
