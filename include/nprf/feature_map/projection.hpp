// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "nprf/core/types.hpp"
#include "nprf/feature_map/tilt.hpp"

namespace nprf {

/// How the rows w_1..w_m of a projection are drawn.
///
/// gaussian:   independent N(0, I_d).
/// orthogonal: blocks of d mutually orthogonal rows, each uniform in direction and with the norm of a Gaussian vector;
///             marginally N(0, I_d), so unbiased, with less variance (Choromanski et al. 2021).
/// sphere:     independent and uniform on the sphere of radius sqrt(d); biased: for a vector z, E[exp(w.z)] is
///             0F1(; d/2; d|z|^2/4), where Gaussian rows have exp(|z|^2/2).
/// simplex:    blocks of d rows that point to the corners of a randomly rotated regular simplex, so that the cosine of
///             two rows is -1/(rows of the block - 1); marginally N(0, I_d), so unbiased. With positive features it has
///             the least variance of the unbiased ones (Reid et al. 2023).
/// sphere_simplex:
///             the corners of such a simplex of radius sqrt(d). Each row has the distribution of a row of `sphere`, so
///             that the bias is the same; the rows of a block of two or more sum to 0. In bench/accuracy.md it is the
///             most accurate one for positive features of queries and keys of norm 1.
enum class Projection { gaussian, orthogonal, sphere, simplex, sphere_simplex };

/// Options of a map with random vectors.
struct FeatureOptions {
  Index input_dim;     // d, the channels of queries and keys
  Index num_features;  // m, the random vectors: a positive map has m features, a hyperbolic or trigonometric one 2m
  Projection projection = Projection::orthogonal;
  std::uint64_t seed = 0;  // of Philox, which draws the same integers on every machine
  Tilt tilt = {};          // of positive and hyperbolic features
};

/// Rows W (m,d) and offsets o (m): with a tilt, the exponents of features are W x + o. Without a tilt there are no
/// offsets.
template <Real T>
struct DrawnProjection {
  Matrix<T> rows;
  Vector<T> offsets;
};

/// Draws the rows in double, applies options.tilt (tilt.hpp), and rounds the result to T. Throws InvalidArgument if
/// input_dim or num_features is below 1 or their product overflows, for a projection that is not one of the
/// enumerators, and for a tilt that is not finite, whose axes are neither empty nor d x d, that has not one a_l for
/// each axis, or an a_l that is not below 1/4.
template <Real T>
DrawnProjection<T> draw_tilted_projection(const FeatureOptions& options);

/// The rows of draw_tilted_projection().
template <Real T>
Matrix<T> draw_projection(const FeatureOptions& options);

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/projection_definition.hpp"
#endif
