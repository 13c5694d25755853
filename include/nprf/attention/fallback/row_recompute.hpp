// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/attention/fallback/row_tiles.hpp"
#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/attention/weights/row_biases.hpp"
#include "nprf/core/lag_problem.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/row_quotient.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/feature_map/feature_map_view.hpp"
#include "nprf/toeplitz/factors.hpp"

namespace nprf {

/// One row of attention in double, with weights relative to the largest of the row:
///
///     w_j = (a.B_j) e_j,  e_j = exp(b_j - max b) / c,  D = sum_j w_j,  y = sum_j w_j v_j / D
///
/// for the features a of the query, with the constant c that makes the largest |w_j| 1, so that w_j v_j does not
/// underflow beside it. It is for rows that lose their precision or underflow in T, even with weights relative to the
/// row. O(n_k (r + d_v)).
template <Real T>
class DoubleRow {
 public:
  /// Refers to the features a (r) of the query and B (n_k,r) of the keys and to the values v (n_k,d_v), which may have
  /// more columns. The biases b (n_k), -infinity for keys that the query does not attend to, are overwritten by e.
  DoubleRow(std::span<const T> a, const MatrixView<T>& B, const MatrixView<T>& v, VectorMap<double> b)
      : m_a(a), m_B(B), m_v(v), m_e(b.data()) {
    double largest = -std::numeric_limits<double>::infinity();
    for (const double bias : b) largest = std::max(largest, bias);
    for (double& e : b) e = std::exp(e - largest);
    for (Index j = 0; j < b.size(); ++j)
      if (b[j] > 0) m_largest = std::max(m_largest, std::abs(score(j) * b[j]));
    if (m_largest > 0)
      for (double& e : b) e /= m_largest;
  }

  /// Sets y (d_v) and returns c D, the denominator with weights that are not divided by c.
  double forward(std::span<T> y, Workspace& scratch) const {
    const Workspace::Scope scope(scratch);
    const Index d_v = static_cast<Index>(y.size());
    double *numerator = scratch.take<double>(2 * d_v), *compensation = numerator + d_v,
           *term = scratch.take<double>(d_v);
    std::fill_n(numerator, 2 * d_v, 0.0);
    double denominator = 0, denominator_compensation = 0;
    for (Index j = 0; j < m_B.rows(); ++j) {
      if (m_e[j] == 0) continue;  // 0 times a non-finite value must not count
      const double weight = score(j) * m_e[j];
      if (weight == 0) continue;
      const T* v = row_of(m_v, j).data();
      for (Index p = 0; p < d_v; ++p) term[p] = weight * static_cast<double>(v[p]);
      add_compensated(d_v, term, numerator, compensation);
      add_compensated(Index{1}, &weight, &denominator, &denominator_compensation);
    }
    add_compensation(d_v, compensation, numerator);
    add_compensation(Index{1}, &denominator_compensation, &denominator);
    for (T& each : y) each = static_cast<T>(*numerator++ / denominator);
    return m_largest * denominator;
  }

  /// Where backward() writes. `scale` is a factor of dB, dU and db, but not of da.
  struct Gradients {
    double scale;
    std::span<T> da;      // (r), added to
    MatrixRef<T> dB, dU;  // (n_k,r) (n_k,d_v+1), added to; the last column of dU is left as it is
    double* db;           // (n_k), set
  };

  // forward: y = sum_j w_j v_j / D, where w_j = (a.B_j) e_j as above; so with h_j = (dy.v_j - dy.y) / D
  //     da = sum_j h_j e_j B_j    dB_j = h_j e_j a    dv_j = (w_j / D) dy    db_j = h_j w_j
  /// Computes the gradients for dy (d_v) = dL/dy, and for the y (d_v) that forward() has set.
  void backward(std::span<const T> y, std::span<const T> dy, Gradients out, Workspace& scratch) const {
    const Workspace::Scope scope(scratch);
    const double dy_y = dot_in_double(dy, y);
    double denominator = 0;
    for (Index j = 0; j < m_B.rows(); ++j)
      if (m_e[j] > 0) denominator += score(j) * m_e[j];
    const std::span<double> da(scratch.take<double>(m_B.cols()), m_a.size());
    std::ranges::fill(da, 0.0);
    for (Index j = 0; j < m_B.rows(); ++j) {
      out.db[j] = 0;
      if (m_e[j] == 0) continue;
      const double weight = score(j) * m_e[j],
                   h = (dot_in_double(dy, row_of(m_v, j).first(dy.size())) - dy_y) / denominator;
      add(da, h * m_e[j], row_of(m_B, j));
      add(writable_row(out.dB, j), out.scale * h * m_e[j], m_a);
      add(writable_row(out.dU, j), out.scale * weight / denominator, dy);
      out.db[j] = out.scale * h * weight;
    }
    add(out.da, 1, std::span<const double>(da));
  }

