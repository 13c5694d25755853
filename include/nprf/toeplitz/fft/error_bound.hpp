// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <new>
#include <numeric>
#include <span>

#include "nprf/core/power_of_two.hpp"
#include "nprf/core/rows.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/engine.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/convolution_error.hpp"

/// A bound of the rounding errors of an FFT in each row of Y = ((A B^T) o C) U:
///
///     bound_i = eps sum_r |A_ir| e_r
///
/// with eps the distance from 1 to the next number, and e_r the estimated error, in units of eps, of the convolution of
/// the weights c with x_r = B_r o u for a column u of U (convolution_error.hpp). e_r grows with |u|, so that one pass
/// over B with the largest |u| of each key bounds all columns. A bound of the underflow is added, for weights of at
/// most 1: x_r is computed relative to the largest |B_r| and the largest |u|, and may underflow there, even if no row
/// attends to the keys that have these largest entries.
///
/// For the gradients, the entries of G are at most 1. dA is the product with G in place of A, so that the bound above
/// applies to it. dB and dU are the product with the roles exchanged. With w_r = A_r o g for a column g of G, and
/// N_r(g) the estimate e_r for T(c)^T w_r,
///
///     error bound of dU_j = eps sum_r |B_jr| N_r(1)    error bound of sum_r |B_jr dB_jr| <= |U_j|_1 times that of dU_j
///
/// For a column that is smaller than the sizes s_i of the rows (factors.hpp), N_r(s) replaces N_r(1). dc is the sum of
/// the correlations of w_r and x_r = B_r o u, whose error is eps sqrt(log2 N / N) |w_r|_2 |x_r|_2 at each lag, for
/// transforms of length N. Each of the three transforms adds spurious copies of the other lags, of up to eps / 2 of the
/// largest (convolution_error.hpp). With S_l as in GradientSizes, and |G_i.U_j| <= 2 s_i, the copies are
/// 3/2 eps max S_l in the sums S_l, and twice that in dc.
namespace nprf::toeplitz {

/// The norms of the signals x_r = B_r o u over some keys: for u = 1 ("ones"), and for u_j = a size of key j, such as
/// its largest |U_jp| ("sized").
class SignalNorms {
 public:
  using Row = VectorMap<double>;  // (r)

  /// For r features, at first without keys.
  SignalNorms(Index r, Workspace& workspace)
      : m_r(r), m_ones(workspace.take<NormSums>(r)), m_sized(workspace.take<NormSums>(r)) {
    for (NormSums* sums : {m_ones, m_sized}) std::fill_n(sums, r, NormSums{});
  }

  static Row row(Index r, Workspace& workspace) {
    double* x = workspace.take<double>(r);
    std::fill_n(x, r, 0.0);
    return {x, r};
  }

  /// Adds keys begin..end-1: factor(j) times row j of B (n,r), with size(j).
  template <Real T, class Factor, class Size>
  void add(const MatrixView<T>& B, Index begin, Index end, Factor&& factor, Size&& size) {
    constexpr Index columns = std::max<Index>(4, W);  // whose sums stay in registers
    const Index whole = B.cols() / columns * columns;
    for (Index r = 0; r < whole; r += columns) add_columns<columns>(B, r, begin, end, factor, size);
    for (Index r = whole; r < B.cols(); ++r) add_columns<1>(B, r, begin, end, factor, size);
    for (Index j = begin; j < end; ++j) m_largest_size = std::max(m_largest_size, size(j));
  }
  /// Adds the keys of `other`, with their entries of B multiplied by `factor`, but not their sizes.
  void add(const SignalNorms& other, double factor) {
    for (Index r = 0; r < m_r; ++r) m_ones[r].add(other.m_ones[r], factor), m_sized[r].add(other.m_sized[r], factor);
    m_largest_size = std::max(m_largest_size, other.m_largest_size);
  }

  /// The largest |B_jr| of feature r, and the largest size of a key.
  double largest(Index r) const { return m_ones[r].max; }
  double largest_size() const { return m_largest_size; }

