// SPDX-License-Identifier: MIT
#pragma once

#include <istream>
#include <limits>
#include <ostream>
#include <utility>

#include "nprf/calibration/number_text.hpp"
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
  void save(std::ostream& out) const {
    detail::NumberWriter text(out);
    const QuadraticTerms<T>& terms = this->features().terms();
    const Centring<T>& c = this->constants();
    text.header<T>(kind, version);
    text.number("input_dim", this->input_dim());
    text.number("first", terms.first);
    text.number("second", terms.second);
    text.numbers("mean_square", terms.mean_square.data(), terms.mean_square.size());
    text.number("curvatures", terms.curvature.size());
    text.numbers("curvature", terms.curvature.data(), terms.curvature.size());
    text.number("log_scale", terms.log_scale);
    text.numbers("query_mean", c.query_mean.data(), c.query_mean.size());
    text.numbers("key_mean", c.key_mean.data(), c.key_mean.size());
    text.numbers("query_axes", c.query_axes.data(), c.query_axes.size());
    text.numbers("key_axes", c.key_axes.data(), c.key_axes.size());
    text.finish();
  }

  /// The map that save wrote, with the same bits. Reads up to the last number. Throws InvalidArgument if the text is
  /// not that of a map of scalar T, is of another version, or ends early, or if constants do not fit together.
  static CalibratedFeatures load(std::istream& in) {
    detail::NumberReader text(in);
    text.header<T>(kind, version);
    const Index d = text.index("input_dim", 1, largest_dim);
    QuadraticTerms<T> terms;
    terms.first = text.index("first", 0, d);
    terms.second = text.index("second", 0, terms.first);
    terms.mean_square = text.numbers<T>("mean_square", terms.second);
    const Index curvatures = text.index("curvatures", 0, d);
    terms.curvature = text.numbers<T>("curvature", curvatures);
    terms.log_scale = text.number<T>("log_scale");
    Centring<T> c;
    c.query_mean = text.numbers<T>("query_mean", d);
    c.key_mean = text.numbers<T>("key_mean", d);
    for (Matrix<T>* axes : {&c.query_axes, &c.key_axes}) {
      const Vector<T> x = text.numbers<T>(axes == &c.query_axes ? "query_axes" : "key_axes", d * d);
      *axes = Eigen::Map<const Matrix<T>>(x.data(), d, d);
    }
    return {QuadraticFeatures<T>(d, std::move(terms)), std::move(c)};
  }

 private:
  static constexpr std::string_view kind = "nprf-calibrated-features";
  static constexpr int version = 1;
  static constexpr Index largest_dim = 1 << 20;  // d^2 does not overflow
};

}  // namespace nprf
