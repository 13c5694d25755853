// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/attention/fallback/double_row.hpp"
#include "nprf/attention/fallback/row_subset.hpp"
#include "nprf/attention/fallback/row_tiles.hpp"
#include "nprf/attention/weights/pair_bias.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_view.hpp"

namespace nprf {

/// Queries and keys, and what they are scaled by: empty for 1.
template <Real T>
struct FeatureInputs {
  const MatrixView<T>&q, &k;
  RowScale<T> q_scale, k_scale;
};

/// Rows of attention computed by themselves, forwards and backwards: by tiles, or where that leaves a row no digits
/// either, one by one in double, from the logarithms of the features where the map tells them.
template <Real T>
class RowRepair {
 public:
  /// Refers to all of them: the rows' numbers, the inputs, and A (n_q,r), B (n_k,r) with the keys' exponents, which may
  /// be null.
  RowRepair(std::span<const Index> numbers, const LagProblem<T>& problem, const Placement& keys,
            const FeatureMapView<T>& features, const FeatureInputs<T>& x, const MatrixView<T>& A,
            const MatrixView<T>& B, const double* exponents, const Team& team)
      : m_rows(numbers, team),
        m_features(features),
        m_x(x),
        m_bias(problem, keys, nullptr),
        m_raised(problem, keys, exponents),
        m_B(B),
        m_team(team),
        m_A(m_rows.of<T>(A)),
        m_tiles(m_raised, m_rows, team) {}

  /// What became of a row: whether its denominator is positive, and the sum of its terms' sizes over it, |A_i| |B_j|
  /// for a weight A_i.B_j; 1 if all are positive.
  struct Outcome {
    bool positive;
    double terms;
  };

  /// Their y of v (n_k,d_v), their denominators, 0 for those that were computed one by one, and outcomes (rows);
  /// largest_values (n_q) are the largest |v| that each query sees; a row must keep its digits in this unit.
  void forward(const MatrixView<T>& v, const T* largest_values, T unit, MatrixRef<T> y,
               Eigen::Ref<Vector<T>> denominator, Outcome* outcomes) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index rows = m_rows.count();
    const bool all_positive = m_features.is_positive();
    auto N = workspace.template matrix<T>(rows, v.cols());
    auto D = workspace.template vector<T>(rows), terms = workspace.template vector<T>(rows);
    m_tiles.contract(m_A, m_B, v, N, D.data());
    if (!all_positive) {
      auto a = workspace.template matrix<T>(rows, 1), b = workspace.template matrix<T>(m_B.rows(), 1);
      a = m_A.rowwise().norm();
      b = m_B.rowwise().norm();
      auto nothing = workspace.template matrix<T>(rows, 0);
      m_tiles.contract(a, b, v.leftCols(0), nothing, terms.data());
    }
    Index lost = 0;
    for (Index k = 0; k < rows; ++k) {
      const Index i = m_rows.number(k);
      const T keys = static_cast<T>(m_B.rows());
      denominator[i] = row_keeps_precision(D[k], largest_values[i] / unit, keys, all_positive) ? D[k] : T(0);
      lost += denominator[i] == 0;
      if (denominator[i] != 0) y.row(i) = N.row(k) / D[k];
      outcomes[k] = {D[k] > 0, all_positive ? 1 : static_cast<double>(terms[k]) / std::abs(static_cast<double>(D[k]))};
    }
    if (lost == 0) return;
    const MatrixView<T> logs = logs_of(m_x.k, m_x.k_scale);
    m_team.run(rows, [&](Index k, Workspace& scratch) {
      const Index i = m_rows.number(k);
      if (denominator[i] != 0) return;
      const double exact = with_row(k, logs, scratch, [&](const auto& row, const auto& a, const auto& B) {
        return row.forward(a, B, v, scratch.vector<double>(3 * v.cols()), y.row(i));
      });
      outcomes[k] = {exact > 0, all_positive ? 1 : static_cast<double>(terms[k]) / std::abs(exact)};
    });
  }

