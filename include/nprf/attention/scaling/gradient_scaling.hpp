// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/attention/saved.hpp"
#include "nprf/attention/scaling/value_scaling.hpp"
#include "nprf/attention/weights/prepared_position.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/power_of_two.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/engine.hpp"

namespace nprf {

/// The inputs A', G and U of the product's gradients, in power-of-two scales in which neither dy / D nor the gradients
/// overflow or underflow. Values are divided by one scale and dy by another, so that no finite entry that a gradient
/// depends on exceeds 1. Each row has a factor f_i, a power of two, which is moved from the gradient to the features:
///
///     A'_i = f_i A_i    G_i = [dy_i  -(dy_i.y_i)] / (D_i f_i)    dA_i = f_i dA'_i
///
/// If rows share an FFT's rounding errors, f_i makes the largest entry of G_i at most 1. If rounding is per row, f_i is
/// then reduced until A'_i is at most 1: where D_i is small because all weights c[j-i] are small, c[j-i] (G_i.U_j)
/// would underflow beside a large A'_i. f_i is not reduced so far that G_i could overflow.
///
/// Rows without a gradient are zero in A' and G. The rows that were summed in double (fallback/row_recompute.hpp) have
/// a zero G_i but keep their features, and their f_i comes from the scale of dy alone. Non-finite entries of G affect
/// no scale.
template <Real T>
class GradientScaling {
 public:
  /// `rounding` is the product's; recomputed rows are rounded per row. The scale of the values is that of the values
  /// that rows with a finite gradient attend to. If values that only other rows attend to are far larger, they become
  /// zero. Refers to `saved` and dy (n_q,d_v). O(n_q (r + d_v)), and O(n_k d_v + n log n) if some values are that much
  /// larger.
  GradientScaling(const SavedSequence<T>& saved, const MatrixView<T>& dy, toeplitz::Rounding rounding,
                  const PreparedPosition<T>& position, const Placement& keys, const Team& team)
      : m_saved(saved),
        m_dy(dy),
        m_rounding(rounding),
        m_A(team.workspace().template matrix<T>(saved.A.rows(), saved.A.cols())),
        m_G(team.workspace().template matrix<T>(dy.rows(), dy.cols() + 1)),
        m_U(saved.values.U.data()),
        m_rows(team.workspace().template take<Row>(dy.rows())),
        m_exponents(team.workspace().template take<int>(dy.rows())),
        m_sizes(team.workspace().template take<T>(dy.rows())),
        m_denominators(team.workspace().template take<T>(dy.rows())),
        m_value_scale(scale_above(saved.values.largest)) {
    set_gradients([](Index) { return true; }, team);
    T largest = 0, largest_dy = 0;
    for (Index i = 0; i < dy.rows(); ++i) {
      const Row& row = m_rows[i];
      if (row.has_weights) largest_dy = std::max(largest_dy, row.largest_dy);
      if (row.has_finite_gradient()) largest = std::max(largest, saved.values.largest_attended[i]);
    }
    const bool is_too_large = m_value_scale / max_scale_ratio<T> > largest;
    if (is_too_large || m_value_scale != 1) {
      auto U = team.workspace().template matrix<T>(saved.values.U.rows(), saved.values.U.cols());
      U = saved.values.U;
      if (is_too_large) leave_out_large_values(position, keys, U, team.workspace());
      for (Index j = 0; j < U.rows(); ++j) {
        const std::span<T> v = writable_row(U, j).first(static_cast<std::size_t>(dy.cols()));
        set_quotient(v, v, m_value_scale);
      }
      m_U = U.data();
    }
    // with the smaller scale of the values, dy_i.y_i of a row without a finite gradient may overflow: such rows keep
    // what the first call set
    if (is_too_large) set_gradients([this](Index i) { return m_rows[i].has_finite_gradient(); }, team);
    m_dy_scale = scale_above(largest_dy);
    m_exponent = exponent_of(m_value_scale) + exponent_of(m_dy_scale) + saved.values.exponent;
    team.run_tiles(dy.rows(), [&](Index i0, Index count, Workspace&) {
      for (Index i = i0; i < i0 + count; ++i) set_features(i);
    });
  }

