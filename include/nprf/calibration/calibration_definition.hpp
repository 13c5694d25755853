// SPDX-License-Identifier: MIT
#pragma once

#include <istream>
#include <ostream>
#include <utility>

#include "nprf/calibration/calibrated_features.hpp"
#include "nprf/calibration/calibration.hpp"
#include "nprf/calibration/number_text.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace nprf {

template <Real T>
void HeadsCalibration<T>::save(std::ostream& out) const {
  detail::NumberWriter text(out);
  text.header<T>("nprf-calibration", 1);
  text.number("heads", static_cast<Index>(features.size()));
  text.number("softmax_error", softmax_error);
  text.numbers("head_errors", head_errors.data(), static_cast<Index>(head_errors.size()));
  text.number("candidates", static_cast<Index>(candidates.size()));
  for (const CalibrationCandidate& each : candidates) {
    text.number("first", each.first);
    text.number("second", each.second);
    text.number("error", each.error);
  }
  for (const CalibratedFeatures<T>& each : features) each.save(out);
}

template <Real T>
HeadsCalibration<T> HeadsCalibration<T>::load(std::istream& in) {
  constexpr Index most = 1 << 20;
  detail::NumberReader text(in);
  text.header<T>("nprf-calibration", 1);
  HeadsCalibration result;
  const Index heads = text.index("heads", 1, most);
  result.softmax_error = text.number<double>("softmax_error");
  const Vector<double> errors = text.numbers<double>("head_errors", heads);
  result.head_errors.assign(errors.begin(), errors.end());
  const Index candidates = text.index("candidates", 0, most);
  while (static_cast<Index>(result.candidates.size()) < candidates) {
    const Index first = text.index("first", 0, most), second = text.index("second", 0, first);
    result.candidates.push_back({first, second, text.number<double>("error")});
  }
  while (static_cast<Index>(result.features.size()) < heads) result.features.push_back(CalibratedFeatures<T>::load(in));
  return result;
}

template <Real T>
void Calibration<T>::save(std::ostream& out) const {
  HeadsCalibration<T>{{features}, softmax_error, {softmax_error}, candidates}.save(out);
}

template <Real T>
Calibration<T> Calibration<T>::load(std::istream& in) {
  HeadsCalibration<T> all = HeadsCalibration<T>::load(in);
  require(all.features.size() == 1, "heads: expected 1, got ", all.features.size());
  return {std::move(all.features[0]), all.softmax_error, std::move(all.candidates)};
}

}  // namespace nprf
