// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"

/// Bounds of the rounding errors of an FFT in the gradients of Y = ((A B^T) o C) U, for columns of G of at most 1.
///
/// dA is the product with G in place of A, so that fft/error_bound.hpp applies to it. dB and dU are the product with
/// the roles exchanged. With w_r = A_r o g for a column g of G, and N_r(g) the bracket of the bound in
/// fft/error_bound.hpp for T(c)^T w_r,
///
///     error bound of dU_j = eps sum_r |B_jr| N_r(1)    error bound of sum_r |B_jr dB_jr| <= |U_j|_1 times that
///
/// For a column that is smaller than the sizes s_i of the rows (gradients.hpp), N_r(s) replaces N_r(1). dc is the sum
/// of the correlations of w_r and x_r = B_r o u, whose error is eps sqrt(log2 N / N) |w_r|_2 |x_r|_2 at each lag. Each
/// of the three transforms adds spurious copies of the other lags, of up to eps / 2 of the largest
/// (convolution_error.hpp). With S_l as in GradientSizes, and |G_i.U_j| <= 2 s_i, these are 3/2 eps max S_l in the sums
/// of the sizes, and twice that in dc.
namespace nprf::toeplitz {

/// The factor of the error bound of dc for p columns of G of at most 1 and |U_j|_2 as the sizes of keys, relative to
/// one column: the bound for columns of equal magnitude.
inline double column_error_factor(Index p) { return std::sqrt(static_cast<double>(p)); }

/// The images in the sums of the sizes at some lags, over eps.
template <Real T>
double images_of(const T* lags, Index count) {
  return 1.5 * static_cast<double>(*std::max_element(lags, lags + count));
}

/// The error bound for transforms of length N. O(n r).
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
