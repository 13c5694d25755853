// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "nprf/core/block_product.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/projection.hpp"

namespace nprf {

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
  explicit RandomFeatures(const Eigen::MatrixBase<Rows>& rows) : m_w(rows) {
    static_assert(std::same_as<typename Rows::Scalar, T>,
                  "nprf: the rows of a projection must have the scalar type of their feature map");
    require(m_w.rows() >= 1 && m_w.cols() >= 1, "rows: expected an m x d projection with m and d at least 1, got ",
            m_w.rows(), " x ", m_w.cols());
    require(m_w.allFinite(), "rows: expected finite scalars, got a NaN or an infinity");
    m_wt = transposed_in_packs(m_w);
    m_longest = longest_row(m_w);
  }

  Index input_dim() const { return m_w.cols(); }
  Index num_features() const { return m_w.rows(); }
  const Matrix<T>& projection() const { return m_w; }
  /// The offsets of a tilt (m): exponents of features are projection() x plus these. Empty without one.
  Eigen::Map<const Vector<T>> offsets() const {
    return {m_offsets.data(), m_offsets.size() > 0 ? num_features() : Index{0}};
  }

  /// The error bound of a feature for rows of at most that norm, relative to the feature, or to |phi| if features can
  /// be negative. It covers the rounding of w.x, a sum of d terms, and of |x|^2/2. The measured root mean square error
  /// is a third of it for random rows, and two thirds for rows parallel to a row of W.
  double relative_error(double norm) const {
    const double d = static_cast<double>(input_dim());
    const double offset = m_offsets.size() > 0 ? static_cast<double>(m_offsets.cwiseAbs().maxCoeff()) : 0;
    const double roundings = 3 + (1 + std::sqrt(d) / 15) * m_longest * norm + norm * norm + 2 * offset;
    return static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * roundings;
  }

  /// The options that the projection was drawn with. Throws InvalidArgument if the caller gave the projection.
  const FeatureOptions& options() const {
    require(m_options.has_value(), "features: expected a projection that was drawn from a seed, got the caller's rows");
    return *m_options;
  }

 protected:
  /// The number of rows that are projected together.
  static constexpr Index tile = 21 * Block<T>::rows;

  // Calls emit(i0, z, h) for each tile of rows x_i, which are multiplied by their scale:
  //     z = x W^T (rows,m)    h_i = |x_i|^2 / 2
  // The rows of z are padded to whole packs; the padding repeats the last feature.
  template <class Emit>
  void project(const MatrixView<T>& x, RowScale<T> scale, const Team& team, Emit&& emit) const {
    require(x.cols() == input_dim(), "x: expected ", input_dim(), " columns (input_dim), got ", x.cols());
    require(scale.empty() || static_cast<Index>(scale.size()) == x.rows(), "scale: expected ", x.rows(),
            " factors (rows of x), got ", scale.size());
    constexpr Index W = Pack<T>::size;
    const Index d = x.cols(), d_packs = packs_for<T>(d), m_packs = packs_for<T>(num_features());
    team.run_tiles(x.rows(), tile, [&](Index i0, Index rows, Workspace& scratch) {
      auto xs = scratch.matrix<T>(rows, d_packs * W), z = scratch.matrix<T>(rows, m_packs * W);
      auto h = scratch.vector<T>(rows);
      for (Index i = 0; i < rows; ++i) {
        const T* row = x.data() + (i0 + i) * x.outerStride();
        const auto s = Pack<T>::all(scale.empty() ? T(1) : scale[static_cast<std::size_t>(i0 + i)]);
        auto square = Pack<T>::all(0);
        for (Index k = 0; k < d; k += W) {
          const Pack<T> scaled = s * Pack<T>::load(row + k, d - k);
          scaled.store(&xs(i, k));
          square = multiply_add(scaled, scaled, square);
        }
        h[i] = square.sum() / 2;
      }
      const auto Wt = RightFactor<T>::in_place(m_wt.data(), m_wt.cols());
      multiply_each_row<T>(xs.leftCols(d), m_packs, Wt, z, scratch);
      emit(i0, z.leftCols(num_features()), h);
    });
  }

  static void check_phi(const MatrixRef<T>& phi, Index rows, Index r) {
    require(phi.rows() == rows && phi.cols() == r, "phi: expected ", rows, " x ", r, ", got ", phi.rows(), " x ",
            phi.cols());
  }

  static void check_backward(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi,
                             const MatrixRef<T>& dx, Index d, Index r) {
    require(x.cols() == d, "x: expected ", d, " columns (input_dim), got ", x.cols());
    require(phi.rows() == x.rows() && phi.cols() == r, "phi: expected ", x.rows(), " x ", r, ", got ", phi.rows(),
            " x ", phi.cols());
    require(dphi.rows() == x.rows() && dphi.cols() == r, "dphi: expected ", x.rows(), " x ", r, ", got ", dphi.rows(),
            " x ", dphi.cols());
    require(dx.rows() == x.rows() && dx.cols() == d, "dx: expected ", x.rows(), " x ", d, ", got ", dx.rows(), " x ",
            dx.cols());
  }

 private:
  // padded as the columns of m_wt
  static Vector<T> in_packs(const Vector<T>& offsets, Index columns) {
    Vector<T> all(offsets.size() > 0 ? columns : 0);
    for (Index j = 0; j < all.size(); ++j) all[j] = offsets[std::min(j, offsets.size() - 1)];
    return all;
  }

  static double longest_row(const Matrix<T>& w) { return static_cast<double>(w.rowwise().norm().maxCoeff()); }

  explicit RandomFeatures(DrawnProjection<T> drawn)
      : m_w(std::move(drawn.rows)),
        m_wt(transposed_in_packs(m_w)),
        m_offsets(in_packs(drawn.offsets, m_wt.cols())),
        m_longest(longest_row(m_w)) {}

  Matrix<T> m_w;        // (m,d)
  Matrix<T> m_wt;       // W^T (d,m), padded
  Vector<T> m_offsets;  // padded as its columns; empty without a tilt
  double m_longest = 0;
  std::optional<FeatureOptions> m_options;
};

// not inline: see instances.hpp
template <Real T>
RandomFeatures<T>::RandomFeatures(const FeatureOptions& options) : RandomFeatures(draw_tilted_projection<T>(options)) {
  m_options = options;
}

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