  MatrixMap<T> A() const { return m_A; }  // A' (n_q,r)
  MatrixMap<T> G() const { return m_G; }  // (n_q,d_v+1)
  /// [v 1] (n_k,d_v+1), v divided by value_scale().
  Eigen::Map<const Matrix<T>> U() const { return {m_U, m_saved.values.U.rows(), m_saved.values.U.cols()}; }

  /// The scales of the saved values, of all of dy, and of row i of dy alone.
  T value_scale() const { return m_value_scale; }
  T dy_scale() const { return m_dy_scale; }
  T dy_scale(Index i) const { return power_of_two<T>(m_rows[i].dy_exponent); }
  /// Gradients that are products of values and dy are divided by 2^exponent().
  int exponent() const { return m_exponent; }

  const int* exponents() const { return m_exponents; }      // (n_q)  log2 f_i
  const T* sizes() const { return m_sizes; }                // (n_q)  s_i of toeplitz::GradientMeasure
  const T* denominators() const { return m_denominators; }  // (n_q)  sum_j c[j-i] A'_i.B_j = D_i f_i
  /// Whether all entries of G_i are finite.
  bool is_finite(Index i) const {
    return m_saved.denominator[i] == 0 || (m_rows[i].is_finite && m_rows[i].has_weights);
  }

 private:
  // 2^max_moved_exponent is far from overflow, and its inverse is below smallest_denominator (row_quotient.hpp)
  static constexpr int max_moved_exponent = std::numeric_limits<T>::max_exponent / 2;

  struct Row {
    T largest_dy;     // the largest finite entry
    int dy_exponent;  // of scale_above(largest_dy)
    bool is_finite, has_weights, has_gradient;
    toeplitz::Rounding rounding;

    bool has_finite_gradient() const { return has_weights && is_finite && largest_dy > 0; }
  };

  template <class Which>
  void set_gradients(Which&& which, const Team& team) {
    team.run_tiles(m_dy.rows(), [&](Index i0, Index count, Workspace&) {
      for (Index i = i0; i < i0 + count; ++i)
        if (which(i)) set_gradient(i);
    });
    for (const std::vector<Index>* rows : {&m_saved.recomputed_rows, &m_saved.softmax_rows})
      for (const Index i : *rows) m_rows[i].has_weights = true, m_rows[i].rounding = toeplitz::Rounding::per_row;
  }

  // sets G_i, its factor, its size s_i and its denominator, with dy_i divided by a scale of its own
  void set_gradient(Index i) {
    using P = Pack<T>;
    const Index d_v = m_dy.cols();
    const T *dy = row_of(m_dy, i).data(), *y = row_of(m_saved.y, i).data(), D = m_saved.denominator[i];
    const RowMax<T> dy_max = row_max(dy, d_v);
    const T dy_scale = scale_above(dy_max.largest), inverse_dy_scale = 1 / dy_scale;
    P dots = P::all(0), sizes = P::all(0);
    for (Index p = 0; p < d_v; p += P::size) {
      const P scaled = P::load(dy + p, d_v - p) * P::all(inverse_dy_scale);
      dots = multiply_add(scaled, P::load(y + p, d_v - p) * P::all(1 / m_value_scale), dots);
      sizes = sizes + abs(scaled);
    }
    const T dy_y = dots.sum();
    T dy_size = sizes.sum(), dy_y_size = std::abs(dy_y),
      largest_value = m_saved.values.largest_attended[i] / m_value_scale;
    Row& row = m_rows[i];
    row = {dy_max.largest, exponent_of(dy_scale), std::isfinite(dy_size + dy_y_size), D != 0 && std::isfinite(D), false,
           m_rounding};
    m_exponents[i] = 0;
    m_sizes[i] = m_denominators[i] = 0;
    T* g = writable_row(m_G, i).data();
    if (D == 0) {
      std::fill_n(g, d_v + 1, T(0));
      return;
    }

    if (!row.is_finite) {
      dy_size = 0;
      for (Index p = 0; p < d_v; ++p)
        if (std::isfinite(dy[p])) dy_size += std::abs(dy[p] * inverse_dy_scale);
      largest_value = 1;  // the only finite gradient of the row is dv, which does not depend on values
      if (!std::isfinite(dy_y_size)) dy_y_size = 0;
    }
    const T D_scale = power_of_two_scale(std::abs(D)), mantissa = D / D_scale;  // in [1/2, 1]
    const T largest = std::max(dy_max.largest * inverse_dy_scale, dy_y_size) / std::abs(mantissa);
    row.has_gradient = largest > 0 && std::isfinite(largest);
    row.is_finite = row.is_finite && std::isfinite(largest);
    T scale = 1;
    if (row.has_gradient) {
      scale = power_of_two_scale(largest);
      m_exponents[i] = exponent_of(scale) - exponent_of(D_scale);
      m_denominators[i] = std::abs(mantissa) * scale;
      m_sizes[i] = std::max(dy_size / m_denominators[i] * largest_value, dy_y_size / m_denominators[i]);
    }
    for (Index p = 0; p < d_v; p += P::size)
      (P::load(dy + p, d_v - p) * P::all(inverse_dy_scale) / P::all(mantissa) * P::all(1 / scale))
          .store(g + p, d_v - p);
    g[d_v] = -dy_y / mantissa / scale;
  }

