// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "nprf/core/pack.hpp"
#include "nprf/core/power_of_two.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/slots.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/factors.hpp"

/// The memory layout of the factors in FFT engines: one row for each slot, columns scaled by powers of two, and some
/// columns or features in the lanes of a register.
namespace nprf::toeplitz {

/// The length of an array of n values and 17 cache lines of padding (18 if a value fills two lines). Arrays that are
/// read together must not be a power of two bytes apart: a cache holds only a few lines at such a distance.
template <class X>
constexpr Index staggered(Index n) {
  constexpr Index size = static_cast<Index>(sizeof(X));
  return n + (17 * 64 + size - 1) / size;
}

/// A scale, or its inverse, as a factor: 0 for infinity. A column of zeros has the scale infinity (power_of_two.hpp).
template <Real T>
T finite(T scale) {
  return std::isfinite(scale) ? scale : T(0);
}

/// Writes the power-of-two scale of each column of X (n,r) to `scales` (r): infinity for a column of zeros. O(n r).
template <Real T>
void column_scales(const MatrixView<T>& X, VectorMap<T>& scales) {
  scales.setZero();
  using P = Pack<T>;
  for (Index i = 0; i < X.rows(); ++i) {
    const T* x = row_of(X, i).data();
    for (Index r = 0; r < X.cols(); r += P::size)
      larger(P::load(&scales[r], X.cols() - r), abs(P::load(x + r, X.cols() - r))).store(&scales[r], X.cols() - r);
  }
  for (Index r = 0; r < scales.size(); ++r) scales[r] = power_of_two_scale(scales[r]);
}

/// The rows of a matrix that has one row for each slot of the queries or of the keys.
struct SlotRows {
  Index count;
  Index first = 0;  // the row of slot 0
};

/// Returns a matrix (rows.count,X.cols) that has each row of X in the row of its slot, and zeros for empty slots. It is
/// X itself if no slot is empty, else a copy in the workspace.
template <Real T>
MatrixView<T> in_slots(const MatrixView<T>& X, const Slots& slots, const SlotRows& rows, const Team& team) {
  if (slots.count == rows.count) return X;
  auto all = team.workspace().matrix<T>(rows.count, X.cols());
  team.run_tiles(rows.count, [&](Index s0, Index size, Workspace&) {
    std::fill_n(all.data() + s0 * X.cols(), size * X.cols(), T(0));
    for (Index i = slots.below(s0 - rows.first), end = slots.below(s0 + size - rows.first); i < end; ++i)
      std::ranges::copy(row_of(X, i), writable_row(all, rows.first + slots[i]).data());
  });
  return all;
}

/// Returns the factors A, B and U by slot, each as in the function above. Key log-scales are left out.
template <Real T>
Factors<T> in_slots(const Factors<T>& x, const SlotRows& queries, const SlotRows& keys, const Team& team) {
  return Factors<T>::without_gaps(in_slots(x.A, x.queries.slots, queries, team),
                                  in_slots(x.B, x.keys.slots, keys, team), in_slots(x.U, x.keys.slots, keys, team));
}

/// The inverse of in_slots(): copies the row of each token's slot to the token's row of X. Slot 0 has the row `first`.
template <Real T>
void from_slots(const MatrixMap<T>& all, const Slots& slots, MatrixRef<T> X, const Team& team, Index first = 0) {
  team.run_tiles(slots.count, [&](Index i0, Index rows, Workspace&) {
    for (Index i = i0; i < i0 + rows; ++i) std::ranges::copy(row_of(all, first + slots[i]), writable_row(X, i).data());
  });
}

/// Up to lane_count columns of a matrix as lanes: values[i] has row i. Values from the last row to `length` are zeros.
template <Real T>
struct ColumnLanes {
  using Lanes = fft::Lanes<T>;

  static Index size(Index length) { return staggered<Lanes>(length); }

  ColumnLanes(Lanes* of, Index n, Index all, Index columns) : rows(n), length(all), width(columns), values(of) {}
  ColumnLanes(Workspace& workspace, Index n, Index all, Index columns)
      : ColumnLanes(workspace.take<Lanes>(size(all)), n, all, columns) {}

  void set_zero() { std::fill_n(values, length, Lanes{}); }

  /// For columns p0, p0 + 1, ... of X: read() copies them to the lanes, write() copies the lanes to them, and add_to()
  /// adds the lanes to them.
  void read(const MatrixView<T>& X, Index p0) {
    for (Index i = 0; i < rows; ++i) values[i] = fft::load_lanes(row_of(X, i).data() + p0, width);
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

  /// Multiplies each column by its factor.
  void scale(const Lanes& by) {
    for (Index i = 0; i < rows; ++i) values[i] *= by;
  }

  Index rows, length, width;
  Lanes* values;
};

/// finite() of 1 / scale, and of the scale itself, in each lane.
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

/// The p columns of U in groups of lane_count, whose columns are lanes. If the last group would leave most lanes empty,
/// its columns are left over: they are processed one at a time, with features as lanes.
template <Real T>
struct ColumnGroups {
  static constexpr Index W = fft::lane_count<T>;

  ColumnGroups(Index r, Index columns) : count(columns / W), left_over(columns % W), p(columns) {
    if (left_over * ((r + W - 1) / W) > r) ++count, left_over = 0;
  }
  Index width(Index group) const { return std::min(W, p - group * W); }

