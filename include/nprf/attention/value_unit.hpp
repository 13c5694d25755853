// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/toeplitz/panel.hpp"

/// Powers of two in which values, and gradients of y, are taken where their products would overflow or underflow.
namespace nprf {

/// Values that are that many times as large as others are taken apart from them.
template <Real T>
inline constexpr T most_apart = sizeof(T) == sizeof(float) ? T(0x1p40) : T(0x1p300);

/// The largest size among the numbers of x that are finite; 0 if there is none. O(numbers).
template <class M, class T = typename M::Scalar>
T largest_finite(const M& x) {
  if (x.size() == 0) return 0;
  T largest = x.cwiseAbs().template maxCoeff<Eigen::PropagateNaN>();
  if (std::isfinite(largest)) return largest;
  largest = 0;
  for (Index i = 0; i < x.rows(); ++i)
    for (Index p = 0; p < x.cols(); ++p)
      if (const T size = std::abs(x(i, p)); size > largest && std::isfinite(size)) largest = size;
  return largest;
}

/// A power of two above a largest size, at most twice it; 1 for 0.
template <Real T>
T unit_above(T largest) {
  return largest > 0 ? toeplitz::unit_of(largest) : T(1);
}

/// The same of all finite numbers of x.
template <class M, class T = typename M::Scalar>
T unit_of_all(const M& x) {
  return unit_above(largest_finite(x));
}

/// The same if values (n_k,d_v) are so large or small that sums of a row overflow or lose digits; else 1.
template <Real T>
T extreme_unit(const MatrixView<T>& v) {
  const T unit = unit_of_all(v);
  return unit > most_apart<T> || unit * most_apart<T> < 1 ? unit : T(1);
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
