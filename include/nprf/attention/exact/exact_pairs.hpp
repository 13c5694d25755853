// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <type_traits>

#include "nprf/attention/exact/exact_field.hpp"
#include "nprf/attention/exact/softmax_difference.hpp"
#include "nprf/attention/exact/softmax_rows.hpp"
#include "nprf/attention/fallback/row_error_bound.hpp"
#include "nprf/attention/weights/key_subset.hpp"
#include "nprf/attention/weights/query_biases.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Calls use(field, of) for the sinks and salient keys, which are `exact_keys`, and for the near field of a problem, if
/// it has them, with an ExactField of normalised queries q (n_q,d) and the rows of its keys `of` of k (n_k,d).
template <Real T, class Use>
void for_each_field(const LagProblem<T>& problem, const Placement& keys, const KeySubset& exact_keys,
                    const std::type_identity_t<MatrixView<T>>& q, const std::type_identity_t<MatrixView<T>>& k,
                    const QueryBiases<T>& query_biases, const Team& team, Use&& use) {
  Workspace& workspace = team.workspace();
  const auto use_field = [&](const LagProblem<T>& pairs, const KeySubset& of, const QueryBiases<T>& of_queries) {
    const MatrixView<T> rows = of.of<T>(k);
    use(ExactField<T>(pairs, of.placement(), q, rows, team, of_queries), of);
  };
  if (exact_keys.count() > 0) {
    const Workspace::Scope scope(workspace);
    use_field(pairs_not_near(problem, workspace), exact_keys, {});
  }
  if (problem.near.width > 0) {
    const Workspace::Scope scope(workspace);
    use_field(near_pairs(problem, workspace), KeySubset(keys, keys.count(), team), query_biases);
  }
}

/// The pairs of a sequence that have the weights of exact softmax: those of attention sinks and salient keys, the near
/// field, and all pairs of some rows.
template <Real T>
class ExactPairs {
 public:
  /// For normalised queries q (n_q,d) and keys k (n_k,d), and values v (n_k,d_v). All values must be finite; non-finite
  /// keys are replaced by zeros.
  ExactPairs(const LagProblem<T>& problem, const Placement& keys, const KeySubset& exact_keys, const MatrixView<T>& q,
             const MatrixView<T>& k, const MatrixView<T>& v, const QueryBiases<T>& query_biases, const Team& team)
      : m_problem(problem),
        m_keys(keys),
        m_exact_keys(exact_keys),
        m_q(q),
        m_k(finite_rows<T>(k, team.workspace())),
        m_v(v),
        m_query_biases(query_biases),
        m_team(team) {}

  /// Adds the sinks, the salient keys and the near field to the sums of far pairs (ExactField::add).
  void add_fields(FarSums<T> far, RowErrorBound<T>& errors) const {
    for_each_field(m_problem, m_keys, m_exact_keys, m_q, m_k, m_query_biases, m_team,
                   [&](const auto& field, const KeySubset& keys) { field.add(keys.of<T>(m_v), far, errors); });
  }

  /// Calls emit(i, y_i, log_scale) for each i of `rows`, where y_i is the row of exact softmax (SoftmaxRows::forward).
  template <class Emit>
  void for_each_softmax_row(std::span<const Index> rows, Emit&& emit) const {
    SoftmaxRows<T>(rows, m_problem, m_keys, m_q, m_k, m_query_biases, m_team).forward(m_v, emit);
  }

  /// Returns how the rows i of y (n_q,d_v), for each i of `rows`, differ from exact softmax.
  SoftmaxDifference difference(std::span<const Index> rows, const MatrixView<T>& y) const {
    const Workspace::Scope scope(m_team.workspace());
    double *differences = m_team.workspace().template take<double>(y.rows()),
           *sizes = m_team.workspace().template take<double>(y.rows());
    for_each_softmax_row(rows, [&](Index i, std::span<T> exact, double) {
      sizes[i] = dot_in_double<T>(exact, exact);
      add_scaled(exact, T(-1), row_of(y, i));
      differences[i] = dot_in_double<T>(exact, exact);
    });
    SoftmaxDifference sum;
    for (const Index i : rows) sum += {1, differences[i], sizes[i]};
    return sum;
  }

 private:
  const LagProblem<T>& m_problem;
  const Placement& m_keys;
  const KeySubset& m_exact_keys;
  MatrixView<T> m_q, m_k, m_v;
  QueryBiases<T> m_query_biases;
  const Team& m_team;
};

}  // namespace nprf
