// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>

#include "nprf/core/types.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/quadratic_row.hpp"
#include "nprf/feature_map/taylor.hpp"

namespace nprf {

/// The feature map that calibrate() returns: quadratic features of centred and balanced queries and keys, with
/// constants from a sample. It is a value: it can be copied, saved as text and loaded.
///
///     features.save(file);
///     const auto features = CalibratedFeatures<float>::load(file);   // the same bits
template <OnlyReal T>
class CalibratedFeatures : public Centred<QuadraticFeatures<T>> {
  using Base = Centred<QuadraticFeatures<T>>;

 public:
  using Base::Base;

  /// The same map with its constants rounded to S. Throws InvalidArgument if one overflows.
  template <Real S>
  CalibratedFeatures<S> cast() const {
    const QuadraticTerms<T>& terms = this->features().terms();
    const Centring<T>& c = this->constants();
    return {
        QuadraticFeatures<S>(this->input_dim(), {terms.first, terms.second, terms.mean_square.template cast<S>(),
                                                 terms.curvature.template cast<S>(), static_cast<S>(terms.log_scale)}),
        {c.query_mean.template cast<S>(), c.key_mean.template cast<S>(), c.query_axes.template cast<S>(),
         c.key_axes.template cast<S>()}};
  }

  /// Writes the constants as text. O(d^2). Throws InvalidArgument if writing fails.
  void save(std::ostream& out) const;

  /// The map that save wrote, with the same bits. Reads up to the last number. Throws InvalidArgument if the text is
  /// not that of a map of scalar T, is of another version, or ends early, or if constants do not fit together.
  static CalibratedFeatures load(std::istream& in);
};

}  // namespace nprf

#if !NPRF_SEPARATE
#include "nprf/calibration/calibrated_features_definition.hpp"
#endif
