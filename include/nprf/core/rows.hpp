// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include "nprf/core/types.hpp"

/// Sums and updates of rows, each compiled once for a scalar. Eigen's expressions say the same, but each is a type of
/// its own, and g++ takes a tenth of a second for a type.
namespace nprf {

/// Row i of a matrix with adjacent columns, to read.
template <class M>
auto row_of(const M& x, Index i) {
  return std::span<const typename M::Scalar>(x.data() + i * x.outerStride(), static_cast<std::size_t>(x.cols()));
}
/// The same to write.
template <class M>
auto writable_row(M&& x, Index i) {
  return std::span(x.data() + i * x.outerStride(), static_cast<std::size_t>(x.cols()));
}

namespace detail {

template <class T>
auto vector_of(std::span<const T> x) {
  return Eigen::Map<const Vector<T>>(x.data(), static_cast<Index>(x.size()));
}
template <class T>
auto vector_of(std::span<T> x) {
  return Eigen::Map<Vector<T>>(x.data(), static_cast<Index>(x.size()));
}

}  // namespace detail

/// x.y of rows of the same length.
template <class T>
T dot(std::span<const T> x, std::span<const T> y) {
  return detail::vector_of(x).dot(detail::vector_of(y));
}

/// |x|^2.
template <class T>
T squared_norm(std::span<const T> x) {
  return detail::vector_of(x).squaredNorm();
}

/// The largest |x_l|, 0 for an empty row. A NaN may be overlooked.
template <class T>
T largest_magnitude(std::span<const T> x) {
  return x.empty() ? 0 : detail::vector_of(x).cwiseAbs().maxCoeff();
}

/// Whether all entries are finite.
template <class T>
bool is_finite(std::span<const T> x) {
  return (detail::vector_of(x) - detail::vector_of(x)).sum() == 0;
}

/// y += c x.
template <class T>
void add_scaled(std::span<T> y, T c, std::span<const T> x) {
  detail::vector_of(y) += c * detail::vector_of(x);
}

/// x *= c.
template <class T>
void scale(std::span<T> x, T c) {
  detail::vector_of(x) *= c;
}

}  // namespace nprf
