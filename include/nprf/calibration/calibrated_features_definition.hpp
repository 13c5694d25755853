// SPDX-License-Identifier: MIT
#pragma once

#include <istream>
#include <ostream>
#include <string_view>
#include <utility>

#include "nprf/calibration/calibrated_features.hpp"
#include "nprf/calibration/number_text.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

namespace detail {

inline constexpr std::string_view calibrated_kind = "nprf-calibrated-features";
inline constexpr int calibrated_version = 1;
inline constexpr Index calibrated_largest_dim = 1 << 20;  // d^2 does not overflow

}  // namespace detail

template <OnlyReal T>
void CalibratedFeatures<T>::save(std::ostream& out) const {
  detail::NumberWriter text(out);
  const QuadraticTerms<T>& terms = this->features().terms();
  const Centring<T>& c = this->constants();
  text.header<T>(detail::calibrated_kind, detail::calibrated_version);
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

template <OnlyReal T>
CalibratedFeatures<T> CalibratedFeatures<T>::load(std::istream& in) {
  detail::NumberReader text(in);
  text.header<T>(detail::calibrated_kind, detail::calibrated_version);
  const Index d = text.index("input_dim", 1, detail::calibrated_largest_dim);
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

}  // namespace nprf