 private:
  double score(Index j) const { return dot_in_double(m_a, row_of(m_B, j)); }

  // y += c x, for the first entries of y, with products in double
  template <class Y, class X>
  static void add(std::span<Y> y, double c, std::span<const X> x) {
    for (std::size_t l = 0; l < x.size(); ++l) y[l] += static_cast<Y>(c * static_cast<double>(x[l]));
  }

  std::span<const T> m_a;
  MatrixView<T> m_B, m_v;
  const double* m_e;     // (n_k)
  double m_largest = 0;  // c
};

/// Recomputes some rows of attention, forward and backward, by tiles, with weights relative to the largest of each row.
/// A row that still loses its precision is left to exact softmax if the feature map falls back to it, and is otherwise
/// summed in double.
template <Real T>
class RowRecompute {
 public:
  /// `rows` are the queries whose rows are recomputed, increasing. x has the features of all queries and of the keys,
  /// and the keys' log-scales.
  RowRecompute(std::span<const Index> rows, const LagProblem<T>& problem, const toeplitz::Factors<T>& x,
               const FeatureMapView<T>& features, const Team& team)
      : m_rows(rows, team),
        m_x(x),
        m_features(features),
        m_biases(problem, x.keys, x.key_log_scales, m_rows, team),
        m_team(team),
        m_A(m_rows.of<T>(x.A)),
        m_tiles(m_biases, team) {}

  /// What is found of a row. positive: its denominator D is positive. terms: (|A_i| sum_j c_ij |B_j|) / |D|, or 1 if
  /// all features are positive. is_left: the products of its features underflow, so that the row is left to exact
  /// softmax.
  struct Outcome {
    bool positive;
    double terms;
    bool is_left = false;
  };

  /// For x.U = v. Sets the recomputed rows of y (n_q,d_v) and of `denominator` (n_q), which becomes 0 for a row that is
  /// summed in double, and one of `outcomes` for each row of the constructor. Of a row that is left only the outcome is
  /// set. largest_values (n_q) has the largest |v| that each query attends to. Backward divides v by `saved_scale`,
  /// unless that is 0; a row whose numerators would then underflow is summed in double, too.
  void forward(const T* largest_values, T saved_scale, MatrixRef<T> y, Eigen::Ref<Vector<T>> denominator,
               Outcome* outcomes) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index rows = m_rows.count();
    const bool all_positive = m_features.is_positive();
    auto A = workspace.template matrix<T>(rows, m_A.cols()), N = workspace.template matrix<T>(rows, m_x.U.cols());
    auto D = workspace.template vector<T>(rows), terms = workspace.template vector<T>(rows);
    A = m_A;
    for (Index k = 0; k < rows; ++k) scale(writable_row(A, k), raising(largest_values[m_rows.index(k)]));
    m_tiles.contract(A, m_x.B, m_x.U, N, D.data());
    if (!all_positive) sum_term_magnitudes(terms.data());
    // |D| v_max is at least this in a row whose numerators have not underflowed (row_keeps_precision())
    const T least = static_cast<T>(m_x.B.rows()) * smallest_normal_number<T>;
    for (Index k = 0; k < rows; ++k) {
      const Index i = m_rows.index(k);
      const T v_max = largest_values[i], d = D[k] / raising(v_max);
      const bool is_precise = denominator_keeps_precision(d, all_positive),
                 is_left = !is_precise && m_features.falls_back_to_softmax();
      outcomes[k] = {d > 0, all_positive ? 1 : static_cast<double>(terms[k]) / std::abs(static_cast<double>(d)),
                     is_left};
      if (is_left) continue;
      const auto fits = [&](T sum, T value) { return std::abs(sum) * value >= least; };
      const bool keeps_values = v_max == 0 || (fits(D[k], v_max) && (saved_scale == 0 || fits(d, v_max / saved_scale)));
      denominator[i] = is_precise && keeps_values ? d : T(0);
      if (denominator[i] != 0) set_quotient(writable_row(y, i), row_of(N, k), D[k]);
    }
    m_team.run(rows, [&](Index k, Workspace& scratch) {
      const Index i = m_rows.index(k);
      if (outcomes[k].is_left || denominator[i] != 0) return;
      const double exact = double_row(k, scratch).forward(writable_row(y, i), scratch);
      outcomes[k] = {exact > 0, all_positive ? 1 : static_cast<double>(terms[k]) / std::abs(exact)};
    });
  }

