// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_base.hpp"
#include "nprf/feature_map/random_features.hpp"

namespace nprf {

/// phi(x) = exp(-|x|^2/2) / sqrt(r) [exp(s w_1.x) ... exp(s w_m.x)] with the rows w_1..w_m of the projection, and r =
/// signs * m. If signs is 1, s is +1. If signs is 2, the m features with s = +1 are followed by m features with s = -1.
/// With a tilt (tilt.hpp) the rows are w'_f and the exponents s w'_f.x + o_f.
///
/// E[phi(x).phi(y)] = exp(x.y), and every feature is positive (Choromanski et al. 2021). Queries are scaled so that the
/// largest feature of each row is 1, keys so that the largest feature of all rows of the call is 1. O(n d m).
template <Real T, Index signs>
class ExponentialFeatures : public RandomFeatures<T>, public FeatureMapBase<ExponentialFeatures<T, signs>, T> {
 public:
  static constexpr bool is_positive = true, estimates_exp = true;

  using RandomFeatures<T>::RandomFeatures;

  Index output_dim() const { return signs * this->num_features(); }

 private:
  static_assert(signs == 1 || signs == 2);
  friend class FeatureMapBase<ExponentialFeatures, T>;

  void set_features(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team, T* log_factor) const;
  T set_keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const;
  void set_gradient(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                    const Team& team) const;

  template <class Use>
  void for_each_pack(Use&& use) const;
  T largest_exponent(const T* z) const;
  template <class F>
  void map_exponents(const T* z, T* phi, F&& f) const;
  T log_sqrt_r() const;
};

/// PRF: phi(x) = exp(-|x|^2/2) / sqrt(m) [exp(w.x)...], m features. With K = exp(x.y), the variance of phi(x).phi(y) is
/// K^2 (exp(|x+y|^2) - 1) / m for independent Gaussian rows.
template <OnlyReal T>
class PositiveFeatures : public ExponentialFeatures<T, 1> {
  using ExponentialFeatures<T, 1>::ExponentialFeatures;
};

/// phi(x) = exp(-|x|^2/2) / sqrt(2m) [exp(w.x)..., exp(-w.x)...], 2m features. With K = exp(x.y), the variance of
/// phi(x).phi(y) is K^2 (cosh(|x+y|^2) - 1) / m for independent Gaussian rows.
template <OnlyReal T>
class HyperbolicFeatures : public ExponentialFeatures<T, 2> {
  using ExponentialFeatures<T, 2>::ExponentialFeatures;
};

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/positive_definition.hpp"
#endif
