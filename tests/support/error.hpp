// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "nprf/core/types.hpp"

namespace nprf::test {

template <class T>
constexpr double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());

/// The largest |got - expected| / tolerance over all entries; a test requires at most 1. Infinity for a NaN or another
/// shape. A tolerance of 0 requires equality.
template <class Got, class Expected, class Tolerance>
double worst_ratio(const Eigen::MatrixBase<Got>& got, const Eigen::MatrixBase<Expected>& expected,
                   const Eigen::MatrixBase<Tolerance>& tolerance) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (got.rows() != expected.rows() || got.cols() != expected.cols()) return infinity;
  if (tolerance.rows() != expected.rows() || tolerance.cols() != expected.cols()) return infinity;
  double worst = 0;
  for (Index i = 0; i < got.rows(); ++i)
    for (Index p = 0; p < got.cols(); ++p) {
      const double error =
          std::abs(static_cast<double>(got.derived()(i, p)) - static_cast<double>(expected.derived()(i, p)));
      if (error == 0) continue;
      const double ratio = error / static_cast<double>(tolerance.derived()(i, p));
      if (!(ratio <= worst)) worst = std::isnan(ratio) ? infinity : ratio;
    }
  return worst;
}

/// The same, with one tolerance for all entries.
template <class Got, class Expected>
double worst_ratio(const Eigen::MatrixBase<Got>& got, const Eigen::MatrixBase<Expected>& expected, double tolerance) {
  return worst_ratio(got, expected, Matrix<double>::Constant(expected.rows(), expected.cols(), tolerance));
}

/// The maximum over rows of max |got - expected| / max |expected|; infinity for a NaN or another shape.
template <class Got, class Expected>
double largest_row_error(const Eigen::MatrixBase<Got>& got, const Eigen::MatrixBase<Expected>& expected) {
  Matrix<double> scale(expected.rows(), expected.cols());
  for (Index i = 0; i < expected.rows(); ++i) {
    double largest = 0;
    for (Index p = 0; p < expected.cols(); ++p)
      largest = std::max(largest, std::abs(static_cast<double>(expected.derived()(i, p))));
    scale.row(i).setConstant(largest);
  }
  return worst_ratio(got, expected, scale);
}

/// True if both have the same shape and the same bits: 0 and -0 differ, and a NaN equals itself.
template <class T>
bool same_bits(const Matrix<T>& a, const Matrix<T>& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return false;
  return a.size() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(T)) == 0;
}

}  // namespace nprf::test
