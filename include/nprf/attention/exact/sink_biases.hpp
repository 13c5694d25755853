// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "nprf/attention/exact/exact_field.hpp"
#include "nprf/attention/weights/pair_bias.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// The biases of all queries and the attention sinks, the first keys (LagProblem::sinks), relative to the largest of
/// each query; -infinity for near pairs, which the near field has.
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
  /// The largest bias of a query, less the bias at which its weights of far keys are 1.
  double reference(Index i) const override { return m_largest[i] > minus_infinity ? m_largest[i] : 0; }

  toeplitz::RowRange keys(Index, Index) const override { return {0, m_count}; }

  void set(Index i, Index j0, Index count, T* b) const override {
    for (Index j = 0; j < count; ++j) b[j] = static_cast<T>(log_weight(i, j0 + j) - reference(i));
  }

  /// Shares have the gradients of all lags, and after them those of the border.
  Index gradient_size(const BiasGradient& db) const override {
    return db.lags.empty() && db.border.empty() ? 0 : m_problem.lags.size() + m_problem.border.size();
  }

  void add_gradient(Index i, Index j0, Index count, const T* db, T* share) const override {
    for (Index j = 0; j < count; ++j) {
      const Index at = has_slots(i, j0 + j) ? lag(i, j0 + j) - m_problem.lags.first
                                            : m_problem.lags.size() + m_problem.border.index(i, token(j0 + j));
      share[at] += db[j];
    }
  }

  void add_share(const T* share, const BiasGradient& db) const override {
    for (std::size_t l = 0; l < db.lags.size(); ++l) db.lags[l] += static_cast<double>(share[l]);
    share += m_problem.lags.size();
    for (std::size_t e = 0; e < db.border.size(); ++e) db.border[e] += static_cast<double>(share[e]);
  }

 private:
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

  Index token(Index j) const { return m_keys.token_index(j); }
  bool has_slots(Index i, Index j) const { return i >= m_problem.queries.outside && j >= m_keys.outside; }
  Index lag(Index i, Index j) const {
    return m_keys.slots[j - m_keys.outside] - m_problem.queries.slots[i - m_problem.queries.outside];
  }

  // the bias, less that at which the weights of far keys of the query are 1 (lower_lags.hpp)
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