  /// fft_error_per_value(N) sum_r |x_r|_2 |z_r|_2 for the signals x_r of this object and z_r of `others`.
  /// correlate_ones: x_r with ones and z_r sized. correlate_sized: x_r sized and z_r with ones.
  double correlate_ones(const SignalNorms& others, Index N) const { return correlate(m_ones, others.m_sized, N); }
  double correlate_sized(const SignalNorms& others, Index N) const { return correlate(m_sized, others.m_ones, N); }

  /// sizes_r += factor * convolution_error() of the weights c and x_r, with ones or sized, by transforms of length N.
  void add_ones(const NormSums& c, Index N, double factor, Row& sizes) const {
    add_errors(m_ones, c, N, factor, sizes);
  }
  void add_sized(const NormSums& c, Index N, double factor, Row& sizes) const {
    add_errors(m_sized, c, N, factor, sizes);
  }

 private:
  using Lanes = fft::Lanes<double>;
  static constexpr Index W = fft::lane_count<double>;

  // the sums of W features, in registers
  struct Sums {
    Lanes one{}, square{}, max{};

    void add(const Lanes& x) {
      one += x;
      square += x * x;
      max = x > max ? x : max;
    }
    NormSums operator[](Index k) const { return {one[k], square[k], max[k]}; }
  };

  double correlate(const NormSums* x, const NormSums* z, Index N) const {
    double sum = 0;
    for (Index r = 0; r < m_r; ++r) sum += x[r].norms().two * z[r].norms().two;
    return fft_error_per_value(static_cast<double>(N)) * sum;
  }
  void add_errors(const NormSums* x, const NormSums& weights, Index N, double factor, Row& sizes) const {
    const Norms c = weights.norms();
    const double per_value = fft_error_per_value(static_cast<double>(N));
    for (Index r = 0; r < m_r; ++r) sizes[r] += factor * convolution_error(c, x[r].norms(), per_value);
  }

  // adds the keys to the sums of `columns` features from r on
  template <Index columns, Real T, class Factor, class Size>
  void add_columns(const MatrixView<T>& B, Index r, Index begin, Index end, Factor&& factor, Size&& size) {
    constexpr Index packs = (columns + W - 1) / W, lanes = std::min(columns, W);
    Sums ones[packs], sized[packs];
    for (Index j = begin; j < end; ++j) {
      const T* x = B.data() + j * B.outerStride() + r;
      const double by = factor(j), u = size(j);
      NPRF_UNROLL
      for (Index pack = 0; pack < packs; ++pack) {
        Lanes b{};
        NPRF_UNROLL
        for (Index k = 0; k < lanes; ++k) b[k] = static_cast<double>(std::abs(x[pack * W + k]));
        b *= by;
        ones[pack].add(b);
        sized[pack].add(b * u);
      }
    }
    for (Index k = 0; k < columns; ++k) {
      m_ones[r + k].add(ones[k / W][k % W]);
      m_sized[r + k].add(sized[k / W][k % W]);
    }
  }

  Index m_r;
  NormSums *m_ones, *m_sized;  // (r)
  double m_largest_size = 0;
};

/// The largest |B_jr| and the largest size, but at least 2^-1000, so that the inverses are finite; 1 if all are zeros.
/// Numbers that are divided by these scales have squares that do not overflow.
struct SignalScale {
  template <Real T>
  SignalScale(const MatrixView<T>& B_, const T* sizes)
      : B(of(largest(B_))), size(B_.rows() > 0 ? of(*std::max_element(sizes, sizes + B_.rows())) : 1.0) {}

  double B, size;

 private:
  static double of(double largest) { return largest > 0 ? std::max(largest, 0x1p-1000) : 1; }

