// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <type_traits>

#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"

/// Sums and updates of rows, each compiled once for a scalar. An expression of Eigen in the caller's code would be a
/// type of its own, which takes time to compile.
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

/// The largest |x_l|, 0 for an empty row. A NaN may be overlooked.
template <class T>
T largest_magnitude(std::span<const T> x) {
  return x.empty() ? 0 : detail::vector_of(x).cwiseAbs().maxCoeff();
}

template <class T>
bool is_finite(std::span<const T> x) {
  return (detail::vector_of(x) - detail::vector_of(x)).sum() == 0;
}

/// x.y of rows of the same length, with products and sums in double.
template <class T>
double dot_in_double(std::span<const T> x, std::span<const T> y) {
  return detail::vector_of(x).template cast<double>().dot(detail::vector_of(y).template cast<double>());
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

template <class T>
T sum(std::span<const T> x) {
  return detail::vector_of(x).sum();
}

/// All entries of a matrix or vector of its own storage.
template <class X>
auto entries_of(const Eigen::PlainObjectBase<X>& x) {
  return std::span<const typename X::Scalar>(x.data(), static_cast<std::size_t>(x.size()));
}

template <class X>
bool has_finite_entries(const X& x) {
  const auto size = static_cast<std::size_t>(x.innerSize());
  for (Index i = 0; i < x.outerSize(); ++i)
    if (!is_finite(std::span<const typename X::Scalar>(x.data() + i * x.outerStride(), size))) return false;
  return true;
}

/// x (n,d), or a copy in the workspace in which rows that are not finite are zero: products with such a row would be
/// NaN even with a weight of 0. O(n d).
template <Real T>
MatrixView<T> finite_rows(const std::type_identity_t<MatrixView<T>>& x, Workspace& workspace) {
  Index i = 0;
  while (i < x.rows() && is_finite(row_of(x, i))) ++i;
  if (i == x.rows()) return x;
  auto finite = workspace.matrix<T>(x.rows(), x.cols());
  finite = x;
  for (; i < x.rows(); ++i)
    if (!is_finite(row_of(x, i))) std::ranges::fill(writable_row(finite, i), T(0));
  return finite;
}

/// The rows scale_i x_i of x (n,d).
template <class T>
Matrix<T> rows_scaled_by(std::span<const T> scale_of_row, Matrix<T> x) {
  for (Index i = 0; i < x.rows(); ++i) scale(writable_row(x, i), scale_of_row[static_cast<std::size_t>(i)]);
  return x;
}

/// The rows of x (n,d) with the given indices.
template <class M>
Matrix<typename M::Scalar> selected_rows(const M& x, std::span<const Index> indices) {
  Matrix<typename M::Scalar> some(static_cast<Index>(indices.size()), x.cols());
  for (Index l = 0; l < some.rows(); ++l)
    std::ranges::copy(row_of(x, indices[static_cast<std::size_t>(l)]), writable_row(some, l).begin());
  return some;
}

/// The mean (d) of the rows of x (n,d).
template <class T>
Vector<T> mean_row(const Matrix<T>& x) {
  Vector<T> mean = Vector<T>::Zero(x.cols());
  const std::span sum(mean.data(), static_cast<std::size_t>(mean.size()));
  for (Index i = 0; i < x.rows(); ++i) add_scaled(sum, T(1), row_of(x, i));
  for (T& entry : sum) entry /= static_cast<T>(x.rows());
  return mean;
}

/// A^T B of A (n,a) and B (n,b), in O(n a b). Large products are faster with core/gemm.hpp.
template <class T>
Matrix<T> transposed_product(const Matrix<T>& a, const Matrix<T>& b) {
  Matrix<T> c = Matrix<T>::Zero(a.cols(), b.cols());
  for (Index i = 0; i < a.rows(); ++i)
    for (Index l = 0; l < a.cols(); ++l) add_scaled(writable_row(c, l), a(i, l), row_of(b, i));
  return c;
}

/// |x|.
template <class T>
T norm(std::span<const T> x) {
  return detail::vector_of(x).norm();
}
/// The largest |x_i| of the finite rows of x (n,d), whose squares are summed in double; 0 if there is none.
template <class X>
double largest_norm(const X& x) {
  double square = 0;
  for (Index i = 0; i < x.rows(); ++i)
    if (const auto row = row_of(x, i); is_finite(row)) square = std::max(square, dot_in_double(row, row));
  return std::sqrt(square);
}
/// norms_i = |x_i| for the rows of x (n,d).
template <Real T>
void set_norms(T* norms, const std::type_identity_t<MatrixView<T>>& x) {
  for (Index i = 0; i < x.rows(); ++i) norms[i] = norm(row_of(x, i));
}

/// y = c x. y may be x.
template <class T>
void set_scaled(std::span<T> y, T c, std::type_identity_t<std::span<const T>> x) {
  detail::vector_of(y) = c * detail::vector_of(x);
}

/// y = x / c. y may be x.
template <class T>
void set_quotient(std::span<T> y, std::type_identity_t<std::span<const T>> x, T c) {
  detail::vector_of(y) = detail::vector_of(x) / c;
}

/// xs_i = scale_i x_i for the rows of x (n,d), into the caller's xs (n,d), by a team. scale (n) must have one factor
/// for each row. O(n d).
template <Real T>
void scale_rows(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> xs, const Team& team) {
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace&) {
    for (Index i = i0; i < i0 + rows; ++i) set_scaled(writable_row(xs, i), scale.data()[i], row_of(x, i));
  });
}

/// A subset of the rows of a matrix, for example of those of all queries.
class RowSubset {
 public:
  /// The rows with these indices, which must increase.
  RowSubset(std::span<const Index> indices, const Team& team) : m_indices(indices), m_team(team) {}

  /// All n rows. Their indices are in the workspace.
  static RowSubset all(Index n, const Team& team) {
    Index* indices = team.workspace().take<Index>(n);
    std::iota(indices, indices + n, Index{0});
    return {{indices, static_cast<std::size_t>(n)}, team};
  }

  Index count() const { return static_cast<Index>(m_indices.size()); }
  /// The index in the matrix of the i-th row of the subset.
  Index index(Index i) const { return m_indices[static_cast<std::size_t>(i)]; }

  /// Returns a copy of these rows of x, in the workspace.
  template <Real T>
  MatrixMap<T> of(const MatrixView<T>& x) const {
    auto rows = m_team.workspace().matrix<T>(count(), x.cols());
    m_team.run_tiles(count(), [&](Index i0, Index n, Workspace&) {
      for (Index i = i0; i < i0 + n; ++i) std::ranges::copy(row_of(x, index(i)), writable_row(rows, i).begin());
    });
    return rows;
  }

  /// Copies `rows`, one for each of the subset, to these rows of x.
  template <Real T>
  void put(const MatrixView<T>& rows, MatrixRef<T> x) const {
    m_team.run_tiles(count(), [&](Index i0, Index n, Workspace&) {
      for (Index i = i0; i < i0 + n; ++i) std::ranges::copy(row_of(rows, i), writable_row(x, index(i)).begin());
    });
  }

 private:
  std::span<const Index> m_indices;
  const Team& m_team;
};

}  // namespace nprf
