// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <new>
#include <numeric>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/core/types.hpp"
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
/// Bounds of the rounding errors of an FFT in the gradients of Y = ((A B^T) o C) U, for entries of G of at most 1.
///
/// dA is the product with G in place of A, so that the bound above applies to it. dB and dU are the product with the
/// roles exchanged. With w_r = A_r o g for a column g of G, and N_r(g) the estimate e_r for T(c)^T w_r,
///
///     error bound of dU_j = eps sum_r |B_jr| N_r(1)    error bound of sum_r |B_jr dB_jr| <= |U_j|_1 times that of dU_j
///
/// For a column that is smaller than the sizes s_i of the rows (factors.hpp), N_r(s) replaces N_r(1). dc is the sum of
/// the correlations of w_r and x_r = B_r o u, whose error is eps sqrt(log2 N / N) |w_r|_2 |x_r|_2 at each lag, for
/// transforms of length N. Each of the three transforms adds spurious copies of the other lags, of up to eps / 2 of the
/// largest (convolution_error.hpp). With S_l as in GradientSizes, and |G_i.U_j| <= 2 s_i, the copies are
/// 3/2 eps max S_l in the sums S_l, and twice that in dc.
namespace nprf::toeplitz {

/// The norms of the signals x_r = B_r o u over some keys, for u = 1 ("ones"), and for a u_j that is a size of key j,
/// such as its largest |U_jp| ("sized").
class SignalNorms {
 public:
  using Row = Eigen::Map<Eigen::Array<double, 1, Eigen::Dynamic>>;  // (r)

  /// For r features and no keys.
  SignalNorms(Index r, Workspace& workspace) : m_ones(zeros(r, workspace)), m_sized(zeros(r, workspace)) {}

  static Row row(Index r, Workspace& workspace) {
    Row x(workspace.take<double>(r), r);
    x.setZero();
    return x;
  }

  /// Adds keys begin..end-1: factor(j) times row j of B (n,r), with size(j).
  template <Real T, class Factor, class Size>
  void add(const MatrixView<T>& B, Index begin, Index end, Factor&& factor, Size&& size) {
    constexpr int columns = 4;  // whose sums stay in registers
    const Index whole = B.cols() / columns * columns;
    for (Index r = 0; r < whole; r += columns) add_columns<columns>(B, r, begin, end, factor, size);
    for (Index r = whole; r < B.cols(); ++r) add_columns<1>(B, r, begin, end, factor, size);
    for (Index j = begin; j < end; ++j) m_largest_size = std::max(m_largest_size, size(j));
  }
  /// Adds the keys of `other`, with their entries of B multiplied by `factor`, but not their sizes.
  void add(const SignalNorms& other, double factor) {
    m_ones.add(other.m_ones, factor);
    m_sized.add(other.m_sized, factor);
    m_largest_size = std::max(m_largest_size, other.m_largest_size);
  }

  /// The largest |B_jr| of each feature r (r), and the largest size of a key.
  const Row& largest() const { return m_ones.max; }
  double largest_size() const { return m_largest_size; }

  /// fft_error_per_value(N) sum_r |x_r|_2 |z_r|_2 for the signals x_r of this object and z_r of `others`.
  /// correlate_ones: x_r with ones and z_r sized. correlate_sized: x_r sized and z_r with ones.
  double correlate_ones(const SignalNorms& others, Index N) const { return m_ones.correlate(others.m_sized, N); }
  double correlate_sized(const SignalNorms& others, Index N) const { return m_sized.correlate(others.m_ones, N); }

  /// sizes_r += factor * convolution_error() of the weights c and x_r, with ones or sized, by transforms of length N.
  void add_ones(const NormSums& c, Index N, double factor, Row& sizes) const { m_ones.add_to(sizes, c, N, factor); }
  void add_sized(const NormSums& c, Index N, double factor, Row& sizes) const { m_sized.add_to(sizes, c, N, factor); }

 private:
  template <class Numbers>
  struct Of {
    Numbers one, square, max;  // |x_r|_1, the square of |x_r|_2, |x_r|_max

    template <class X>
    void add(const X& x) {
      one += x;
      square += x.square();
      max = max.max(x);
    }
    void add(const Of& other, double factor) {
      one += factor * other.one;
      square += factor * factor * other.square;
      max = max.max(factor * other.max);
    }
    // adds the sums of `columns` features from r on
    template <int columns>
    void add(const Of<Eigen::Array<double, 1, columns>>& some, Index r) {
      one.template segment<columns>(r) += some.one;
      square.template segment<columns>(r) += some.square;
      auto all = max.template segment<columns>(r);
      all = all.max(some.max);
    }
    Norms norms(Index r) const { return NormSums{one[r], square[r], max[r]}.norms(); }

