// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/attention/exact/exponential_weights.hpp"
#include "nprf/attention/exact/softmax_tile.hpp"
#include "nprf/attention/fallback/row_error_bound.hpp"
#include "nprf/attention/weights/query_biases.hpp"
#include "nprf/attention/weights/row_biases.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

namespace nprf {

/// The sums of the far pairs of each query, N (n_q,d_v) and D (n_q). They are in units of exp(log_scales_i): the weight
/// of a far pair is exp(log_scales_i) * (A_i.B_j) * c_ij.
template <Real T>
struct FarSums {
  MatrixRef<T> A, N;   // (n_q,r) (n_q,d_v)
  T* D;                // (n_q)
  double* log_scales;  // (n_q)
};

/// The problem in which queries attend only to the keys at lags l for which keeps(l) is true. Its tables of biases are
/// in the workspace; its weights, and the biases that they are relative to, are those of x. O(lags).
template <Real T, class Keeps>
LagProblem<T> with_lags(LagProblem<T> x, Workspace& workspace, const Keeps& keeps) {
  constexpr double never = LagProblem<T>::minus_infinity;
  double *biases = workspace.take<double>(x.lags.size()), *log_weights = workspace.take<double>(x.lags.size());
  for (Index l = 0; l < x.lags.size(); ++l) {
    const bool kept = keeps(x.lags.first + l);
    biases[l] = kept ? x.biases[l] : never;
    log_weights[l] = kept ? x.log_weights[l] : never;
  }
  x.biases = biases, x.log_weights = log_weights;
  return x;
}

/// The problem of the near pairs alone.
template <Real T>
LagProblem<T> near_pairs(const LagProblem<T>& problem, Workspace& workspace) {
  LagProblem<T> x = with_lags(problem, workspace, [&](Index lag) { return problem.near.contains(lag); });
  const LagRange near = x.near.range();
  x.reach = {std::max(near.first, x.reach.first), std::min(near.last, x.reach.last)};
  if (x.reach.size() == 0) x.reach = {};
  double* border = workspace.take<double>(x.border_biases.size());
  std::fill_n(border, x.border_biases.size(), LagProblem<T>::minus_infinity);
  x.border_biases.values = border;
  return x;
}

/// The problem of the keys that have exact pairs with all queries, the attention sinks and the salient ones: near pairs
/// do not belong to it, but to the near field.
template <Real T>
LagProblem<T> pairs_not_near(const LagProblem<T>& problem, Workspace& workspace) {
  return with_lags(problem, workspace, [&](Index lag) { return !problem.near.contains(lag); });
}

/// Pairs whose weights are those of exact softmax, beside the far pairs, whose weights are those of features: the pairs
/// of near tokens (near_pairs), or those of attention sinks and salient keys (pairs_not_near).
///
///     y_i = (N_i + sum_field w_ij v_j) / (D_i + sum_field w_ij)     w_ij = exp(q_i.k_j + b_ij - log_scale_i)
///
/// where N and D are the sums of the other pairs, in units of exp(log_scale_i). O(n w (d + d_v)) if the field has w
/// keys for each query.
template <Real T>
class ExactField {
 public:
  /// For all pairs of a problem, normalised queries q (n_q,d) and keys k (n_k,d); the keys must be finite.
  ExactField(const LagProblem<T>& problem, const Placement& keys, const MatrixView<T>& q, const MatrixView<T>& k,
             const Team& team, const QueryBiases<T>& query_biases = {})
      : m_biases(problem, keys, nullptr, RowSubset::all(q.rows(), team), team, query_biases),
        m_q(q),
        m_k(k),
        m_team(team) {}

  /// Adds the field's pairs, for values v (n_k,d_v), to N_i and D_i of `far`, and their weights to the terms of
  /// `errors`. Where the sum of these weights is larger than that of the other pairs, the log-scale of row i becomes
  /// that of the field, so that no weight of the field overflows, and A_i, N_i and D_i are rescaled. A row whose far
  /// weights underflow keeps a D_i that has lost its precision (row_quotient.hpp). D_i becomes NaN, and remains NaN
  /// when other fields are added, in a row that has to be recomputed because the field's biases are so far below the
  /// largest of all that their differences from it are rounded too coarsely.
  void add(const MatrixView<T>& v, FarSums<T> far, RowErrorBound<T>& errors) const {
    for_each_softmax_sum(m_biases, m_q, m_k, v, m_team,
                         [&](Index i, std::span<T> N, T D, T largest) { add_row(i, N, D, largest, far, errors); });
  }

  /// Adds the gradients of the field's pairs to `out`, for G (n_q,d_v+1) = dL/d[N D] and U = [v 1] (n_k,d_v+1). What
  /// row i adds to dk, dU and db is multiplied by 2^exponents_i.
  void add_gradients(const MatrixView<T>& U, const MatrixView<T>& G, const double* log_scales, const int* exponents,
                     FieldGradients<T> out) const {
    const Workspace::Scope scope(m_team.workspace());
    double* relative = m_team.workspace().template take<double>(m_q.rows());  // to the largest bias of each row
    for (Index i = 0; i < m_q.rows(); ++i) relative[i] = log_scales[i] - m_biases.reference(i);
    add_exponential_gradients<T>(m_biases, {m_q, m_k, U, G, relative, exponents}, out, m_team);
  }

 private:
  void add_row(Index i, std::span<T> N, T D, T largest, FarSums<T>& far, RowErrorBound<T>& errors) const {
    if (D == 0 || std::isnan(far.D[i])) return;  // no key is in the field, or the row is recomputed anyway
    const double reference = m_biases.reference(i), log_scale = static_cast<double>(largest) + reference,
                 rise = log_scale - far.log_scales[i];
    const double far_size = std::max(errors.size_of_terms(i, far.D[i]), smallest_sum(errors.largest_values()[i]));
    const double share = rise + std::log(static_cast<double>(D)) - std::log(far_size);  // log(field sum / far_size)
    const double largest_bias = std::min(largest, T(0)) + reference;                    // up to a score
    if (largest_bias < -largest_exponent<T>) {
      if (share > -largest_exponent<T>) far.D[i] = std::numeric_limits<T>::quiet_NaN();
    } else if (share > 0) {
      const T factor = static_cast<T>(std::exp(-rise));
      scale(writable_row(far.A, i), factor);
      add_scaled(N, factor, row_of(far.N, i));
      std::ranges::copy(N, writable_row(far.N, i).begin());
      far.D[i] = factor * far.D[i] + D;
      far.log_scales[i] = log_scale;
      errors.scale(i, factor);
      errors.add_exact(i, D);
    } else {
      const T factor = static_cast<T>(std::exp(rise));
      add_scaled<T>(writable_row(far.N, i), factor, N);
      far.D[i] += factor * D;
      errors.add_exact(i, factor * D);
    }
  }

  // the smallest D that row_keeps_precision() accepts: beside a smaller D, far terms that underflowed would matter
  double smallest_sum(T v_max) const {
    constexpr double of_D = static_cast<double>(smallest_denominator<T>),
                     of_N = static_cast<double>(smallest_normal_number<T>);
    return v_max == 0 ? of_D : std::max(of_D, of_N * static_cast<double>(m_k.rows()) / static_cast<double>(v_max));
  }

  RowBiases<T> m_biases;
  const MatrixView<T>&m_q, &m_k;
  const Team& m_team;
};

}  // namespace nprf