  template <Real T>
  static T largest(const MatrixView<T>& x) {
    T most = 0;
    for (Index i = 0; i < x.rows(); ++i) most = std::max(most, largest_magnitude(row_of(x, i)));
    return most;
  }
};

namespace detail {

// the sum of term(r) for r < n, in independent sums: in a single sum each addition would wait for the one before it
template <class Term>
double sum_of(Index n, Term&& term) {
  constexpr Index parts = 8;
  std::array<double, parts> sums{};
  const Index whole = n / parts * parts;
  for (Index r = 0; r < whole; r += parts)
    for (Index part = 0; part < parts; ++part) sums[static_cast<std::size_t>(part)] += term(r + part);
  for (Index r = whole; r < n; ++r) sums[0] += term(r);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// |x|_2, also if squares overflow or underflow
template <Real T>
double norm(std::span<const T> x) {
  const double largest = static_cast<double>(largest_magnitude(x)),
               scale = largest > 0 ? power_of_two_scale(largest) : 1;
  return scale * std::sqrt(sum_of(static_cast<Index>(x.size()), [x = x.data(), factor = 1 / scale](Index r) {
           const double each = factor * static_cast<double>(x[r]);
           return each * each;
         }));
}

}  // namespace detail

/// The error bound eps sum_r |a_r| sizes_r of a row a (r) of A, where sizes_r are the e_r above, or other estimates in
/// units of eps. If `by_norms`, it is eps |a|_2 |sizes|_2 instead (RowErrorBounds).
template <Real T>
double row_error_bound(std::span<const T> a, const SignalNorms::Row& sizes, bool by_norms = false) {
  const double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
  const std::span<const double> of(sizes.data(), a.size());
  if (by_norms) return eps * detail::norm(a) * detail::norm(of);
  return eps * detail::sum_of(sizes.size(), [x = a.data(), size = sizes.data()](Index r) {
           return std::abs(static_cast<double>(x[r])) * size[r];
         });
}

/// Bounds of the errors of Y from underflow. of_row() is relative to the largest |u|, and of_signals() to the product
/// of the largest |u| and the largest |B_r|, because columns of U and of B are divided by powers of two of at most
/// twice their largest entries.
template <Real T>
struct Underflow {
  static constexpr double number = 4 * static_cast<double>(std::numeric_limits<T>::denorm_min()),
                          eps = static_cast<double>(std::numeric_limits<T>::epsilon());

