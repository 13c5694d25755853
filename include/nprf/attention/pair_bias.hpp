// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "nprf/attention/head_weights.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// The bias of every pair of a query and a key that takes part, with the key's exponent, relative to which its row of
/// B is (shapes.hpp); -infinity for a key that the query does not see.
template <Real T>
class PairBias {
 public:
  /// Refers to all of them; `exponents` may be null. Its table lies in the workspace. O(n_q + n_k).
  PairBias(const HeadWeights<T>& weights, const Placement& keys, const double* exponents, Workspace& workspace)
      : m_weights(weights), m_keys(keys), m_exponents(exponents), m_first(weights.slot_lags().first) {
    const LagRange lags = weights.slot_lags();
    double* table = workspace.take<double>(lags.size());
    for (Index k = 0; k < lags.size(); ++k) table[k] = weights.slot_bias(lags.first + k);
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

  /// Of query i and keys j0..j0+count-1, into b (count).
  void operator()(Index i, Index j0, Index count, double* b) const {
    const Placement& queries = m_weights.queries();
    Index j = j0;
    const Index end = j0 + count, one_by_one = i < queries.outside ? end : std::min(m_keys.outside, end);
    for (; j < one_by_one; ++j) b[j - j0] = m_weights.bias(i, m_keys.number(j));
    const Slots& slots = m_keys.slots;
    if (j < end) {
      const double* from = m_table - m_first - queries.slots[i - queries.outside];
      if (slots.at)
        for (; j < end; ++j) b[j - j0] = from[slots.at[j - m_keys.outside]];
      else
        std::copy(from + slots[j - m_keys.outside], from + slots[j - m_keys.outside] + end - j, b + (j - j0));
    }
    if (!m_exponents) return;
    constexpr double never = -std::numeric_limits<double>::infinity();
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
  const HeadWeights<T>& m_weights;
  const Placement& m_keys;
  const double* m_exponents;
  Index m_first;
  const double* m_table;  // by difference of slots
};

}  // namespace nprf
