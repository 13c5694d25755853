// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "nprf/attention/exact/exact_field.hpp"
#include "nprf/attention/weights/pair_bias.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// The biases of the pairs of the near field (core/lags.hpp), relative to the largest of them; -infinity for other
/// pairs.
template <Real T>
class NearBiases final : public FieldBiases<T> {
 public:
  /// O(lags of the near field).
  NearBiases(const LagProblem<T>& problem, const Placement& keys, Workspace& workspace)
      : m_queries(problem.queries), m_keys(keys), m_first_lag(problem.lags.first) {
    const LagRange near = problem.near.range();
    m_lags = {std::max(near.first, problem.reach.first), std::min(near.last, problem.reach.last)};
    if (problem.largest_bias == -infinity || m_lags.size() <= 0) m_lags = {0, -1};
    double* b = workspace.take<double>(m_lags.size());
    double largest = -infinity;
    for (Index lag = m_lags.first; lag <= m_lags.last; ++lag) {
      double& bias = b[lag - m_lags.first];
      bias = problem.near.contains(lag) ? problem.log_weights[lag - problem.lags.first] : -infinity;
      largest = std::max(largest, bias);
    }
    if (largest == -infinity) m_lags = {0, -1};
    m_table = workspace.take<T>(m_lags.size());
    for (Index l = 0; l < m_lags.size(); ++l) m_table[l] = static_cast<T>(b[l] - largest);
    m_reference = largest + (problem.largest_bias - problem.weight_bias);
  }

  /// Whether there is any near lag.
  bool empty() const override { return m_lags.size() == 0; }
  /// The largest bias of the field minus the bias at which the weights of far lags are 1; the same for all queries.
  double reference(Index) const override { return m_reference; }
  /// The lags from the first near one to the last.
  LagRange lags() const { return m_lags; }

  toeplitz::RowRange keys(Index i0, Index rows) const override {
    const Index first = std::max(i0, m_queries.outside) - m_queries.outside, last = i0 + rows - 1 - m_queries.outside;
    if (empty() || last < first) return {0, 0};
    return {m_keys.outside + m_keys.slots.below(m_queries.slots[first] + m_lags.first),
            m_keys.outside + m_keys.slots.below(m_queries.slots[last] + m_lags.last + 1)};
  }

  void set(Index i, Index j0, Index count, T* b) const override {
    std::fill_n(b, count, T(-infinity));
    if (i < m_queries.outside) return;
    for_each_near(i, j0, count, [&](Index j, Index lag) { b[j] = m_table[lag]; });
  }

  /// A share has one gradient for each of lags().
  Index gradient_size(const BiasGradient& db) const override { return db.lags.empty() ? 0 : m_lags.size(); }

  void add_gradient(Index i, Index j0, Index count, const T* gradients, const BiasGradient&, T* share) const override {
    if (i >= m_queries.outside) for_each_near(i, j0, count, [&](Index j, Index lag) { share[lag] += gradients[j]; });
  }

  void add_shares(const MatrixMap<T>& shares, const BiasGradient& db) const override {
    const std::span<double> near = db.lags.subspan(static_cast<std::size_t>(m_lags.first - m_first_lag));
    BiasGradient{near.first(static_cast<std::size_t>(m_lags.size())), {}}.add(shares);
  }

 private:
  static constexpr double infinity = std::numeric_limits<double>::infinity();

  // calls use(j, lag - lags().first) for each j < count for which the lag of query i and key j0 + j is one of lags()
  template <class Use>
  void for_each_near(Index i, Index j0, Index count, const Use& use) const {
    const Slots& slots = m_keys.slots;
    const Index at = m_queries.slots[i - m_queries.outside] + m_lags.first,
                skipped = std::max(m_keys.outside - j0, Index{0});
    if (!slots.at) {
      const Index lag = slots.first + j0 - m_keys.outside - at;  // of key j0
      const Index end = std::min(count, m_lags.size() - lag);
      for (Index j = std::max(skipped, -lag); j < end; ++j) use(j, lag + j);
    } else {
      for (Index j = skipped; j < count; ++j)
        if (const Index lag = slots.at[j0 + j - m_keys.outside] - at; 0 <= lag && lag < m_lags.size()) use(j, lag);
    }
  }

  const Placement &m_queries, &m_keys;
  Index m_first_lag;  // LagProblem::lags.first
  LagRange m_lags;
  T* m_table;  // (lags)
  double m_reference = 0;
};

/// The biases of all queries and the attention sinks, the first keys (LagProblem::sinks), relative to the largest of
/// these biases of each query; -infinity for near pairs, which belong to the near field.
template <Real T>
class SinkBiases final : public FieldBiases<T> {
 public:
  /// O(n_q sinks).
  SinkBiases(const LagProblem<T>& problem, const Placement& keys, Workspace& workspace)
      : m_problem(problem),
        m_keys(keys),
        m_count(problem.sinks_of(keys)),
        m_largest(workspace.take<double>(problem.queries.count())) {
    for (Index i = 0; i < problem.queries.count(); ++i) {
      m_largest[i] = minus_infinity;
      for (Index j = 0; j < m_count; ++j) m_largest[i] = std::max(m_largest[i], log_weight(i, j));
    }
  }

  bool empty() const override { return m_count == 0; }
  /// The largest bias of query i and a sink, minus the bias at which a weight of query i and a far key is 1.
  double reference(Index i) const override { return m_largest[i] > minus_infinity ? m_largest[i] : 0; }

  toeplitz::RowRange keys(Index, Index) const override { return {0, m_count}; }

  void set(Index i, Index j0, Index count, T* b) const override {
    for (Index j = 0; j < count; ++j) b[j] = static_cast<T>(log_weight(i, j0 + j) - reference(i));
  }

  void add_gradient(Index i, Index j0, Index count, const T* gradients, const BiasGradient& db,
                    T* share) const override {
    T* of_border = share + db.lags.size();
    for (Index j = 0; j < count; ++j)
      if (!has_slots(i, j0 + j))
        of_border[m_problem.border.index(i, token(j0 + j))] += gradients[j];
      else if (!db.lags.empty())
        share[lag(i, j0 + j) - m_problem.lags.first] += gradients[j];
  }

 private:
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

  Index token(Index j) const { return m_keys.token_index(j); }
  bool has_slots(Index i, Index j) const { return i >= m_problem.queries.outside && j >= m_keys.outside; }
  Index lag(Index i, Index j) const {
    return m_keys.slots[j - m_keys.outside] - m_problem.queries.slots[i - m_problem.queries.outside];
  }

  // the bias of query i and sink j, minus the bias at which a weight of query i and a far key is 1
  // (LagProblem::unit_bias)
  double log_weight(Index i, Index j) const {
    if (has_slots(i, j)) {
      const Index at = lag(i, j);
      if (!m_problem.attends(at) || m_problem.near.contains(at)) return minus_infinity;
      return m_problem.log_weights[at - m_problem.lags.first] + (m_problem.largest_bias - m_problem.weight_bias);
    }
    const double b = m_problem.border_biases(i, token(j));
    return b > minus_infinity ? b - m_problem.unit_bias(i) : b;
  }

  const LagProblem<T>& m_problem;
  const Placement& m_keys;
  Index m_count;
  double* m_largest;  // (n_q)
};

}  // namespace nprf