    double correlate(const Of& x, Index N) const {
      double sum = 0;
      for (Index r = 0; r < one.size(); ++r) sum += norms(r).two * x.norms(r).two;
      return fft_error_per_value(static_cast<double>(N)) * sum;
    }
    void add_to(Row& sizes, const NormSums& weights, Index N, double factor) const {
      const Norms c = weights.norms();
      const double per_value = fft_error_per_value(static_cast<double>(N));
      for (Index r = 0; r < sizes.size(); ++r) sizes[r] += factor * convolution_error(c, norms(r), per_value);
    }
  };

  static Of<Row> zeros(Index r, Workspace& workspace) {
    return {row(r, workspace), row(r, workspace), row(r, workspace)};
  }

  template <int columns, Real T, class Factor, class Size>
  void add_columns(const MatrixView<T>& B, Index r, Index begin, Index end, Factor&& factor, Size&& size) {
    using Some = Eigen::Array<double, 1, columns>;
    Of<Some> ones{Some::Zero(), Some::Zero(), Some::Zero()}, sized = ones;
    for (Index j = begin; j < end; ++j) {
      const Some b = B.row(j).template segment<columns>(r).array().abs().template cast<double>() * factor(j);
      ones.add(b);
      sized.add(Some(size(j) * b));
    }
    m_ones.add(ones, r);
    m_sized.add(sized, r);
  }

  Of<Row> m_ones, m_sized;
  double m_largest_size = 0;
};

/// The largest |B_jr| and the largest size, but at least 2^-1000, so that the inverses are finite; 1 if all are zeros.
/// Numbers that are divided by these scales have squares that do not overflow.
struct SignalScale {
  template <Real T>
  SignalScale(const MatrixView<T>& B_, const T* sizes)
      : B(B_.size() > 0 ? of(B_.cwiseAbs().maxCoeff()) : 1.0),
        size(B_.rows() > 0 ? of(*std::max_element(sizes, sizes + B_.rows())) : 1.0) {}

  double B, size;

 private:
  static double of(double largest) { return largest > 0 ? std::max(largest, 0x1p-1000) : 1; }
};

/// The error bound eps sum_r |a_r| sizes_r of a row a (r) of A, where sizes_r are the e_r above, or other estimates in
/// units of eps. If `by_norms`, it is eps |a|_2 |sizes|_2 instead (RowErrorBounds).
template <Real T, class RowA>
double row_error_bound(const RowA& a, const SignalNorms::Row& sizes, bool by_norms = false) {
  const double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
  if (by_norms) return eps * static_cast<double>(a.stableNorm()) * sizes.matrix().stableNorm();
  constexpr Index parts = 8;  // independent sums: in a single sum each addition would wait for the one before it
  std::array<double, parts> sums{};
  const Index whole = a.size() / parts * parts;
  const auto term = [x = a.data(), size = sizes.data()](Index r) {
    return std::abs(static_cast<double>(x[r])) * size[r];
  };
  for (Index r = 0; r < whole; r += parts)
    for (Index part = 0; part < parts; ++part) sums[static_cast<std::size_t>(part)] += term(r + part);
  for (Index r = whole; r < a.size(); ++r) sums[0] += term(r);
  return eps * std::accumulate(sums.begin(), sums.end(), 0.0);
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
  Y += underflow * all.largest_size() * all.largest();
  sums += underflow * all.largest();
  Y *= scale.B * scale.size;
  sums *= scale.B;
  const double underflow_sums = Underflow<T>::of_row(r), underflow_Y = all.largest_size() * scale.size * underflow_sums;
  team.run_tiles(x.A.rows(), [&](Index i0, Index rows, Workspace&) {
    for (Index i = i0; i < i0 + rows; ++i) {
      bounds.Y[i] = row_error_bound<T>(x.A.row(i), Y, bounds.by_norms) + underflow_Y;
      bounds.sums[i] = row_error_bound<T>(x.A.row(i), sums, bounds.by_norms) + underflow_sums;
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
  ones *= of_A.B;
  sized *= of_A.B * of_A.size;
  team.run_tiles(x.B.rows(), [&](Index j0, Index rows, Workspace&) {
    for (Index j = j0; j < j0 + rows; ++j) {
      bounds.keys[j] = row_error_bound<T>(x.B.row(j), ones, bounds.by_norms);
      bounds.key_sizes[j] = row_error_bound<T>(x.B.row(j), sized, bounds.by_norms);
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