  // sets A'_i, and turns the factor and the denominator of row i, which are for the scale of dy_i, into those for the
  // scale of all of dy
  void set_features(Index i) {
    const Row& row = m_rows[i];
    const int dy_exponent = row.dy_exponent - exponent_of(m_dy_scale);
    m_exponents[i] += dy_exponent;
    scale_by_power_of_two<T>(dy_exponent, m_denominators[i]);
    if (row.rounding == toeplitz::Rounding::per_row && m_exponents[i] > 0) {
      const T largest = row_max(row_of(m_saved.A, i).data(), m_A.cols()).largest;
      const int moved = std::clamp(exponent_of(scale_above(largest)) + m_exponents[i], 0,
                                   std::min(m_exponents[i], max_moved_exponent));
      m_exponents[i] -= moved;
      scale(writable_row(m_G, i), power_of_two<T>(moved));
      m_sizes[i] *= power_of_two<T>(moved);
      m_denominators[i] *= power_of_two<T>(-moved);
    }
    if (row.has_gradient || m_saved.denominator[i] == 0)
      std::ranges::copy(row_of(m_saved.A, i), writable_row(m_A, i).begin());
    else
      std::ranges::fill(writable_row(m_A, i), T(0));
    if (row.has_gradient) scale_by_power_of_two<T>(m_exponents[i], m_A.row(i));
  }

  // sets the values in U to zero that no row with a finite gradient attends to, and the scale to that of the remaining
  // values
  void leave_out_large_values(const PreparedPosition<T>& position, const Placement& keys, MatrixMap<T> U,
                              Workspace& workspace) {
    const Workspace::Scope scope(workspace);
    auto attended = workspace.template matrix<double>(U.rows(), 1);
    position.attendance().attended_keys(
        keys, [&](Index i, double* x) { x[0] = m_rows[i].has_finite_gradient() ? 1 : 0; }, attended, workspace);
    T largest = 0;
    for (Index j = 0; j < U.rows(); ++j) {
      T* v = writable_row(U, j).data();
      if (attended(j, 0) == 0) std::fill_n(v, m_dy.cols(), T(0));
      largest = std::max(largest, row_max(v, m_dy.cols()).largest);
    }
    m_value_scale = scale_above(largest);
  }

  const SavedSequence<T>& m_saved;
  const MatrixView<T>& m_dy;
  toeplitz::Rounding m_rounding;
  MatrixMap<T> m_A, m_G;
  const T* m_U;
  Row* m_rows;  // (n_q)
  int* m_exponents;
  T *m_sizes, *m_denominators;
  T m_value_scale, m_dy_scale = 1;
  int m_exponent = 0;
};

}  // namespace nprf
