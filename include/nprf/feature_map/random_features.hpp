// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>

#include "nprf/core/types.hpp"
#include "nprf/feature_map/projection.hpp"

namespace nprf {

class Team;

/// The base class of random feature maps. It owns the projection W (m,d), which queries and keys share, and computes
/// the products of rows with it.
template <Real T>
class RandomFeatures {
 public:
  using Scalar = T;
  static constexpr bool has_independent_rows = true;

  /// Draws the projection (draw_projection). Throws InvalidArgument for sizes below 1.
  explicit RandomFeatures(const FeatureOptions& options);

  /// Uses the caller's rows (m,d) as the projection. Throws InvalidArgument if there are none, or for a NaN or an
  /// infinity.
  template <class Rows>
  explicit RandomFeatures(const Eigen::MatrixBase<Rows>& rows) : RandomFeatures(Matrix<T>(rows), FromCaller()) {
    static_assert(std::same_as<typename Rows::Scalar, T>,
                  "nprf: the rows of a projection must have the scalar type of their feature map");
  }

  Index input_dim() const { return m_w.cols(); }
  Index num_features() const { return m_w.rows(); }
  const Matrix<T>& projection() const { return m_w; }
  /// The offsets (m) of a tilt: the exponents of features are projection() x + offsets(). Empty without a tilt.
  Eigen::Map<const Vector<T>> offsets() const {
    return {m_offsets.data(), m_offsets.size() > 0 ? num_features() : Index{0}};
  }

  /// The error bound of a feature for rows of at most that norm, relative to the feature, or to |phi| if features can
  /// be negative. It covers the rounding of w.x, a sum of d terms, and of |x|^2/2.
  double relative_error(double norm) const;

  /// The options that the projection was drawn with. Throws InvalidArgument if the caller gave the projection.
  const FeatureOptions& options() const;

 protected:
  // Calls emit(i0, z, h) for each tile of rows of x, from row i0 on. x_i is row i of the tile, multiplied by its scale:
  //     z = x W^T (rows,m)    h_i = |x_i|^2 / 2
  // The rows of z are padded to whole packs; the padding repeats the last projection.
  template <class Emit>
  void project(const MatrixView<T>& x, RowScale<T> scale, const Team& team, Emit&& emit) const;

 private:
  struct FromCaller {};
  RandomFeatures(Matrix<T> rows, FromCaller);
  explicit RandomFeatures(DrawnProjection<T> drawn);

  Matrix<T> m_w;        // (m,d)
  Matrix<T> m_wt;       // W^T (d,m), padded to whole packs of columns
  Vector<T> m_offsets;  // (m), padded like the columns of m_wt; empty without a tilt
  double m_longest = 0;
  std::optional<FeatureOptions> m_options;
};

/// The same map with a projection drawn from another seed, for training that redraws projections between steps
/// (Choromanski et al. 2021). Throws InvalidArgument if the caller gave the projection.
template <class F>
  requires std::derived_from<F, RandomFeatures<typename F::Scalar>>
F redrawn(const F& features, std::uint64_t seed) {
  FeatureOptions options = features.options();
  options.seed = seed;
  return F(options);
}

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/random_features_definition.hpp"
#endif