  Index count, left_over, p;
};

/// The number of signals B_r o U_p of r features and p columns, including the empty lanes of registers. Signals of a
/// left-over column (ColumnGroups) count `left_over` times.
template <Real T>
double signals(Index r, Index p, double left_over) {
  const ColumnGroups<T> groups(r, p);
  constexpr Index W = fft::lane_count<T>;
  return static_cast<double>(groups.count * W * r) +
         left_over * static_cast<double>(groups.left_over * ((r + W - 1) / W) * W);
}

/// Up to lane_count features (columns) of a matrix as lanes, from a given feature on. Lanes after the last feature are
/// zeros.
template <Real T>
struct FeatureLanes {
  using Lanes = fft::Lanes<T>;

  FeatureLanes(const MatrixView<T>& of, Index from)
      : x(of.data()), stride(of.outerStride()), first(from), width(std::min(fft::lane_count<T>, of.cols() - from)) {}

  /// The entries of these features in an array that has one for each feature; in row i of the matrix.
  Lanes load(const T* all) const { return fft::load_lanes(all + first, width); }
  Lanes row(Index i) const { return load(x + i * stride); }

  /// Adds lanes to these features of row i of a matrix.
  void add(const Lanes& lanes, MatrixRef<T>& to, Index i) const {
    T* at = to.data() + i * to.outerStride() + first;
    fft::store_lanes<T>(fft::load_lanes(at, width) + lanes, at, width);
  }

  const T* x;
  Index stride, first, width;
};

/// Columns of a matrix, each contiguous in memory, with zeros from the last token to L. A twisted column has two
/// numbers for token j, its entry times cos(pi j / 2L) and its entry times sin(pi j / 2L). They contain the factor that
/// the inverse transform leaves to the caller (fft/polynomial_tree.hpp).
template <Real T>
class FeatureColumns {
 public:
  /// For `count` columns, twisted by `twist` (2 L) unless it is null.
  FeatureColumns(Workspace& workspace, Index count, Index L, const T* twist = nullptr)
      : m_twist(twist), m_stride(staggered<T>(twist ? 2 * L : L)), m_values(workspace.take<T>(count * m_stride)) {}

  T* operator[](Index k) const { return m_values + k * m_stride; }

  /// Reads tokens j0..j0+rows-1 of column r of X, times a scale, into column k.
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

/// A column, divided by its power-of-two scale.
template <Real T>
struct ScaledColumn {
  ScaledColumn(const MatrixView<T>& X, Index column, Workspace& scratch) : values(scratch.take<T>(X.rows())) {
    T largest = 0;
    for (Index j = 0; j < X.rows(); ++j) largest = std::max(largest, std::abs(X(j, column)));
    scale = power_of_two_scale(largest);
    for (Index j = 0; j < X.rows(); ++j) values[j] = X(j, column) * finite(1 / scale);
  }
  T scale;
  T* values;
};

/// Gradients with one row for each slot, as FFT engines compute them: in the caller's storage if no slot is empty, else
/// in the workspace, from where copy_back() copies the rows of the tokens to the caller's storage.
template <Real T>
class SlotGradients {
 public:
  SlotGradients(const Factors<T>& x, const SlotRows& queries, const SlotRows& keys, GradientRefs<T>& out,
                const GradientSizes<T>& sizes, const Team& team)
      : m_queries(x.queries.slots),
        m_keys(x.keys.slots),
        m_q(queries),
        m_k(keys),
        m_out(out),
        m_sizes(sizes),
        m_gaps_q(x.queries.slots.count < queries.count),
        m_gaps_k(x.keys.slots.count < keys.count),
        m_dA(team.workspace().template matrix<T>(m_gaps_q ? queries.count : 0, x.A.cols())),
        m_dB(team.workspace().template matrix<T>(m_gaps_k ? keys.count : 0, x.B.cols())),
        m_dU(team.workspace().template matrix<T>(m_gaps_k ? keys.count : 0, x.U.cols())),
        m_size_rows(team.workspace().template take<T>(m_gaps_q ? queries.count : 0)),
        m_size_keys(team.workspace().template take<T>(m_gaps_k ? keys.count : 0)) {
    if (!sizes || !m_gaps_q) return;
    std::fill_n(m_size_rows, queries.count, T(0));
    for (Index i = 0; i < x.queries.slots.count; ++i) m_size_rows[m_q.first + x.queries.slots[i]] = sizes.rows[i];
  }

  GradientRefs<T> refs() { return refs(m_out.dc); }
  /// The same, with another dc.
  GradientRefs<T> refs(Eigen::Ref<Vector<T>> dc) {
    return {m_gaps_q ? MatrixRef<T>(m_dA) : m_out.dA, m_gaps_k ? MatrixRef<T>(m_dB) : m_out.dB,
            m_gaps_k ? MatrixRef<T>(m_dU) : m_out.dU, dc};
  }
  GradientSizes<T> sizes() const {
    if (!m_sizes) return {};
    return {m_gaps_q ? m_size_rows : m_sizes.rows, m_gaps_k ? m_size_keys : m_sizes.keys, m_sizes.lags};
  }

  /// Writes the rows of the tokens to `out` and `sizes`.
  void copy_back(const Team& team) {
    if (m_gaps_q) from_slots(m_dA, m_queries, m_out.dA, team, m_q.first);
    if (!m_gaps_k) return;
    from_slots(m_dB, m_keys, m_out.dB, team, m_k.first);
    from_slots(m_dU, m_keys, m_out.dU, team, m_k.first);
    for (Index j = 0; m_sizes && j < m_keys.count; ++j) m_sizes.keys[j] = m_size_keys[m_k.first + m_keys[j]];
  }

 private:
  Slots m_queries, m_keys;
  SlotRows m_q, m_k;
  GradientRefs<T>& m_out;
  const GradientSizes<T>& m_sizes;
  bool m_gaps_q, m_gaps_k;
  MatrixMap<T> m_dA, m_dB, m_dU;
  T *m_size_rows, *m_size_keys;
};

}  // namespace nprf::toeplitz
