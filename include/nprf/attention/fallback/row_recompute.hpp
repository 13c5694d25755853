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
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// The inputs of the feature map: rows and their normalisation factors, where an empty scale means that all are 1.
template <Real T>
struct FeatureInputs {
  const MatrixView<T>&q, &k;
  RowScale<T> q_scale, k_scale;
};

/// Recomputes some rows of attention, forward and backward. First by tiles, with weights relative to the largest of
/// each row. A row that still loses its precision is computed in double; if the feature map has logarithms, from these.
template <Real T>
class RowRecompute {
 public:
  /// For the queries `rows`, increasing. x has the features of all queries and of the keys, with the keys' log-scales.
  /// Refers to all of them.
  RowRecompute(std::span<const Index> rows, const LagProblem<T>& problem, const toeplitz::Factors<T>& x,
               const FeatureMapView<T>& features, const FeatureInputs<T>& inputs, const Team& team)
      : m_rows(rows, team),
        m_x(x),
        m_features(features),
        m_inputs(inputs),
        m_bias(problem, x.keys, nullptr),
        m_scaled_bias(problem, x.keys, x.key_log_scales),
        m_team(team),
        m_A(m_rows.of<T>(x.A)),
        m_tiles(m_scaled_bias, m_rows, team) {}

  /// Of a recomputed row: whether its denominator is positive, and the sum of the magnitudes of its terms,
  /// |A_i| |B_j| for A_i.B_j, over |D|; 1 if all features are positive.
  struct Outcome {
    bool positive;
    double terms;
  };

