// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/normal.hpp"
#include "nprf/feature_map/projection.hpp"

namespace nprf {

namespace detail {

// Orthonormalises Gaussian rows (m,d), m <= d. The result is the first m rows of a Haar distributed orthogonal matrix,
// because the triangular factor of this decomposition has a positive diagonal (F. Mezzadri, "How to generate random
// matrices from the classical compact groups", 2007). It is Gram-Schmidt with two passes for each row, which suffice
// for orthogonality to rounding (L. Giraud et al. 2005). Eigen's QR would add seconds to the compilation of every
// program that draws features.
inline Matrix<double> haar_orthogonal(Matrix<double> q) {
  for (Index i = 0; i < q.rows(); ++i) {
    for (int pass = 0; pass < 2; ++pass)
      for (Index l = 0; l < i; ++l) q.row(i) -= q.row(i).dot(q.row(l)) * q.row(l);
    q.row(i).normalize();
  }
  return q;  // (m,d)
}

// Turns m orthonormal rows (m,d) into the m corners of a regular simplex around 0, of norm 1: the rows minus their
// mean, which has the norm 1 / sqrt(m). A single row stays.
inline Matrix<double> simplex_corners(Matrix<double> q) {
  const double m = static_cast<double>(q.rows());
  if (q.rows() < 2) return q;
  const Matrix<double> mean = q.colwise().mean();  // (1,d)
  for (Index i = 0; i < q.rows(); ++i) q.row(i) = std::sqrt(m / (m - 1)) * (q.row(i) - mean);
  return q;  // (m,d)
}

}  // namespace detail

/// Draws the m x d projection in double, without a tilt. O(m d), with blocks of rows O(m d^2). Throws
/// InvalidArgument for sizes below 1 or whose product overflows, and for a projection that is not one of the
/// enumerators.
inline Matrix<double> draw_untilted_rows(const FeatureOptions& options) {
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
  Matrix<double> w = normal.matrix(m, d);  // (m,d)
  const double radius = std::sqrt(static_cast<double>(d));
  if (projection == sphere) {
    for (Index r = 0; r < m; ++r) w.row(r) *= radius / w.row(r).norm();
  } else if (has_blocks) {
    NormalDeviates directions(options.seed, 1);
    for (Index r = 0; r < m; r += d) {
      const Index rows = std::min(d, m - r);
      Matrix<double> q = detail::haar_orthogonal(directions.matrix(rows, d));  // (rows,d)
      if (is_simplex) q = detail::simplex_corners(std::move(q));
      for (Index i = 0; i < rows; ++i) w.row(r + i) = (is_on_sphere ? radius : w.row(r + i).norm()) * q.row(i);
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
  require((a.array() < 0.25).all() && axes.allFinite() && a.allFinite(),
          "tilt: expected finite axes and constants below 1/4, got others");
  Matrix<double> w = draw_untilted_rows(options);  // (m,d)
  if (axes.size() == 0) return {w.template cast<T>(), {}};
  const Vector<double> stretch = (1 - 4 * a.array()).sqrt();
  const Vector<double> offsets = (w.array().square().matrix() * a).array() + stretch.array().log().sum() / 2;  // (m)
  // not a product of Eigen's, which would add a second to the compilation of every program that draws features
  Matrix<double> tilted(w.rows(), w.cols());  // (m,d)
  for (Index f = 0; f < w.rows(); ++f)
    for (Index l = 0; l < w.cols(); ++l)
      tilted(f, l) = (w.row(f).array() * stretch.transpose().array() * axes.row(l).array()).sum();
  return {tilted.template cast<T>(), offsets.template cast<T>()};
}

template <Real T>
Matrix<T> draw_projection(const FeatureOptions& options) {
  return draw_tilted_projection<T>(options).rows;
}

}  // namespace nprf
