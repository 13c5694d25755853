// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_base.hpp"
#include "nprf/feature_map/quadratic_row.hpp"

namespace nprf {

class Team;

/// The feature map of QuadraticRow: one constant feature, and first-order and second-order features of the coordinates
/// of x. It is deterministic, and its features have both signs. O(n (d + r)).
template <OnlyReal T>
class QuadraticFeatures : public FeatureMapBase<QuadraticFeatures<T>, T> {
 public:
  using Scalar = T;
  static constexpr bool is_positive = false, estimates_exp = true, is_series = true, has_independent_rows = true;

  /// Throws InvalidArgument if the sizes of the terms do not fit together, or if a constant is not finite.
  QuadraticFeatures(Index input_dim, QuadraticTerms<T> terms);

  Index input_dim() const { return m_d; }
  Index output_dim() const { return m_terms.output_dim(); }
  const QuadraticTerms<T>& terms() const { return m_terms; }

  /// A bound on the rounding error of the features of rows of at most that norm, relative to |phi|. It covers the
  /// scaling of x, a product, a difference, and the factor of a row.
  double relative_error(double norm) const;

 private:
  friend class FeatureMapBase<QuadraticFeatures, T>;

  void set_features(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team, T* log_factor) const;
  void set_gradient(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                    const Team& team) const;

  Index m_d;
  QuadraticTerms<T> m_terms;
};

struct TaylorOptions {
  Index input_dim;
  Index directions = 0;  // coordinates 0..directions-1 have second-order features too
};

/// The Taylor series of exp(x.y) to first order, and to second order in the first s = TaylorOptions::directions
/// coordinates: 1 + d + s (s + 1) / 2 features.
///
///     phi(x).phi(y) = 1 + x.y + (x_1 y_1 + ... + x_s y_s)^2 / 2
///
/// The truncation error is at most |x.y|^2 / 2 exp(|x.y|), and if the second order is complete (s = d), it is at most
/// |x.y|^3 / 6 exp(|x.y|). Where |x.y| <= 1, as for rows of norm 1, phi(x).phi(y) >= 0 for every s. For larger |x.y|,
/// phi(x).phi(y) can be negative.
template <OnlyReal T>
class TaylorFeatures : public QuadraticFeatures<T> {
 public:
  /// Throws InvalidArgument unless input_dim is at least 1 and directions are 0 to input_dim.
  explicit TaylorFeatures(const TaylorOptions& options) : QuadraticFeatures<T>(options.input_dim, terms_of(options)) {}

  Index directions() const { return this->terms().second; }

 private:
  static QuadraticTerms<T> terms_of(const TaylorOptions& options);
};

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/taylor_definition.hpp"
#endif