  /// Sets their rows of y (n_q,d_v) for x.U = v, their denominators (n_q), 0 if computed in double, and `outcomes`, one
  /// for each. A query's largest |v| is in largest_values (n_q). Numerators must not underflow when v is divided by
  /// `scale`, as backward does.
  void forward(const T* largest_values, T scale, MatrixRef<T> y, Eigen::Ref<Vector<T>> denominator,
               Outcome* outcomes) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index rows = m_rows.count();
    const bool all_positive = m_features.is_positive();
    auto N = workspace.template matrix<T>(rows, m_x.U.cols());
    auto D = workspace.template vector<T>(rows), terms = workspace.template vector<T>(rows);
    m_tiles.contract(m_A, m_x.B, m_x.U, N, D.data());
    if (!all_positive) sum_term_magnitudes(terms.data());
    Index in_double = 0;
    for (Index k = 0; k < rows; ++k) {
      const Index i = m_rows.index(k);
      const T keys = static_cast<T>(m_x.B.rows());
      denominator[i] = row_keeps_precision(D[k], largest_values[i] / scale, keys, all_positive) ? D[k] : T(0);
      in_double += denominator[i] == 0;
      if (denominator[i] != 0) y.row(i) = N.row(k) / D[k];
      outcomes[k] = {D[k] > 0, all_positive ? 1 : static_cast<double>(terms[k]) / std::abs(static_cast<double>(D[k]))};
    }
    if (in_double == 0) return;
    const MatrixView<T> log_B = key_logs();
    m_team.run(rows, [&](Index k, Workspace& scratch) {
      const Index i = m_rows.index(k);
      if (denominator[i] != 0) return;
      const RowFactors x = row_factors(k, log_B, scratch);
      const double exact = DoubleRow<T>(x.a, x.B, m_x.U, x.biases).forward(y.middleRows(i, 1), scratch);
      outcomes[k] = {exact > 0, all_positive ? 1 : static_cast<double>(terms[k]) / std::abs(exact)};
    });
  }

  /// The outputs of forward and their gradients, by query; only those of the recomputed rows are read.
  struct OutputGradients {
    MatrixView<T> G;       // (n_q,d_v+1) dL/d[N D]; zero for rows in double
    MatrixView<T> y, dy;   // (n_q,d_v)
    const int* exponents;  // (n_q) a row's shares in dB, dU and db get the factor 2^exponent
    const T* denominator;  // (n_q) 0 for rows in double
  };

  /// The gradients of the factors. Those by the logarithms of A and B are of rows in double, if the map has logarithms.
  struct FactorGradients {
    MatrixRef<T> dA;           // (n_q,r) the recomputed rows are set: by A, or by its logarithms
    MatrixRef<T> dB, d_log_B;  // (n_k,r) added to: by B, and by its logarithms
    MatrixRef<T> dU;           // (n_k,d_v+1) added to
    BiasGradient db;           // added to
  };

  /// For x.U = [v 1]. Returns whether gradients by logarithms were added.
  bool backward(const OutputGradients& of, FactorGradients out) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index rows = m_rows.count();
    auto dA = workspace.template matrix<T>(rows, out.dA.cols());  // of these rows
    m_tiles.gradients(m_A, m_x.B, m_x.U, m_rows.of<T>(of.G), {dA, out.dB, out.dU, out.db.lags, out.db.border});
    Index in_double = 0;
    for (Index k = 0; k < rows; ++k) in_double += of.denominator[m_rows.index(k)] == 0;
    if (in_double > 0) {
      const MatrixView<T> log_B = key_logs();
      for (Index k = 0; k < rows; ++k)
        if (of.denominator[m_rows.index(k)] == 0) add_in_double(k, log_B, of, dA.middleRows(k, 1), out);
    }
    m_rows.put<T>(dA, out.dA);
    return in_double > 0 && m_features.has_logs();
  }

 private:
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

  // The features and biases of one row in double. If the map has logarithms, a = 1 and B_j = exp(log A_i + log B_j -
  // top_j), where top_j is the largest of the exponents and a part of the bias of key j
  struct RowFactors {
    MatrixView<T> a, B;        // (1,r) (n_k,r)
    VectorMap<double> biases;  // (n_k)
  };

  RowFactors row_factors(Index k, const MatrixView<T>& log_B, Workspace& scratch) const {
    const Index i = m_rows.index(k), n_k = m_bias.num_keys(), r = m_A.cols();
    auto b = scratch.template vector<double>(n_k);
    if (!m_features.has_logs()) {
      m_scaled_bias(i, m_scaled_bias.largest(i), 0, n_k, b.data());
      return {m_A.middleRows(k, 1), m_x.B, b};
    }
    auto B = scratch.template matrix<T>(n_k, r), log_a = scratch.template matrix<T>(1, r),
         ones = scratch.template matrix<T>(1, r);
    auto z = scratch.template vector<double>(r);
    const RowScale<T> scale = m_inputs.q_scale;
    m_features.logs(m_inputs.q.middleRows(i, 1), scale.empty() ? scale : scale.subspan(static_cast<std::size_t>(i), 1),
                    log_a, Team(scratch));
    ones.setOnes();
    m_bias(i, m_bias.largest(i), 0, n_k, b.data());
    for (Index j = 0; j < n_k; ++j) {
      z = (log_a.row(0).template cast<double>() + log_B.row(j).template cast<double>()).transpose();
      const double top = z.maxCoeff();
      b[j] = b[j] > minus_infinity ? b[j] + top : minus_infinity;
      if (b[j] == minus_infinity)
        B.row(j).setZero();  // a key of weight 0, whose features may be non-finite
      else
        B.row(j) = (z.array() - top).exp().matrix().transpose().template cast<T>();
    }
    return {ones, B, b};
  }

  // the gradients of the k-th row
  void add_in_double(Index k, const MatrixView<T>& log_B, const OutputGradients& of, MatrixRef<T> da,
                     FactorGradients& out) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index i = m_rows.index(k), n_k = m_bias.num_keys();
    const bool by_logs = m_features.has_logs();
    const RowFactors x = row_factors(k, log_B, workspace);
    auto dB = workspace.template matrix<T>(by_logs ? n_k : 0, out.dB.cols());
    dB.setZero();
    double* db = workspace.template take<double>(n_k);
    DoubleRow<T>(x.a, x.B, m_x.U.leftCols(of.y.cols()), x.biases)
        .backward(of.y.middleRows(i, 1), of.dy.middleRows(i, 1),
                  {std::ldexp(1.0, of.exponents[i]), da, by_logs ? MatrixRef<T>(dB) : out.dB, out.dU, db}, workspace);
    if (by_logs) out.d_log_B += dB.cwiseProduct(x.B);  // dL/d(log B) = B dL/dB
    m_bias.add_gradient(
        i, 0, n_k, [=](Index j) { return db[j]; }, out.db.lags.empty() ? nullptr : out.db.lags.data(),
        out.db.border.data());
  }

  // sum_j |A_i| |B_j| c_ij of each row
  void sum_term_magnitudes(T* terms) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    auto a = workspace.template matrix<T>(m_rows.count(), 1), b = workspace.template matrix<T>(m_x.B.rows(), 1);
    a = m_A.rowwise().norm();
    b = m_x.B.rowwise().norm();
    m_tiles.contract(a, b, m_x.U.leftCols(0), workspace.template matrix<T>(m_rows.count(), 0), terms);
  }

  // log B (n_k,r), empty if the map has no logarithms
  MatrixView<T> key_logs() const {
    auto z = m_team.workspace().template matrix<T>(m_features.has_logs() ? m_inputs.k.rows() : 0, m_A.cols());
    if (m_features.has_logs()) m_features.key_logs(m_inputs.k, m_inputs.k_scale, z, m_team);
    return z;
  }

  RowSubset m_rows;
  const toeplitz::Factors<T>& m_x;
  const FeatureMapView<T>& m_features;
  const FeatureInputs<T>& m_inputs;
  PairBias<T> m_bias, m_scaled_bias;  // without and with the keys' log-scales
  const Team& m_team;
  MatrixMap<T> m_A;  // (rows,r)
  RowTiles<T> m_tiles;
};

}  // namespace nprf
