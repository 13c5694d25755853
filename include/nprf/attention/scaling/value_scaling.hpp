// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/pack.hpp"
#include "nprf/core/power_of_two.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"

/// Powers of two in which values, and gradients of y, are taken where their products would overflow or underflow.
namespace nprf {

/// Values that are that many times as large as others are taken apart from them.
template <Real T>
inline constexpr T most_apart = sizeof(T) == sizeof(float) ? T(0x1p40) : T(0x1p300);

/// The largest size among the finite numbers of a row, 0 if there is none, and whether all are finite.
template <Real T>
struct RowSize {
  T largest = 0;
  bool is_finite = true;
};

/// Of x (d). O(d).
template <Real T>
RowSize<T> row_size(const T* x, Index d) {
  auto sizes = Pack<T>::all(0);
  for (Index p = 0; p < d; p += Pack<T>::size) sizes = larger_or_nan(sizes, abs(Pack<T>::load(x + p, d - p)));
  RowSize<T> size{sizes.largest_or_nan(), true};
  if (std::isfinite(size.largest)) return size;
  size = {0, false};
  for (Index p = 0; p < d; ++p)
    if (std::isfinite(x[p])) size.largest = std::max(size.largest, std::abs(x[p]));
  return size;
}

/// A power of two above a largest size, at most twice it; 1 for 0.
template <Real T>
T unit_above(T largest) {
  return largest > 0 ? power_of_two_scale(largest) : T(1);
}

/// The same if the largest of all values is so large or small that sums of a row overflow or lose digits; else 1.
template <Real T>
T extreme_unit(T largest) {
  const T unit = unit_above(largest);
  return unit > most_apart<T> || unit * most_apart<T> < 1 ? unit : T(1);
}

/// The same of values whose rows have these sizes (n_k), if no row loses digits in it; else 1.
template <Real T>
T unit_that_keeps_digits(const Eigen::Ref<const Vector<T>>& sizes) {
  using Limits = std::numeric_limits<T>;
  T least = Limits::max(), largest = 0;
  for (const T size : sizes)
    if (size > 0) least = std::min(least, size), largest = std::max(largest, size);
  const T unit = unit_above(largest);
  return least / unit >= Limits::min() / Limits::epsilon() ? unit : T(1);
}

/// v / unit (n_k,d_v): v itself, or a copy in the team's workspace.
template <Real T>
MatrixView<T> in_units(const MatrixView<T>& v, T unit, const Team& team) {
  if (unit == 1) return v;
  auto scaled = team.workspace().template matrix<T>(v.rows(), v.cols());
  scaled = v / unit;
  return scaled;
}

}  // namespace nprf
