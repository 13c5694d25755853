// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/QR>
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/normal.hpp"

namespace nprf {

/// How the rows w_1..w_m of a projection are drawn.
///
/// gaussian:   independent N(0, I_d).
/// orthogonal: blocks of d mutually orthogonal rows, each uniform in direction and with the norm of a Gaussian vector;
///             marginally N(0, I_d), so unbiased, with less variance (Choromanski et al. 2021).
/// sphere:     independent and uniform on the sphere of radius sqrt(d); biased, see E[exp(w.z)] = 0F1(; d/2; d|z|^2/4).
enum class Projection { gaussian, orthogonal, sphere };

struct FeatureOptions {
  Index input_dim;
  Index num_features;
  Projection projection = Projection::orthogonal;
  std::uint64_t seed = 0;
};

namespace detail {

// A Haar distributed orthogonal matrix: Q of a Gaussian matrix's QR, made unique by a positive diagonal of R
// (F. Mezzadri, "How to generate random matrices from the classical compact groups", 2007).
// A template, so that only those who draw compile it.
template <Real T>
Eigen::MatrixX<T> haar_orthogonal(Index d, NormalDeviates& normal) {
  const Eigen::MatrixX<T> gaussian = normal.matrix(d, d).template cast<T>();
  const Eigen::HouseholderQR<Eigen::MatrixX<T>> qr(gaussian);
  Eigen::MatrixX<T> q = qr.householderQ();
  for (Index j = 0; j < d; ++j)
    if (qr.matrixQR()(j, j) < 0) q.col(j) *= -1;
  return q;  // (d,d)
}

}  // namespace detail

/// Draws the m x d projection in double, then rounds it. O(m d), orthogonal O(m d^2). Throws InvalidArgument for sizes
/// below 1.
template <Real T>
Matrix<T> draw_projection(const FeatureOptions& options) {
  const Index d = options.input_dim, m = options.num_features;
  require(d >= 1, "input_dim: expected at least 1, got ", d);
  require(m >= 1, "num_features: expected at least 1, got ", m);

  NormalDeviates normal(options.seed);
  Matrix<double> w = normal.matrix(m, d);  // (m,d)
  if (options.projection == Projection::sphere) {
    for (Index r = 0; r < m; ++r) w.row(r) *= std::sqrt(static_cast<double>(d)) / w.row(r).norm();
  } else if (options.projection == Projection::orthogonal) {
    NormalDeviates directions(options.seed, 1);
    for (Index r = 0; r < m; r += d) {
      const Eigen::MatrixXd q = detail::haar_orthogonal<double>(d, directions);  // (d,d)
      const Index rows = std::min(d, m - r);
      for (Index i = 0; i < rows; ++i) w.row(r + i) = w.row(r + i).norm() * q.row(i);
    }
  }
  return w.template cast<T>();
}

}  // namespace nprf
