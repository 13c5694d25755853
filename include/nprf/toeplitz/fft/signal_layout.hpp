// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/power_of_two.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"

/// How FFT engines lay out their factors: each token in its slot, columns scaled by powers of two, some side by side.
namespace nprf::toeplitz {

/// n values, and 17 cache lines more (18 for a type of two lines): arrays that are walked side by side must not lie a
/// power of two apart, or a cache has room for a few of them only.
template <class X>
constexpr Index staggered(Index n) {
  constexpr Index size = static_cast<Index>(sizeof(X));
  return n + (17 * 64 + size - 1) / size;
}

/// The scale as a factor: 0 for infinity, which is the scale of a column of zeros.
template <Real T>
T finite(T scale) {
  return std::isfinite(scale) ? scale : T(0);
}

/// The power-of-two scale of each column of X (n,r), into `scales` (r); infinity for a column of zeros. O(n r).
template <Real T>
void column_scales(const MatrixView<T>& X, VectorMap<T>& scales) {
  scales.setZero();
  for (Index i = 0; i < X.rows(); ++i) scales = scales.cwiseMax(X.row(i).transpose().cwiseAbs());
  for (Index r = 0; r < scales.size(); ++r) scales[r] = power_of_two_scale(scales[r]);
}

/// X's rows, each in row `first` + its slot of n, zeros in the gaps: X itself where there are none, else a copy in the
/// workspace.
template <Real T>
MatrixView<T> in_slots(const MatrixView<T>& X, const Slots& slots, Index n, const Team& team, Index first = 0) {
  if (slots.count == n) return X;
  auto all = team.workspace().matrix<T>(n, X.cols());
  team.run_tiles(n, [&](Index s0, Index size, Workspace&) {
    all.middleRows(s0, size).setZero();
    for (Index i = slots.below(s0 - first), end = slots.below(s0 + size - first); i < end; ++i)
      all.row(first + slots[i]) = X.row(i);
  });
  return all;
}

/// The way back: row i of X is that of its slot.
template <Real T>
void from_slots(const MatrixMap<T>& all, const Slots& slots, MatrixRef<T> X, const Team& team, Index first = 0) {
  team.run_tiles(slots.count, [&](Index i0, Index rows, Workspace&) {
    for (Index i = i0; i < i0 + rows; ++i) X.row(i) = all.row(first + slots[i]);
  });
}

/// Up to lane_count columns of a matrix of n rows side by side; zeros in the rows from n to length.
template <Real T>
struct Panel {
  using Lanes = fft::Lanes<T>;

  static Index size(Index length) { return staggered<Lanes>(length); }

  Panel(Lanes* of, Index n, Index all, Index columns) : rows(n), length(all), width(columns), values(of) {}
  Panel(Workspace& workspace, Index n, Index all, Index columns)
      : Panel(workspace.take<Lanes>(size(all)), n, all, columns) {}

  void set_zero() { std::fill_n(values, length, Lanes{}); }

  /// Columns p0, p0 + 1, ... of X.
  void read(const MatrixView<T>& X, Index p0) {
    for (Index i = 0; i < rows; ++i) values[i] = fft::load_lanes(X.row(i).data() + p0, width);
    std::fill(values + rows, values + length, Lanes{});
  }
  void write(MatrixRef<T>& X, Index p0) const {
    for (Index i = 0; i < rows; ++i) fft::store_lanes(values[i], &X(i, p0), width);
  }
  void add_to(MatrixRef<T>& X, Index p0) const {
    for (Index i = 0; i < rows; ++i) fft::store_lanes(fft::load_lanes(&X(i, p0), width) + values[i], &X(i, p0), width);
  }

  /// The power-of-two scale of each column; infinity for a column of zeros.
  Lanes scales() const {
    Lanes largest{};
    for (Index i = 0; i < rows; ++i) {
      const Lanes x = values[i], size = x < 0 ? -x : x;
      largest = size > largest ? size : largest;
    }
    for (Index l = 0; l < fft::lane_count<T>; ++l) largest[l] = power_of_two_scale<T>(largest[l]);
    return largest;
  }

  /// Each column times its factor.
  void scale(const Lanes& by) {
    for (Index i = 0; i < rows; ++i) values[i] *= by;
  }

