// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "nprf/core/block_product.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/feature_map/projection.hpp"
#include "nprf/feature_map/random_features.hpp"

namespace nprf {

namespace detail {

/// The number of rows that are projected together.
template <Real T>
inline constexpr Index projected_rows = 21 * Block<T>::rows;

template <Real T>
double longest_row(const Matrix<T>& w) {
  T longest = 0;
  for (Index f = 0; f < w.rows(); ++f) longest = std::max(longest, norm(row_of(w, f)));
  return static_cast<double>(longest);
}

// the offsets, padded like the columns of W^T: the last one is repeated
template <Real T>
Vector<T> in_packs(const Vector<T>& offsets, Index columns) {
  Vector<T> all(offsets.size() > 0 ? columns : 0);
  for (Index j = 0; j < all.size(); ++j) all[j] = offsets[std::min(j, offsets.size() - 1)];
  return all;
}

}  // namespace detail

template <Real T>
RandomFeatures<T>::RandomFeatures(const FeatureOptions& options) : RandomFeatures(draw_tilted_projection<T>(options)) {
  m_options = options;
}

template <Real T>
RandomFeatures<T>::RandomFeatures(DrawnProjection<T> drawn)
    : m_w(std::move(drawn.rows)),
      m_wt(transposed_in_packs(m_w)),
      m_offsets(detail::in_packs(drawn.offsets, m_wt.cols())),
      m_longest(detail::longest_row(m_w)) {}

template <Real T>
RandomFeatures<T>::RandomFeatures(Matrix<T> rows, FromCaller) : m_w(std::move(rows)) {
  require(m_w.rows() >= 1 && m_w.cols() >= 1, "rows: expected an m x d projection with m and d at least 1, got ",
          m_w.rows(), " x ", m_w.cols());
  require(has_finite_entries(m_w), "rows: expected finite scalars, got a NaN or an infinity");
  m_wt = transposed_in_packs(m_w);
  m_longest = detail::longest_row(m_w);
}

template <Real T>
const FeatureOptions& RandomFeatures<T>::options() const {
  require(m_options.has_value(), "features: expected a projection that was drawn from a seed, got the caller's rows");
  return *m_options;
}

template <Real T>
double RandomFeatures<T>::relative_error(double norm) const {
  const double d = static_cast<double>(input_dim());
  const double offset = static_cast<double>(largest_magnitude(entries_of(m_offsets)));
  const double roundings = 3 + (1 + std::sqrt(d) / 15) * m_longest * norm + norm * norm + 2 * offset;
  return static_cast<double>(std::numeric_limits<T>::epsilon()) / 2 * roundings;
}

template <Real T>
template <class Emit>
void RandomFeatures<T>::project(const MatrixView<T>& x, RowScale<T> scale, const Team& team, Emit&& emit) const {
  constexpr Index W = Pack<T>::size;
  const Index d = x.cols(), d_packs = packs_for<T>(d), m_packs = packs_for<T>(num_features());
  team.run_tiles(x.rows(), detail::projected_rows<T>, [&](Index i0, Index rows, Workspace& scratch) {
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

}  // namespace nprf