  /// The outputs of forward and their gradients, a row for each query. Only the recomputed rows are read.
  struct OutputGradients {
    MatrixView<T> G;       // (n_q,d_v+1) dL/d[N D]; zero for rows in double
    MatrixView<T> y, dy;   // (n_q,d_v)
    const int* exponents;  // (n_q) what row i adds to dB, dU and db gets the factor 2^exponents[i]
    const T* denominator;  // (n_q) 0 for rows in double
  };

  /// The gradients of the factors. The recomputed rows of dA are set; dB, dU and db are added to.
  struct FactorGradients {
    MatrixRef<T> dA, dB, dU;  // (n_q,r) (n_k,r) (n_k,d_v+1)
    BiasGradient db;
  };

  /// Computes the gradients. x.U must be [v 1].
  void backward(const OutputGradients& of, FactorGradients out) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index rows = m_rows.count();
    auto dA = workspace.template matrix<T>(rows, out.dA.cols());  // of the recomputed rows
    m_tiles.gradients(m_A, m_x.B, m_x.U, m_rows.of<T>(of.G), {dA, out.dB, out.dU, out.db});
    for (Index k = 0; k < rows; ++k)
      if (of.denominator[m_rows.index(k)] == 0) add_in_double(k, of, writable_row(dA, k), out);
    m_rows.put<T>(dA, out.dA);
  }

 private:
  // A power of two by which the features of a query are multiplied, so that its sums of tiny values do not underflow; 1
  // unless the largest value is tiny. It is at most the inverse of the smallest denominator, so that no sum overflows
  static T raising(T largest_value) {
    if (largest_value == 0 || largest_value * max_scale_ratio<T> >= 1) return 1;
    return std::min(1 / scale_above(largest_value), 1 / smallest_denominator<T>);
  }

  DoubleRow<T> double_row(Index k, Workspace& scratch) const {
    auto b = scratch.template vector<double>(m_biases.num_keys());
    m_biases.set(k, 0, b.size(), b.data());
    return {row_of(m_A, k), m_x.B, m_x.U, b};
  }

  // adds the gradients of the k-th recomputed row, in double
  void add_in_double(Index k, const OutputGradients& of, std::span<T> da, FactorGradients& out) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index i = m_rows.index(k), n_k = m_biases.num_keys();
    double* db = workspace.template take<double>(n_k);
    double_row(k, workspace)
        .backward(row_of(of.y, i), row_of(of.dy, i), {std::ldexp(1.0, of.exponents[i]), da, out.dB, out.dU, db},
                  workspace);
    m_biases.add_gradient(
        k, 0, n_k, [=](Index j) { return db[j]; }, out.db.lags.empty() ? nullptr : out.db.lags.data(),
        out.db.border.data());
  }

  // sets terms (rows) to |A_i| sum_j c_ij |B_j| of each row
  void sum_term_magnitudes(T* terms) const {
    Workspace& workspace = m_team.workspace();
    const Workspace::Scope scope(workspace);
    const Index rows = m_rows.count(), n_k = m_x.B.rows();
    auto a = workspace.template matrix<T>(rows, 1), b = workspace.template matrix<T>(n_k, 1),
         none = workspace.template matrix<T>(n_k, 0), nothing = workspace.template matrix<T>(rows, 0);
    set_norms(a.data(), m_A);
    set_norms(b.data(), m_x.B);
    m_tiles.contract(a, b, none, nothing, terms);
  }

  RowSubset m_rows;
  const toeplitz::Factors<T>& m_x;
  const FeatureMapView<T>& m_features;
  RowBiases<T> m_biases;  // with the keys' log-scales
  const Team& m_team;
  MatrixMap<T> m_A;  // (rows,r)
  RowTiles<T> m_tiles;
};

}  // namespace nprf
