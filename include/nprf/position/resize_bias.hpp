// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "nprf/core/error.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

namespace detail {

/// The interpolation weights of four consecutive entries, for the point at a distance t in [0, 1) after the second.
using Taps = std::array<double, 4>;

inline Taps linear_taps(double t) { return {0, 1 - t, t, 0}; }

/// Cubic convolution with a = -3/4 (Keys 1981): the weight of an entry at distance s from the point is
///     (1-s) (1 + s - (a+2) s^2)  for s <= 1,    a (s-1) (2-s)^2  for 1 <= s <= 2
inline Taps cubic_taps(double t) {
  constexpr double a = -0.75;
  const double u = 1 - t;
  return {a * t * u * u, u * (1 + t - (a + 2) * t * t), t * (1 + u - (a + 2) * u * u), a * u * t * t};
}

/// Interpolates x (n,p) to (rows,p). Row i of the result is x at the row position (i + 1/2) n / rows - 1/2; before the
/// first row and after the last row of x, that row repeats. The position is computed in integers, so that resizing to
/// the same size returns the same numbers, and the centre row maps exactly to the centre row.
inline Matrix<double> resize_rows(const Matrix<double>& x, Index rows, Taps taps(double)) {
  const Index n = x.rows();
  Matrix<double> y = Matrix<double>::Zero(rows, x.cols());
  for (Index i = 0; i < rows; ++i) {
    const Index point = (2 * i + 1) * n + rows;  // in units of 1 / (2 rows), counted from row -1
    const Index before = point / (2 * rows) - 1;
    const Taps weight = taps(static_cast<double>(point % (2 * rows)) / static_cast<double>(2 * rows));
    for (Index k = 0; k < 4; ++k)
      add_scaled(writable_row(y, i), weight[static_cast<std::size_t>(k)],
                 row_of(x, std::clamp<Index>(before - 1 + k, 0, n - 1)));
  }
  return y;
}

}  // namespace detail

/// Resizes a table of 2R+1 scalars for the lags -R..R to `size` = 2R'+1 scalars for the lags -R'..R', by linear
/// interpolation.
///
/// The numbers are those of torch.nn.functional.interpolate(mode="linear", align_corners=False), computed in double.
/// Throws InvalidArgument unless b.size() and size are odd and all of b is finite. A window of -infinity cannot be
/// interpolated; set it again in the resized table. Time and memory O(b.size() + size).
template <OnlyReal T>
Vector<T> resize_bias(const Vector<T>& b, Index size) {
  require(b.size() % 2 == 1, "b: expected an odd number of scalars, 2n-1 for the lags -(n-1)..n-1, got ", b.size(),
          "; of 2n leave out the one of lag -n or n");
  require(size >= 1 && size % 2 == 1, "size: expected an odd number, at least 1, got ", size);
  for (Index l = 0; l < b.size(); ++l)
    require(std::isfinite(b[l]), "b[", l,
            "]: expected a finite number (a window of -infinity must be rebuilt at the new size), got ", b[l]);
  return detail::resize_rows(b.template cast<double>(), size, detail::linear_taps).template cast<T>();
}

/// Resizes the (2H-1) x (2W-1) table of an H x W grid to a height x width grid: (2 height - 1) x (2 width - 1) scalars,
/// by bicubic interpolation.
///
/// The numbers are those of torch.nn.functional.interpolate(mode="bicubic", align_corners=False), computed in double.
/// Throws InvalidArgument unless both extents of b are odd, height and width are at least 1 and all of b is finite. A
/// window of -infinity cannot be interpolated; set it again in the resized table. Time and memory are proportional to
/// the sizes of the two tables.
template <OnlyReal T>
Matrix<T> resize_bias(const Matrix<T>& b, Index height, Index width) {
  require(b.rows() % 2 == 1 && b.cols() % 2 == 1, "b: expected (2H-1) x (2W-1) scalars, both odd, got ", b.rows(),
          " x ", b.cols());
  require(height >= 1, "height: expected at least 1, got ", height);
  require(width >= 1, "width: expected at least 1, got ", width);
  for (Index r = 0; r < b.rows(); ++r)
    for (Index c = 0; c < b.cols(); ++c)
      require(std::isfinite(b(r, c)), "b(", r, ", ", c,
              "): expected a finite number (a window of -infinity must be rebuilt at the new size), got ", b(r, c));
  const Matrix<double> tall =
      detail::resize_rows(b.template cast<double>(), 2 * height - 1, detail::cubic_taps);  // (2height-1,2W-1)
  return detail::resize_rows(tall.transpose(), 2 * width - 1, detail::cubic_taps).transpose().template cast<T>();
}

}  // namespace nprf
