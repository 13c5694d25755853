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
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Whether a row's share in the gradients of keys, values and biases is added by an engine whose rows share an FFT's
/// rounding, or is a sum of its own.
enum class SummedBy : char { transforms, tiles };

/// What backward's product takes, in powers of two: relative to them no value that counts and no entry of dy is above
/// 1, and neither dy / D nor what comes of it overflows or underflows. A row's factor goes to its features:
///
///     A'_i = f_i A_i    G_i = [dy_i  -(dy_i.y_i)] / (D_i f_i)    dA_i = f_i dA'_i
///
/// G_i is at most 1 where transforms add up the rows. By tiles A'_i is at most 1, too, as far as G_i may grow: where
/// D_i is small because all c[j-i] are, c[j-i] (G_i.U_j) would underflow beside a large A'_i. Rows without gradient are
/// zero, but for the features of those that were computed one by one, whose factor is dy's alone
/// (fallback/row_recompute.hpp). Entries of G that are not finite have no part in what the others are measured by.
template <Real T>
class GradientUnits {
 public:
  /// Of the rows that have a gradient, added up `by` such (repaired ones by tiles), and of the values that those attend
  /// to whose gradient is finite; other rows of values become zero where they are far larger, and the unit is that of
  /// the values that are left. Refers to what was saved and to dy (n_q,d_v), and lies in the team's workspace. O(n_q (r
  /// + d_v)), and n_k d_v and n log n where values are far apart.
  GradientUnits(const SavedSequence<T>& saved, const MatrixView<T>& dy, SummedBy by, const PreparedPosition<T>& weights,
                const Placement& keys, const Team& team)
      : m_saved(saved),
        m_dy(dy),
        m_by(by),
        m_A(team.workspace().template matrix<T>(saved.A.rows(), saved.A.cols())),
        m_G(team.workspace().template matrix<T>(dy.rows(), dy.cols() + 1)),
        m_U(saved.U.data()),
        m_rows(team.workspace().template take<Row>(dy.rows())),
        m_factors(team.workspace().template take<int>(dy.rows())),
        m_sizes(team.workspace().template take<T>(dy.rows())),
        m_sums(team.workspace().template take<T>(dy.rows())),
        m_of_values(unit_above(saved.largest_value)) {
    set_gradients([](Index) { return true; }, team);
    T largest = 0, largest_dy = 0;
    for (Index i = 0; i < dy.rows(); ++i) {
      const Row& row = m_rows[i];
      if (row.has_weights) largest_dy = std::max(largest_dy, row.largest_dy);
      if (row.counts()) largest = std::max(largest, saved.largest_values[i]);
    }
    const bool are_far = m_of_values / most_apart<T> > largest;
    if (are_far || m_of_values != 1) {
      auto U = team.workspace().template matrix<T>(saved.U.rows(), saved.U.cols());
      U = saved.U;
      if (are_far) leave_out_unseen(weights, keys, U, team.workspace());
      U.leftCols(dy.cols()) /= m_of_values;
      m_U = U.data();
    }
    // what other rows see may be no number in this unit
    if (are_far) set_gradients([this](Index i) { return m_rows[i].counts(); }, team);
    m_of_dy = unit_above(largest_dy);
    m_exponent = exponent_of(m_of_values) + exponent_of(m_of_dy) + saved.unit;
    team.run_tiles(dy.rows(), [&](Index i0, Index count, Workspace&) {
      for (Index i = i0; i < i0 + count; ++i) set_features(i);
    });
  }

  MatrixMap<T> A() const { return m_A; }  // A' (n_q,r)
  MatrixMap<T> G() const { return m_G; }  // (n_q,d_v+1)
  /// [v 1] (n_k,d_v+1) in the values' unit.
  Eigen::Map<const Matrix<T>> U() const { return {m_U, m_saved.U.rows(), m_saved.U.cols()}; }

  T of_values() const { return m_of_values; }
  T of_dy() const { return m_of_dy; }
  T of_dy(Index i) const { return power_of_two<T>(m_rows[i].of_dy); }
  /// The exponent of what is a product of values and dy, the unit that values were saved in included.
  int exponent() const { return m_exponent; }

  const int* factors() const { return m_factors; }  // log2 f_i (n_q)
  const T* sizes() const { return m_sizes; }        // s_i, which G_i is measured by (n_q)
  const T* sums() const { return m_sums; }          // sum_j c[j-i] A'_i.B_j = D_i f_i (n_q)
  /// Whether no entry of G_i is NaN or infinite.
  bool is_finite(Index i) const {
    return m_saved.denominator[i] == 0 || (m_rows[i].is_finite && m_rows[i].has_weights);
  }

 private:
  // 2^most_lifted is far from overflow; a D that is sound beside features of 1 is no smaller than its inverse
  static constexpr int most_lifted = std::numeric_limits<T>::max_exponent / 2;

  struct Row {
    T largest_dy;  // of those that are finite
    int of_dy;     // the exponent of a unit above it
    bool is_finite, has_weights, has_gradient;
    SummedBy by;

    bool counts() const { return has_weights && is_finite && largest_dy > 0; }
  };