  Index rows, length, width;
  Lanes* values;
};

/// 1 / scale and scale as factors, 0 for a column of zeros.
template <Real T>
fft::Lanes<T> inverse(fft::Lanes<T> scale) {
  for (Index l = 0; l < fft::lane_count<T>; ++l) scale[l] = finite(1 / scale[l]);
  return scale;
}
template <Real T>
fft::Lanes<T> finite_lanes(fft::Lanes<T> scale) {
  for (Index l = 0; l < fft::lane_count<T>; ++l) scale[l] = finite(scale[l]);
  return scale;
}

/// The p columns of U: how many go side by side in groups, and how many are left over and take features as lanes.
template <Real T>
struct ColumnGroups {
  static constexpr Index W = fft::lane_count<T>;

  ColumnGroups(Index r, Index columns) : count(columns / W), left_over(columns % W), p(columns) {
    if (left_over * ((r + W - 1) / W) > r) ++count, left_over = 0;
  }
  Index width(Index group) const { return std::min(W, p - group * W); }

  Index count, left_over, p;
};

/// How many signals B_r o U_p a product of r features and p columns transforms, lanes of registers that are not filled
/// included. One of a column that is left over (ColumnGroups) counts as `left_over` others.
template <Real T>
double signals(Index r, Index p, double left_over) {
  const ColumnGroups<T> groups(r, p);
  constexpr Index W = fft::lane_count<T>;
  return static_cast<double>(groups.count * W * r) +
         left_over * static_cast<double>(groups.left_over * ((r + W - 1) / W) * W);
}

/// lane_count features from one on, as lanes; zeros beyond the last.
template <Real T>
struct FeatureLanes {
  using Lanes = fft::Lanes<T>;

  FeatureLanes(const MatrixView<T>& of, Index from)
      : x(of.data()), stride(of.outerStride()), first(from), width(std::min(fft::lane_count<T>, of.cols() - from)) {}

  /// Those of an array that has an entry for every feature.
  Lanes load(const T* all) const { return fft::load_lanes(all + first, width); }
  Lanes row(Index i) const { return load(x + i * stride); }

  /// Adds them to row i of a matrix of all features.
  void add(const Lanes& lanes, MatrixRef<T>& to, Index i) const {
    T* at = to.data() + i * to.outerStride() + first;
    fft::store_lanes<T>(fft::load_lanes(at, width) + lanes, at, width);
  }

  const T* x;
  Index stride, first, width;
};

/// Columns of a matrix, each by itself, token after token; zeros from the last token to L. Of a twisted column, token
/// j is two numbers, the column's times (cos, sin)(pi j / 2L): that of the coefficient that a tree leaves
/// (fft/spectral_ops.hpp).
template <Real T>
class FeatureColumns {
 public:
  /// `count` at a time, as they are, or with a twist (L).
  FeatureColumns(Workspace& workspace, Index count, Index L, const T* twist = nullptr)
      : m_twist(twist), m_stride(staggered<T>(twist ? 2 * L : L)), m_values(workspace.take<T>(count * m_stride)) {}

  T* operator[](Index k) const { return m_values + k * m_stride; }

  /// Tokens j0, j0 + 1, ... of column r of X, times a scale, into column k.
  void read(Index k, const MatrixView<T>& X, Index r, T scale, Index j0, Index rows) const {
    const Index end = std::clamp(X.rows(), j0, j0 + rows);
    T* x = (*this)[k];
    if (m_twist) {
      for (Index j = j0; j < end; ++j)
        for (const Index part : {0, 1}) x[2 * j + part] = X(j, r) * scale * m_twist[2 * j + part];
      std::fill(x + 2 * end, x + 2 * (j0 + rows), T(0));
    } else {
      for (Index j = j0; j < end; ++j) x[j] = X(j, r) * scale;
      std::fill(x + end, x + j0 + rows, T(0));
    }
  }

 private:
  const T* m_twist;
  Index m_stride;
  T* m_values;
};

/// One column, scaled to maximum 1.
template <Real T>
struct ScaledColumn {
  ScaledColumn(const MatrixView<T>& X, Index column, Workspace& scratch)
      : scale(power_of_two_scale(X.rows() > 0 ? X.col(column).cwiseAbs().maxCoeff() : T(0))),
        values(scratch.take<T>(X.rows())) {
    for (Index j = 0; j < X.rows(); ++j) values[j] = X(j, column) * finite(1 / scale);
  }
  T scale;
  T* values;
};

}  // namespace nprf::toeplitz
