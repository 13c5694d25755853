// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "nprf/attention/saved.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/power_of_two.hpp"
#include "nprf/core/resize.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

/// Scales, powers of two, by which values and gradients of y are divided so that products with them neither overflow
/// nor underflow.
namespace nprf {

/// The largest ratio of values that one scale is used for: smaller values would lose precision.
template <Real T>
inline constexpr T max_scale_ratio = sizeof(T) == sizeof(float) ? T(0x1p40) : T(0x1p300);

/// The maximum magnitude of the finite entries of a row, 0 if there are none, and whether all entries are finite.
template <Real T>
struct RowMax {
  T largest = 0;
  bool is_finite = true;
};

/// Returns the RowMax of x (d). O(d).
template <Real T>
RowMax<T> row_max(const T* x, Index d) {
  auto sizes = Pack<T>::all(0);
  for (Index p = 0; p < d; p += Pack<T>::size) sizes = larger_or_nan(sizes, abs(Pack<T>::load(x + p, d - p)));
  RowMax<T> row{sizes.largest_or_nan(), true};
  if (std::isfinite(row.largest)) return row;
  row = {0, false};
  for (Index p = 0; p < d; ++p)
    if (std::isfinite(x[p])) row.largest = std::max(row.largest, std::abs(x[p]));
  return row;
}

/// Returns a power of two that is above `largest` and at most twice as large; 1 if `largest` is 0.
template <Real T>
T scale_above(T largest) {
  return largest > 0 ? power_of_two_scale(largest) : T(1);
}

/// Returns scale_above() if `largest` is so large or small that weighted sums of values would overflow or lose
/// precision; else 1.
template <Real T>
T extreme_scale(T largest) {
  const T scale = scale_above(largest);
  return scale > max_scale_ratio<T> || scale * max_scale_ratio<T> < 1 ? scale : T(1);
}

/// Returns scale_above() of the largest of the rows' maxima (n_k), if no row loses precision when it is divided by
/// that; else 1.
template <Real T>
T lossless_scale(std::span<const T> row_maxima) {
  using Limits = std::numeric_limits<T>;
  T least = Limits::max(), largest = 0;
  for (const T max : row_maxima)
    if (max > 0) least = std::min(least, max), largest = std::max(largest, max);
  const T scale = scale_above(largest);
  return least / scale >= Limits::min() / Limits::epsilon() ? scale : T(1);
}

/// v / scale (n_k,d_v): v itself if the scale is 1, else a copy in the team's workspace.
template <Real T>
MatrixView<T> divided_by_scale(const MatrixView<T>& v, T scale, const Team& team) {
  if (scale == 1) return v;
  auto scaled = team.workspace().template matrix<T>(v.rows(), v.cols());
  for (Index j = 0; j < v.rows(); ++j) set_quotient(writable_row(scaled, j), row_of(v, j), scale);
  return scaled;
}

/// The values of a sequence, divided by a power of two if they are so large or small that weighted sums of them would
/// overflow or lose precision.
template <Real T>
class ScaledValues {
 public:
  /// Scales v (n_k,d_v), which must be finite. `maxima` (n_k) has the largest |v| of each key, and is divided by the
  /// scale, too. If `may_scale` is false, the scale is 1. Refers to `maxima`, and to v or a copy of it in the team's
  /// workspace.
  ScaledValues(const MatrixView<T>& v, VectorMap<T> maxima, bool may_scale, const Team& team)
      : m_maxima(maxima.data(), static_cast<std::size_t>(maxima.size())),
        m_scale(may_scale ? extreme_scale(largest()) : T(1)),
        m_rows(divided_by_scale(v, m_scale, team)) {
    if (m_scale != 1) set_quotient(m_maxima, m_maxima, m_scale);
  }

  T scale() const { return m_scale; }
  const MatrixView<T>& rows() const { return m_rows; }  // v / scale()
  const T* maxima() const { return m_maxima.data(); }   // (n_k)  the largest magnitude in each row
  T largest() const { return largest_magnitude<T>(m_maxima); }

  /// Saves U = [v 1], its largest value and its exponent. In U, rows() are divided by one more power of two if they
  /// lose no precision by it. Returns that power, else 1; the caller has to divide y by it, too. O(n_k d_v).
  T save(SavedSequence<T>& saved, const Team& team) const {
    const Index n_k = m_rows.rows();
    const T scale = lossless_scale<T>(m_maxima), inverse_scale = 1 / scale;
    resize(saved.values.U, n_k, m_rows.cols() + 1);
    team.run_tiles(n_k, [&](Index j0, Index rows, Workspace&) {
      for (Index j = j0; j < j0 + rows; ++j) {
        const std::span<T> U = writable_row(saved.values.U, j);
        set_scaled(U.first(U.size() - 1), inverse_scale, row_of(m_rows, j));
        U.back() = 1;
      }
    });
    saved.values.largest = largest() * inverse_scale;
    saved.values.exponent = exponent_of(m_scale) + exponent_of(scale);
    return scale;
  }

 private:
  std::span<T> m_maxima;
  T m_scale;
  MatrixView<T> m_rows;
};

}  // namespace nprf
