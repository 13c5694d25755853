// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Jacobi>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "nprf/core/power_of_two.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

/// Eigenvalues (d) in increasing order, and their eigenvectors (d,d): one a row, of norm 1 and orthogonal.
template <Real T>
struct Eigenvectors {
  Vector<T> values;
  Matrix<T> vectors;
};

namespace detail {

// turns S (d,d) into R, upper triangular with S = R^T R. Pivots below `least` count as `least`
template <Real T>
void set_cholesky_factor(Matrix<T>& s, T least) {
  const auto from = [&](Index i, Index l) { return writable_row(s, i).subspan(static_cast<std::size_t>(l)); };
  for (Index p = 0; p < s.rows(); ++p) {
    std::fill_n(&s(p, 0), p, T(0));
    scale(from(p, p), 1 / std::sqrt(std::max(s(p, p), least)));
    for (Index i = p + 1; i < s.rows(); ++i) add_scaled<T>(from(i, i), -s(p, i), from(p, i));
  }
}

// makes the rows of w orthogonal by plane rotations of two rows each, and returns their squared norms
template <Real T>
std::vector<T> make_rows_orthogonal(Matrix<T>& w) {
  std::vector<T> squares(static_cast<std::size_t>(w.rows()));
  bool is_done = false;
  for (int sweep = 0; sweep < 30 && !is_done; ++sweep) {
    is_done = true;
    for (Index p = 0; p < w.rows(); ++p) squares[static_cast<std::size_t>(p)] = dot(row_of(w, p), row_of(w, p));
    for (Index p = 0; p < w.rows(); ++p)
      for (Index q = p + 1; q < w.rows(); ++q) {
        T &a = squares[static_cast<std::size_t>(p)], &b = squares[static_cast<std::size_t>(q)];
        const T product = dot(row_of(w, p), row_of(w, q));
        if (std::abs(product) <= 4 * std::numeric_limits<T>::epsilon() * std::sqrt(a * b)) continue;
        is_done = false;
        Eigen::JacobiRotation<T> rotation;
        rotation.makeJacobi(a, product, b);
        w.applyOnTheLeft(p, q, rotation.adjoint());
        const T c = rotation.c(), s = rotation.s(), cross = 2 * c * s * product;
        std::tie(a, b) = std::pair(c * c * a + s * s * b - cross, s * s * a + c * c * b + cross);
      }
  }
  return squares;
}

}  // namespace detail

/// Returns the eigenvalues and eigenvectors of a symmetric matrix S (d,d) of finite scalars that has no negative
/// eigenvalues.
///
/// Plane rotations of rows turn the Cholesky factor R, S = R^T R, into W with orthogonal rows (the one-sided method of
/// Jacobi, M. R. Hestenes 1958, on the factor: K. Veselic and V. Hari 1989). S = W^T W then has the rows of W as
/// eigenvectors, and their squared norms as eigenvalues. R exists even if S is singular, because a few roundings of |S|
/// are added to its diagonal, which changes no eigenvector. O(d^3) for each sweep over all pairs of rows, of at most
/// 30.
template <Real T>
Eigenvectors<T> eigenvectors(const Matrix<T>& s) {
  const Index d = s.rows();
  const T largest = largest_magnitude(entries_of(s)),
          unit = largest > 0 ? power_of_two_scale(largest) : T(1),  // so that no square overflows or underflows
      shift = static_cast<T>(d) * std::numeric_limits<T>::epsilon();
  Matrix<T> w = s;
  for (Index p = 0; p < d; ++p) {
    scale(writable_row(w, p), 1 / unit);
    w(p, p) += shift;
  }
  detail::set_cholesky_factor(w, shift);
  const std::vector<T> squares = detail::make_rows_orthogonal(w);
  std::vector<std::size_t> order(squares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t p) { return squares[p]; });
  Eigenvectors<T> result{Vector<T>(d), Matrix<T>::Zero(d, d)};
  for (Index l = 0; l < d; ++l) {
    const std::size_t p = order[static_cast<std::size_t>(l)];
    result.values[l] = std::max(squares[p] - shift, T(0)) * unit;
    add_scaled(writable_row(result.vectors, l), 1 / std::sqrt(squares[p]), row_of(w, static_cast<Index>(p)));
  }
  return result;
}

}  // namespace nprf
