// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "nprf/core/error.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/normalize/normalization.hpp"

namespace nprf {

template <Real T>
Vector<T> Normalization::row_scale(const MatrixView<T>& x, bool softmax_scale) const {
  Vector<T> scale(x.rows());
  Workspace workspace;
  row_scale<T>(x, softmax_scale, scale, Team(workspace));
  return scale;
}

template <Real T>
void Normalization::row_scale(const MatrixView<T>& x, bool softmax_scale, Eigen::Ref<Vector<T>> scale,
                              const Team& team) const {
  require(scale.size() == x.rows(), "scale: expected ", x.rows(), " factors (rows of x), got ", scale.size());
  if (!is_unit()) {
    const double d = static_cast<double>(std::max<Index>(x.cols(), 1));
    scale.setConstant(softmax_scale ? static_cast<T>(std::pow(d, -0.25)) : T(1));
    return;
  }
  team.run_tiles(x.rows(), [&](Index i0, Index rows, Workspace& scratch) {
    for (Index i = i0; i < i0 + rows; ++i) scale[i] = row_factor<T>(x.data() + i * x.outerStride(), x.cols(), scratch);
  });
}

// unit(r): x' = s x with s = r / |x|, so dx = s (dx' - x' (x'.dx') / r^2). none(): s is constant, so dx = s dx'
template <Real T>
void Normalization::backward(const MatrixView<T>& scaled, RowScale<T> scale, MatrixRef<T> dx) const {
  require(scaled.rows() == dx.rows() && scaled.cols() == dx.cols(), "scaled: expected ", dx.rows(), " x ", dx.cols(),
          " (as dx), got ", scaled.rows(), " x ", scaled.cols());
  require(static_cast<Index>(scale.size()) == dx.rows(), "scale: expected ", dx.rows(), " factors (rows of dx), got ",
          scale.size());
  for (Index i = 0; i < dx.rows(); ++i) {
    const std::span<T> row = writable_row(dx, i);
    if (is_unit()) {
      const T along = static_cast<T>(dot(row_of(scaled, i), row_of(dx, i)) / (m_radius * m_radius));
      add_scaled(row, -along, row_of(scaled, i));
    }
    nprf::scale(row, scale[static_cast<std::size_t>(i)]);
  }
}

// Returns radius / |row|, without overflow or underflow in |row|^2, and 0 for a row of zeros. If the quotient
// overflows, the result is the largest number of T; lifted_rows.hpp handles such rows
template <Real T>
T Normalization::row_factor(const T* x, Index d, Workspace& scratch) const {
  const auto factor = [this](double norm) {
    return static_cast<T>(std::min<double>(m_radius / norm, std::numeric_limits<T>::max()));
  };
  constexpr T safe_low = sizeof(T) == 4 ? T(1e-28) : T(1e-280), safe_high = T(1) / safe_low;
  auto sum = Pack<T>::all(0);
  for (Index k = 0; k < d; k += Pack<T>::size) {
    const auto some = Pack<T>::load(x + k, d - k);
    sum = multiply_add(some, some, sum);
  }
  const T square = sum.sum();
  if (square > safe_low && square < safe_high) return factor(std::sqrt(square));

  // the row is copied, because the last bits of Eigen's reductions depend on its alignment
  const Workspace::Scope scope(scratch);
  auto row = scratch.vector<T>(d);
  std::copy_n(x, d, row.data());
  const std::span<T> entries(row.data(), static_cast<std::size_t>(d));
  const T largest = largest_magnitude<T>(entries);
  if (largest == T(0) && is_finite<T>(entries)) return T(0);
  set_quotient(entries, entries, largest);
  return factor(static_cast<double>(largest) * norm<T>(entries));
}

}  // namespace nprf
