// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"

/// What the rounding of an FFT leaves in the gradients of Y = ((A B^T) o C) U, for columns of G of at most 1.
///
/// dA is the product itself with G in A's place, so that fft/error_bound.hpp speaks for it. dB and dU are the product
/// with the roles exchanged: with w_r = A_r o g for a column g of G, and N_r(g) what fft/error_bound.hpp says of T(c)^T
/// w_r,
///
///     error bound of dU_j = eps sum_r |B_jr| N_r(1)    error bound of sum_r |B_jr dB_jr| <= |U_j|_1 times that
///
/// and for a column that is smaller than the rows' sizes s_i (gradients.hpp) with N_r(s) in N_r(1)'s place. Two columns
/// that share a signal, each scaled to maximum 1, make sqrt 2 times the error bound. The correlations of w_r and x_r =
/// B_r o u, whose sum is dc, are off at each lag by eps sqrt(log2 N / N) |w_r|_2 |x_r|_2. Each of the three transforms
/// leaves images of the others, of eps / 2 of the largest where all is alike: with S_l as in GradientSizes, and
/// |G_i.U_j| <= 2 s_i, all together of 3/2 eps max S_l in the sizes, and twice that in dc.
namespace nprf::toeplitz {

/// By how much the error bound of p columns of G of at most 1, with |U_j|_2 for U's rows, is above that of one: their
/// errors are taken as if all were alike.
inline double column_error_factor(Index p) { return std::sqrt(static_cast<double>(p)); }

/// What the images in the sizes of some lags are, over eps.
template <Real T>
double images_of(const T* lags, Index count) {
  return 1.5 * static_cast<double>(*std::max_element(lags, lags + count));
}

/// The error bound by transforms of one length N, of signals that are one column or two. O(n r).
template <Real T>
void fft_gradient_error_bounds(const NormSums& c, Index N, Index columns, const Factors<T>& x,
                               const GradientScales<T>& of, GradientErrorBounds bounds, const Team& team) {
  Workspace& workspace = team.workspace();
  const Workspace::Scope scope(workspace);
  const Index r = x.A.cols();
  const SignalScale of_A(x.A, of.sizes);
  const SignalNorms w = signal_norms<T>(x.A, of.sizes, of_A, team);
  SignalNorms::Row ones = SignalNorms::row(r, workspace), sized = SignalNorms::row(r, workspace);
  const double of_signal = std::sqrt(static_cast<double>(columns));
  w.add_ones(c, N, of_signal, ones);
  w.add_sized(c, N, of_signal, sized);
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
  const Index signals = (x.U.cols() - 1 + columns - 1) / columns + 1;  // the last column has one by itself
  const double of_dc = of_B.size * column_error_factor(columns * signals) * w.correlate_ones(b, N),
               of_sizes = of_A.size * of_signal * w.correlate_sized(b, N);
  std::fill_n(bounds.lags, bounds.num_lags, eps * (of_features * of_dc + 2 * images));
  std::fill_n(bounds.lag_sizes, bounds.num_lags, eps * (of_features * of_sizes + images));
}

}  // namespace nprf::toeplitz
