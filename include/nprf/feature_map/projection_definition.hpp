// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/normal.hpp"
#include "nprf/feature_map/projection.hpp"

namespace nprf {

namespace detail {

// Orthonormalises Gaussian rows (m,d), m <= d. The result is the first m rows of a Haar distributed orthogonal matrix,
// because the triangular factor of this decomposition has a positive diagonal (F. Mezzadri, "How to generate random
// matrices from the classical compact groups", 2007). It is Gram-Schmidt with two passes for each row, which suffice
// for orthogonality to rounding (L. Giraud et al. 2005). Eigen's QR decomposition is not used because it is slow to
// compile.
template <Real T>
Matrix<T> haar_orthogonal(Matrix<T> q) {
  for (Index i = 0; i < q.rows(); ++i) {
    const auto row = writable_row(q, i);
    for (int pass = 0; pass < 2; ++pass)
      for (Index l = 0; l < i; ++l) add_scaled(row, -dot(row_of(q, i), row_of(q, l)), row_of(q, l));
    set_quotient(row, row, norm(row_of(q, i)));
  }
  return q;  // (m,d)
}

// Turns m orthonormal rows (m,d) into the m corners of a regular simplex around 0, of norm 1: sqrt(m / (m - 1)) times
// the rows minus their mean. A single row stays.
template <Real T>
Matrix<T> simplex_corners(Matrix<T> q) {
  const T m = static_cast<T>(q.rows());
  if (q.rows() < 2) return q;
  const Matrix<T> mean = q.colwise().mean();  // (1,d)
  for (Index i = 0; i < q.rows(); ++i)
    for (Index l = 0; l < q.cols(); ++l) q(i, l) = std::sqrt(m / (m - 1)) * (q(i, l) - mean(0, l));
  return q;  // (m,d)
}

}  // namespace detail

/// Draws the m x d projection in double, without a tilt. O(m d), with blocks of rows O(m d^2). Throws
/// InvalidArgument for sizes below 1 or whose product overflows, and for a projection that is not one of the
/// enumerators.
template <Real T = double>
Matrix<T> draw_untilted_rows(const FeatureOptions& options) {
  const Index d = options.input_dim, m = options.num_features;
  using enum Projection;
  const Projection projection = options.projection;
  const bool is_simplex = projection == simplex || projection == sphere_simplex,
             is_on_sphere = projection == sphere || projection == sphere_simplex,
             has_blocks = projection == orthogonal || is_simplex;
  require(projection == gaussian || is_on_sphere || has_blocks,
          "projection: expected gaussian, orthogonal, sphere, simplex or sphere_simplex, got number ",
          static_cast<int>(projection));
  require(d >= 1, "input_dim: expected at least 1, got ", d);
  require(m >= 1, "num_features: expected at least 1, got ", m);
  const Index most = std::numeric_limits<Index>::max() / static_cast<Index>(sizeof(double)) / d;
  require(m <= most, "num_features: expected at most ", most, " (for an input_dim of ", d, "), got ", m);

  NormalDeviates normal(options.seed);
  Matrix<T> w = normal.matrix(m, d);  // (m,d)
  const double radius = std::sqrt(static_cast<double>(d));
  if (projection == sphere) {
    for (Index r = 0; r < m; ++r) scale(writable_row(w, r), radius / norm(row_of(w, r)));
  } else if (has_blocks) {
    NormalDeviates directions(options.seed, 1);
    for (Index r = 0; r < m; r += d) {
      const Index rows = std::min(d, m - r);
      Matrix<T> q = detail::haar_orthogonal(directions.matrix(rows, d));  // (rows,d)
      if (is_simplex) q = detail::simplex_corners(std::move(q));
      for (Index i = 0; i < rows; ++i) {
        const double length = is_on_sphere ? radius : norm(row_of(w, r + i));
        set_scaled(writable_row(w, r + i), length, row_of(q, i));
      }
    }
  }
  return w;
}

template <Real T>
DrawnProjection<T> draw_tilted_projection(const FeatureOptions& options) {
  const Index d = options.input_dim;
  const auto& [axes, a] = options.tilt;
  require(axes.size() == 0 || (axes.rows() == d && axes.cols() == d), "tilt: expected axes of ", d, " x ", d, ", got ",
          axes.rows(), " x ", axes.cols());
  require(a.size() == axes.rows(), "tilt: expected ", axes.rows(), " constants a, got ", a.size());
  require(has_finite_entries(axes) && has_finite_entries(a) && (a.size() == 0 || a.maxCoeff() < 0.25),
          "tilt: expected finite axes and constants below 1/4, got others");
  Matrix<double> w = draw_untilted_rows(options);  // (m,d)
  if (axes.size() == 0) return {w.template cast<T>(), {}};
  Matrix<double> tilted(w.rows(), d);  // (m,d)
  Vector<double> offsets(w.rows());    // (m)
  double sum_of_logs = 0;
  for (Index l = 0; l < d; ++l) sum_of_logs += std::log(1 - 4 * a[l]) / 4;
  for (Index f = 0; f < w.rows(); ++f) {
    offsets[f] = sum_of_logs;
    for (Index l = 0; l < d; ++l) {
      offsets[f] += a[l] * w(f, l) * w(f, l);
      w(f, l) *= std::sqrt(1 - 4 * a[l]);
    }
    for (Index l = 0; l < d; ++l) tilted(f, l) = dot(row_of(w, f), row_of(axes, l));
  }
  return {tilted.template cast<T>(), offsets.template cast<T>()};
}

template <Real T>
Matrix<T> draw_projection(const FeatureOptions& options) {
  return draw_tilted_projection<T>(options).rows;
}

}  // namespace nprf