  template <class Which>
  void set_gradients(Which&& which, const Team& team) {
    team.run_tiles(m_dy.rows(), [&](Index i0, Index count, Workspace&) {
      for (Index i = i0; i < i0 + count; ++i)
        if (which(i)) set_gradient(i);
    });
    for (const Index i : m_saved.repaired) m_rows[i].has_weights = true, m_rows[i].by = SummedBy::tiles;
  }

  // G_i, with its factor, size and sum as if the unit of dy_i were that of all
  void set_gradient(Index i) {
    using P = Pack<T>;
    const Index d_v = m_dy.cols();
    const T *dy = m_dy.row(i).data(), *y = m_saved.y.row(i).data(), D = m_saved.denominator[i];
    const RowSize<T> of_row = row_size(dy, d_v);
    const T unit_of_dy = unit_above(of_row.largest), to_unit = 1 / unit_of_dy;
    P dots = P::all(0), sizes = P::all(0);
    for (Index p = 0; p < d_v; p += P::size) {
      const P some = P::load(dy + p, d_v - p) * P::all(to_unit);
      dots = multiply_add(some, P::load(y + p, d_v - p) * P::all(1 / m_of_values), dots);
      sizes = sizes + abs(some);
    }
    const T dy_y = dots.sum();
    T sum = sizes.sum(), of_ones = std::abs(dy_y), of_values = m_saved.largest_values[i] / m_of_values;
    Row& row = m_rows[i];
    row = {
        of_row.largest, exponent_of(unit_of_dy), std::isfinite(sum + of_ones), D != 0 && std::isfinite(D), false, m_by};
    m_factors[i] = 0;
    m_sizes[i] = m_sums[i] = 0;
    T* g = m_G.row(i).data();
    if (D == 0) {
      std::fill_n(g, d_v + 1, T(0));
      return;
    }

    if (!row.is_finite) {
      sum = 0;
      for (Index p = 0; p < d_v; ++p)
        if (std::isfinite(dy[p])) sum += std::abs(dy[p] * to_unit);
      of_values = 1;  // only dv is left, which knows of no values
      if (!std::isfinite(of_ones)) of_ones = 0;
    }
    const T unit_of_D = power_of_two_scale(std::abs(D)), mantissa = D / unit_of_D;  // of 1/2 to 1
    const T largest = std::max(of_row.largest * to_unit, of_ones) / std::abs(mantissa);
    row.has_gradient = largest > 0 && std::isfinite(largest);
    row.is_finite = row.is_finite && std::isfinite(largest);
    T unit = 1;
    if (row.has_gradient) {
      unit = power_of_two_scale(largest);
      m_factors[i] = exponent_of(unit) - exponent_of(unit_of_D);
      m_sums[i] = std::abs(mantissa) * unit;
      m_sizes[i] = std::max(sum / m_sums[i] * of_values, of_ones / m_sums[i]);
    }
    for (Index p = 0; p < d_v; p += P::size)
      (P::load(dy + p, d_v - p) * P::all(to_unit) / P::all(mantissa) * P::all(1 / unit)).store(g + p, d_v - p);
    g[d_v] = -dy_y / mantissa / unit;
  }

  // A'_i, and the rest in the unit of all of dy
  void set_features(Index i) {
    const Row& row = m_rows[i];
    const int of_dy = row.of_dy - exponent_of(m_of_dy);
    m_factors[i] += of_dy;
    scale_by_power_of_two<T>(of_dy, m_sums[i]);
    if (row.by == SummedBy::tiles && m_factors[i] > 0) {
      const T largest = row_size(m_saved.A.row(i).data(), m_A.cols()).largest;
      const int lifted =
          std::clamp(exponent_of(unit_above(largest)) + m_factors[i], 0, std::min(m_factors[i], most_lifted));
      m_factors[i] -= lifted;
      m_G.row(i) *= power_of_two<T>(lifted);
      m_sizes[i] *= power_of_two<T>(lifted);
      m_sums[i] *= power_of_two<T>(-lifted);
    }
    if (row.has_gradient || m_saved.denominator[i] == 0)
      m_A.row(i) = m_saved.A.row(i);
    else
      m_A.row(i).setZero();
    if (row.has_gradient) scale_by_power_of_two<T>(m_factors[i], m_A.row(i));
  }

  // values of U become zero that no row attends to which counts; the unit becomes that of the others
  void leave_out_unseen(const PreparedPosition<T>& weights, const Placement& keys, MatrixMap<T> U,
                        Workspace& workspace) {
    const Workspace::Scope scope(workspace);
    auto seen = workspace.template matrix<double>(U.rows(), 1);
    weights.attendance().attended_keys(
        keys, [&](Index i, auto&& x) { x[0] = m_rows[i].counts() ? 1 : 0; }, seen, workspace);
    T largest = 0;
    for (Index j = 0; j < U.rows(); ++j) {
      if (seen(j, 0) == 0) U.row(j).head(m_dy.cols()).setZero();
      largest = std::max(largest, row_size(U.row(j).data(), m_dy.cols()).largest);
    }
    m_of_values = unit_above(largest);
  }

  const SavedSequence<T>& m_saved;
  const MatrixView<T>& m_dy;
  SummedBy m_by;
  MatrixMap<T> m_A, m_G;
  const T* m_U;
  Row* m_rows;  // (n_q)
  int* m_factors;
  T *m_sizes, *m_sums;
  T m_of_values, m_of_dy = 1;
  int m_exponent = 0;
};

}  // namespace nprf