  /// The bound for a signal in a transform of length N, in units of eps.
  static double of_signals(Index N) { return static_cast<double>(N) * number / eps; }
  /// The bound for the products of a row's r features with signals.
  static double of_row(Index r) { return static_cast<double>(r) * number; }
};

/// The norms of the signals of all rows of B (n,r), with `sizes` (n). B and the sizes are divided by `scale` first.
/// O(n r).
template <Real T>
SignalNorms signal_norms(const MatrixView<T>& B, const T* sizes, const SignalScale& scale, const Team& team) {
  constexpr Index blocks = 8;  // blocks of keys, whose norms are added in the order of the blocks
  Workspace& workspace = team.workspace();
  const Index n = B.rows(), r = B.cols();
  SignalNorms all(r, workspace);
  const Workspace::Scope scope(workspace);
  auto* norms = workspace.template take<SignalNorms>(blocks);
  for (Index block = 0; block < blocks; ++block) new (norms + block) SignalNorms(r, workspace);
  const double to_B = 1 / scale.B, to_size = 1 / scale.size;
  team.run(blocks, [&](Index block, Workspace&) {
    norms[block].add(
        B, n * block / blocks, n * (block + 1) / blocks, [=](Index) { return to_B; },
        [=](Index j) { return static_cast<double>(sizes[j]) * to_size; });
  });
  for (Index block = 0; block < blocks; ++block) all.add(norms[block], 1);
  return all;
}

/// Writes to `bounds` the error bounds of the rows of a product by transforms of length N. sizes[j] (n_k) is the
/// largest |U_jp| of key j. O(n r).
template <Real T>
void fft_row_error_bounds(const NormSums& c, Index N, const Factors<T>& x, const T* sizes, RowErrorBounds bounds,
                          const Team& team) {
  Workspace& workspace = team.workspace();
  const Workspace::Scope scope(workspace);
  const Index r = x.B.cols();
  const SignalScale scale(x.B, sizes);
  const SignalNorms all = signal_norms<T>(x.B, sizes, scale, team);
  SignalNorms::Row Y = SignalNorms::row(r, workspace), sums = SignalNorms::row(r, workspace);
  all.add_sized(c, N, 1, Y);
  all.add_ones(c, N, 1, sums);
  const double underflow = Underflow<T>::of_signals(N);
  for (Index k = 0; k < r; ++k) {
    const double signal = underflow * all.largest(k);
    Y[k] = (Y[k] + all.largest_size() * signal) * (scale.B * scale.size);
    sums[k] = (sums[k] + signal) * scale.B;
  }
  const double underflow_sums = Underflow<T>::of_row(r), underflow_Y = all.largest_size() * scale.size * underflow_sums;
  team.run_tiles(x.A.rows(), [&](Index i0, Index rows, Workspace&) {
    for (Index i = i0; i < i0 + rows; ++i) {
      bounds.Y[i] = row_error_bound(row_of(x.A, i), Y, bounds.by_norms) + underflow_Y;
      bounds.sums[i] = row_error_bound(row_of(x.A, i), sums, bounds.by_norms) + underflow_sums;
    }
  });
}

/// The error bound of dc for p columns of G, divided by the bound for one column. Entries of G are at most 1, and the
/// sizes of keys are |U_j|_2. The factor is that of columns of equal magnitude.
inline double column_error_factor(Index p) { return std::sqrt(static_cast<double>(p)); }

/// The bound, in units of eps, of the images in the sums S_l at some lags; `lags` (count) are these S_l.
template <Real T>
double images_of(const T* lags, Index count) {
  return 1.5 * static_cast<double>(*std::max_element(lags, lags + count));
}

/// Writes to `bounds` the error bounds of gradients by transforms of length N. O(n r).
template <Real T>
void fft_gradient_error_bounds(const NormSums& c, Index N, const Factors<T>& x, const GradientScales<T>& of,
                               GradientErrorBounds bounds, const Team& team) {
  Workspace& workspace = team.workspace();
  const Workspace::Scope scope(workspace);
  const Index r = x.A.cols();
  const SignalScale of_A(x.A, of.sizes);
  const SignalNorms w = signal_norms<T>(x.A, of.sizes, of_A, team);
  SignalNorms::Row ones = SignalNorms::row(r, workspace), sized = SignalNorms::row(r, workspace);
  w.add_ones(c, N, 1, ones);
  w.add_sized(c, N, 1, sized);
  for (Index k = 0; k < r; ++k) ones[k] *= of_A.B, sized[k] *= of_A.B * of_A.size;
  team.run_tiles(x.B.rows(), [&](Index j0, Index rows, Workspace&) {
    for (Index j = j0; j < j0 + rows; ++j) {
      bounds.keys[j] = row_error_bound(row_of(x.B, j), ones, bounds.by_norms);
      bounds.key_sizes[j] = row_error_bound(row_of(x.B, j), sized, bounds.by_norms);
    }
  });
  if (bounds.num_lags == 0) return;
  const SignalScale of_B(x.B, of.values);
  const SignalNorms b = signal_norms<T>(x.B, of.values, of_B, team);
  const double eps = static_cast<double>(std::numeric_limits<T>::epsilon()), of_features = of_A.B * of_B.B;
  const double images = images_of(of.lags, bounds.num_lags);
  const double of_dc = of_B.size * column_error_factor(x.U.cols()) * w.correlate_ones(b, N),
               of_sizes = of_A.size * w.correlate_sized(b, N);
  std::fill_n(bounds.lags, bounds.num_lags, eps * (of_features * of_dc + 2 * images));
  std::fill_n(bounds.lag_sizes, bounds.num_lags, eps * (of_features * of_sizes + images));
}

}  // namespace nprf::toeplitz