  /// Adds their share for dy (n_q,d_v) times 2^factors (n_q), where U = [v 1] (n_k,d_v+1) and G (n_q,d_v+1) is dL/dU's,
  /// zero for those that were computed one by one. dA's rows become theirs, without the factor. Of rows from
  /// logarithms, dA (n_q,r) and d_logs (n_k,r) are the gradients by those; returns whether there are any.
  bool backward(const MatrixView<T>& U, const MatrixView<T>& G, const MatrixView<T>& y, const MatrixView<T>& dy,
                const int* factors, const Eigen::Ref<const Vector<T>>& denominator, MatrixRef<T> dA, MatrixRef<T> dB,
                MatrixRef<T> d_logs, MatrixRef<T> dU, std::span<double> db_lags, std::span<double> db_border) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index rows = m_rows.count();
    auto own = workspace.template matrix<T>(rows, dA.cols());
    m_tiles.gradients(m_A, m_B, U, m_rows.of<T>(G), own, dB, dU, db_lags, db_border);
    Index lost = 0;
    for (Index k = 0; k < rows; ++k) lost += denominator[m_rows.number(k)] == 0;
    if (lost > 0) {
      const bool by_logs = m_features.has_logs();
      const MatrixView<T> logs = logs_of(m_x.k, m_x.k_scale), v = U.leftCols(y.cols());
      auto dB_row = workspace.template matrix<T>(by_logs ? dB.rows() : 0, dB.cols());
      for (Index k = 0; k < rows; ++k) {
        const Index i = m_rows.number(k);
        if (denominator[i] != 0) continue;
        const Workspace::Scope row_scope(workspace);
        const auto add_db = [&](Index j, double gradient) {
          m_bias.add_gradient(
              i, j, 1, [=](Index) { return gradient; }, db_lags.empty() ? nullptr : db_lags.data(), db_border.data());
        };
        dB_row.setZero();
        MatrixRef<T> dB_to = by_logs ? MatrixRef<T>(dB_row) : dB;
        with_row(k, logs, workspace, [&](const auto& row, const auto& a, const auto& B) {
          row.backward(a, B, v, y.row(i), dy.row(i), std::ldexp(1.0, factors[i]), workspace.vector<double>(dA.cols()),
                       own.row(k), dB_to, dU, add_db);
          // B = exp(log a + log b - top): its gradient times itself is that by log b
          if (by_logs) d_logs += dB_row.cwiseProduct(B);
          return 0.0;
        });
      }
    }
    m_rows.put<T>(own, dA);
    return lost > 0 && m_features.has_logs();
  }

 private:
  // (n,r), or nothing
  MatrixView<T> logs_of(const MatrixView<T>& x, RowScale<T> scale) const {
    auto z = m_team.workspace().template matrix<T>(m_features.has_logs() ? x.rows() : 0, m_A.cols());
    if (m_features.has_logs()) m_features.logs(x, scale, z, m_team);
    return z;
  }

  // use(DirectRow, a, B) for the k-th row: of its features, or of ones and exp(log a + log b - top) for each key, whose
  // bias then has its top
  template <class Use>
  double with_row(Index k, const MatrixView<T>& logs, Workspace& scratch, Use&& use) const {
    const Index i = m_rows.number(k), n_k = m_bias.num_keys(), r = m_A.cols();
    if (!m_features.has_logs()) return use(DirectRow(n_k, bias_of(m_raised, i)), m_A.row(k), m_B);
    auto B = scratch.template matrix<T>(n_k, r);
    auto biases = scratch.template vector<double>(n_k), z = scratch.template vector<double>(r);
    auto own = scratch.template matrix<T>(1, r), ones = scratch.template matrix<T>(1, r);
    m_features.logs(m_x.q.middleRows(i, 1),
                    m_x.q_scale.empty() ? m_x.q_scale : m_x.q_scale.subspan(static_cast<std::size_t>(i), 1), own,
                    Team(scratch));
    ones.setOnes();
    constexpr double never = -std::numeric_limits<double>::infinity();
    const auto of = bias_of(m_bias, i);
    for (Index j = 0; j < n_k; ++j) {
      z = (own.row(0).template cast<double>() + logs.row(j).template cast<double>()).transpose();
      const double b = of(j), top = z.maxCoeff();
      biases[j] = b > never ? b + top : never;
      if (biases[j] == never)
        B.row(j).setZero();  // of weight 0: left out, whatever the key holds
      else
        B.row(j) = (z.array() - top).exp().matrix().transpose().template cast<T>();
    }
    return use(DirectRow(n_k, [biases](Index j) { return biases[j]; }), ones.row(0), B);
  }

  static auto bias_of(const PairBias<T>& bias, Index i) {
    return [i, &bias, from = bias.largest(i)](Index j) {
      double b;
      bias(i, from, j, 1, &b);
      return b;
    };
  }

  RowSubset m_rows;
  const FeatureMapView<T>& m_features;
  const FeatureInputs<T>& m_x;
  PairBias<T> m_bias, m_raised;  // without the keys' exponents, and with them
  const MatrixView<T>& m_B;
  const Team& m_team;
  MatrixMap<T> m_A;
  RowTiles<T> m_tiles;
};

}  // namespace nprf
