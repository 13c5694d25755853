// SPDX-License-Identifier: MIT
#pragma once

#include "nprf/core/types.hpp"
#include "nprf/feature_map/feature_map_base.hpp"
#include "nprf/feature_map/random_features.hpp"

namespace nprf {

/// TRF: phi(x) = exp(|x|^2/2) / sqrt(m) [sin(w.x)..., cos(w.x)...], 2m features.
///
/// E[phi(x).phi(y)] = K = exp(x.y) (Peng et al. 2021). Features have both signs, so a denominator can be negative. The
/// variance of phi(x).phi(y) is K^2 exp(|x|^2 + |y|^2 - 2 x.y) (1 - exp(-|x-y|^2))^2 / (2m) for independent Gaussian
/// rows. The factor exp(|x|^2/2) / sqrt(m) is omitted: from each query its own factor, from all keys that of the
/// longest key. O(n d m).
template <OnlyReal T>
class TrigonometricFeatures : public RandomFeatures<T>, public FeatureMapBase<TrigonometricFeatures<T>, T> {
 public:
  static constexpr bool is_positive = false, estimates_exp = true;

  /// Like the constructors of RandomFeatures. Also throws InvalidArgument for a tilt.
  explicit TrigonometricFeatures(const FeatureOptions& options);
  template <class Rows>
  explicit TrigonometricFeatures(const Eigen::MatrixBase<Rows>& rows) : RandomFeatures<T>(rows) {}

  Index output_dim() const { return 2 * this->num_features(); }

 private:
  friend class FeatureMapBase<TrigonometricFeatures, T>;

  void set_features(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team, T* log_factor) const;
  T set_keys(const MatrixView<T>& x, RowScale<T> scale, MatrixRef<T> phi, const Team& team) const;
  void set_gradient(const MatrixView<T>& x, const MatrixView<T>& phi, const MatrixView<T>& dphi, MatrixRef<T> dx,
                    const Team& team) const;

  T log_sqrt_m() const;
};

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/feature_map/trigonometric_definition.hpp"
#endif
