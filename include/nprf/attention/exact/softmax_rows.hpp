// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <span>

#include "nprf/attention/exact/exponential_weights.hpp"
#include "nprf/attention/exact/softmax_tile.hpp"
#include "nprf/attention/weights/query_biases.hpp"
#include "nprf/attention/weights/row_biases.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Some rows of attention by exact softmax: those whose features cannot be trusted, and those that are compared with
/// it. O(rows n_k (d + d_v)).
template <Real T>
class SoftmaxRows {
 public:
  /// For the queries `rows`, increasing, each of which attends to a key; normalised queries q (n_q,d) and keys k
  /// (n_k,d), which must be finite.
  SoftmaxRows(std::span<const Index> rows, const LagProblem<T>& problem, const Placement& keys, const MatrixView<T>& q,
              const MatrixView<T>& k, const QueryBiases<T>& query_biases, const Team& team)
      : m_rows(rows, team),
        m_biases(problem, keys, nullptr, m_rows, team, query_biases),
        m_q(m_rows.template of<T>(q)),
        m_k(k),
        m_team(team) {}

  /// Calls emit(i, y_i, log_scale) for each row i of `rows`, with y_i (d_v) for values v (n_k,d_v), which emit may
  /// overwrite, and with log_scale = log(sum_j exp(s_ij + b_ij - max_j b_ij)). May call it from several threads.
  template <class Emit>
  void forward(const MatrixView<T>& v, Emit&& emit) const {
    for_each_softmax_sum<T>(m_biases, m_q, m_k, v, m_team, [&](Index i, std::span<T> N, T D, T largest) {
      set_quotient(N, N, D);
      emit(m_rows.index(i), N, static_cast<double>(largest) + std::log(static_cast<double>(D)));
    });
  }

  /// Adds the gradients of the rows to `out`, for U = [v 1] (n_k,d_v+1), G (n_q,d_v+1) = dL/d[N D] where D is 1, and
  /// the log_scales of forward (n_q). What row i adds to dk, dU and db is multiplied by 2^exponents_i.
  void backward(const MatrixView<T>& U, const MatrixView<T>& G, const double* log_scales, const int* exponents,
                FieldGradients<T> out) const {
    const Workspace::Scope scope(m_team.workspace());
    auto dq = m_team.workspace().template matrix<T>(m_rows.count(), m_q.cols());  // of the rows of the subset
    dq.setZero();
    const MatrixView<T> q = m_q, rows_of_G = m_rows.template of<T>(G);
    double* scales = m_team.workspace().template take<double>(m_rows.count());
    int* powers = m_team.workspace().template take<int>(m_rows.count());
    for (Index i = 0; i < m_rows.count(); ++i)
      scales[i] = log_scales[m_rows.index(i)], powers[i] = exponents[m_rows.index(i)];
    add_exponential_gradients<T>(m_biases, {q, m_k, U, rows_of_G, scales, powers}, {dq, out.dk, out.dU, out.dr, out.db},
                                 m_team);
    for (Index i = 0; i < m_rows.count(); ++i) add_scaled(writable_row(out.dq, m_rows.index(i)), T(1), row_of(dq, i));
  }

 private:
  RowSubset m_rows;
  RowBiases<T> m_biases;
  MatrixMap<T> m_q;  // (rows,d)
  const MatrixView<T>& m_k;
  const Team& m_team;
};

}  // namespace nprf
